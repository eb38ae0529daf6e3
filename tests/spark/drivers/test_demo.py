"""The demo on Spark lanes, as a newcomer runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from keylane.demo.rows import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 300
"""Ten times what it takes on an idle machine of two cores."""


@pytest.mark.full
def test_the_demo_on_lanes_loses_repeats_and_reorders_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    options = ["--records", "1000", "--lanes", "2", "--latency-ms", "200", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "keylane", "demo", *options],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    judged = ("records", "processed", "lost", "duplicated", "out_of_order", "altered", "foreign", "lag")
    assert [report[name] for name in judged] == [1_000, 1_000, 0, 0, 0, 0, 0, 0]
    assert report["mode"] == "2 Spark lanes on local[3]"
    assert report["peak_in_flight"] >= 100
    written = pyarrow.dataset.dataset(tmp_path / report["parquet"])
    assert written.schema.names == list(COLUMNS)
    assert written.count_rows() == 1_000
    assert not [left for left in (tmp_path / "tmp").iterdir() if left.name.startswith("keylane")]
