"""The first steps of docs/dataframes.md, pasted in order into a Python in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin

PAGE = Path(__file__).parents[3] / "docs" / "dataframes.md"


@pytest.mark.soak
def test_the_first_steps_do_what_the_page_says(java: None, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    (section,) = re.findall(r"^## First steps\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    steps = "\n".join(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    with BrokerProcess(tmp_path / "data", settings={"num.partitions": "4"}) as broker:
        program = steps.replace("127.0.0.1:9092", broker.bootstrap)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout == "2000 orders scored\n2000 orders written\n"
        commits = Admin({"bootstrap.servers": broker.bootstrap}).committed_offsets("scoring")
    assert sum(one.offset for one in commits.values()) == 2_000
