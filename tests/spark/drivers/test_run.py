"""`keylane run --spark`, with the README's pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 2_000
TIMEOUT_S = 300
"""Many times what it takes on an idle machine."""


def test_keylane_run_on_spark_ends_at_lag_0(examples: Path) -> None:
    pipeline = (examples / "orders.py").read_text().replace('"scoring"', '"scoring again"')
    (examples / "again.py").write_text(pipeline)
    command = [sys.executable, "-m", "keylane", "run", "again.py", "--spark", "local[3]", "--lanes", "2"]
    done = subprocess.run(
        [*command, "--available-now", "--json", "--conf", "spark.ui.enabled=false"],
        cwd=examples,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["event"], summary["processed"], summary["lag"]) == ("summary", RECORDS, 0)
