"""`keylane run --spark`, with the README's pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest
from peers import free_ports

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 2_000
TIMEOUT_S = 300
"""Many times what it takes on an idle machine."""


@pytest.mark.full
def test_keylane_run_on_spark_ends_at_lag_0(examples: Path) -> None:
    pipeline = (examples / "orders.py").read_text().replace('"scoring"', '"scoring again"')
    (examples / "again.py").write_text(pipeline)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "keylane", "run", "again.py", "--spark", "local[3]", "--lanes", "2"]
    command += ["--available-now", "--json", "--metrics-port", str(port), "--conf", "spark.ui.enabled=false"]
    with (
        (examples / "stderr").open("w+") as told,
        subprocess.Popen(command, cwd=examples, stdout=subprocess.PIPE, stderr=told, text=True) as running,
    ):
        try:
            assert running.stdout is not None
            first = running.stdout.readline()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                page = answer.read().decode()
            *_, last = [first, *running.stdout]
            code = running.wait(TIMEOUT_S)
        finally:
            running.kill()
        told.seek(0)
        assert code == 0, told.read()
    summary = json.loads(last)
    assert (summary["event"], summary["processed"], summary["lag"]) == ("summary", RECORDS, 0)
    for lane in range(2):
        assert f'keylane_lane_launches_total{{group="scoring again",lane="{lane}"}} 1.0' in page
