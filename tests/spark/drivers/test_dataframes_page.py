"""What docs/dataframes.md shows, pasted in order into a Python in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from keylane.broker.process import BrokerProcess
from keylane.cli import main
from keylane.kafka.admin import Admin

PAGE = Path(__file__).parents[3] / "docs" / "dataframes.md"


@pytest.mark.soak
def test_what_the_page_shows_does_what_it_says(java: None, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    in_one_session = PAGE.read_text().partition("## Through Spark Connect")[0]
    steps = "\n".join(re.findall(r"^```python\n(.*?)^```$", in_one_session, re.MULTILINE | re.DOTALL))
    with BrokerProcess(tmp_path / "data") as broker:
        create = next(line for line in PAGE.read_text().splitlines() if line.startswith("keylane topics create"))
        assert main([*create.split()[1:], "--bootstrap", broker.bootstrap]) == 0
        program = steps.replace("127.0.0.1:9092", broker.bootstrap)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said = [line for line in done.stdout.splitlines() if "orders" in line]
        assert said == ["2000 orders scored", "2000 orders written", "1990 orders judged, 10 dead"]
        assert len(re.findall(r"^\| +[0-3]\| +\d+\|$", done.stdout, re.MULTILINE)) == 4  # partitions
        assert done.stdout.count("|RuntimeError: no such customer|2       |") == 3
        admin = Admin({"bootstrap.servers": broker.bootstrap})
        for group in ("scoring", "upper", "judging"):
            assert sum(one.offset for one in admin.committed_offsets(group).values()) == 2_000, group
