"""A soak that is stopped goes on where it was, and its table has all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PROGRAM = """
import os
from collections import Counter

import pytest

def test_first(record_property):
    record_property("kills", 7)
    record_property("of", Counter("a"))

def test_second():
    if os.environ["END"] == "stopped":
        raise KeyboardInterrupt
    assert os.environ["END"] == "well"

def test_third():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def soak(folder: Path, end: str, *arguments: str) -> list[str]:
    """The lines of the table."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "kit.soak", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "END": end},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    (start,) = (at for at, line in enumerate(lines) if " soak " in line)
    end_at = next(at for at, line in enumerate(lines) if " ran in " in line)
    return lines[start + 1 : end_at + 1]


def words(line: str) -> tuple[str, str]:
    return line.split(" s  ")[0].rsplit(None, 1)[0], line.split(" s  ")[1]


def test_what_passed_before_it_was_stopped_does_not_run_again(folder: Path) -> None:
    *rows, last = soak(folder, "stopped")
    assert [words(row) for row in rows] == [("passed", "tests/test_it.py::test_first  kills 7, of Counter({'a': 1})")]
    assert last.startswith("1 of 3 ran in ")
    assert "2 are left" in last
    *rows, last = soak(folder, "well")
    assert [words(row) for row in rows] == [
        ("passed (earlier)", "tests/test_it.py::test_first  kills 7, of {'a': 1}"),
        ("passed", "tests/test_it.py::test_second"),
        ("passed", "tests/test_it.py::test_third"),
    ]
    assert last.startswith("3 of 3 ran in ")
    assert "left" not in last
    assert all("earlier" not in row for row in soak(folder, "well")), "it was done: the next one begins anew"


def test_what_failed_runs_again_and_so_does_all_after_a_change(folder: Path) -> None:
    outcomes = [words(row)[0] for row in soak(folder, "badly")[:-1]]
    assert outcomes == ["passed", "failed", "passed"]
    outcomes = [words(row)[0] for row in soak(folder, "badly")[:-1]]
    assert outcomes == ["passed (earlier)", "failed", "passed (earlier)"]
    (folder / "tests" / "test_it.py").write_text(PROGRAM + "\n# changed\n")
    outcomes = [words(row)[0] for row in soak(folder, "badly")[:-1]]
    assert outcomes == ["passed", "failed", "passed"]


def test_a_part_is_a_soak_of_its_own(folder: Path) -> None:
    soak(folder, "stopped")
    assert len(soak(folder, "well", "-k", "third")) == 2
    assert [words(row)[0] for row in soak(folder, "well")[:-1]] == ["passed (earlier)", "passed", "passed"]
