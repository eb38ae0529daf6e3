"""What `keylane` shows of itself before anything of it is used."""

from __future__ import annotations

import re
import subprocess
import sys

import keylane
from kit.house import ROOT


def test_dir_has_every_public_name_and_nothing_else() -> None:
    program = (
        "import sys, keylane; print(*dir(keylane)); print(*sorted(sys.modules.keys() & {'pyspark', 'confluent_kafka'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, heavy = done.stdout.split("\n")[:2]
    shown = {name for name in names.split() if not name.startswith("__")}
    assert shown == {*keylane.__all__, "http", "schema", "spark"}
    assert heavy == "", "to look at the names imports nothing"
    assert all(hasattr(keylane, name) for name in shown)


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^\.\. auto\w+:: ([A-Z]\w*)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(keylane.__all__)
