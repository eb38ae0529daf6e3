"""What `make` gives the programs that it runs, whatever its user has set."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def environment_of_recipes(**given: str) -> dict[str, str]:
    done = subprocess.run(
        ["make", "--no-print-directory", "--eval", "environment:; @env -0", "environment"],
        cwd=ROOT,
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


def test_pip_installs_into_the_environment_that_it_runs_in() -> None:
    """`user = true` in pip.conf is a habit; PIP_USER, which says the same, comes before it."""
    places = {"PIP_TARGET": "/elsewhere", "PIP_PREFIX": "/elsewhere", "PIP_ROOT": "/elsewhere"}
    found = environment_of_recipes(PIP_USER="1", PIP_NO_CACHE_DIR="1", **places)
    assert found["PIP_USER"] == "0"
    assert not places.keys() & found.keys()
    assert found["PIP_NO_CACHE_DIR"] == "1", "other settings hold"


def test_pytest_finds_the_plugins_of_the_environment() -> None:
    """Without them `-n` is an unrecognized argument."""
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in environment_of_recipes(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
