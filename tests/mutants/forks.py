"""Tests in a process of their own, which has loaded beforehand what is dear and not keylane's."""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
from contextlib import suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_CPU, setrlimit
from signal import SIGKILL, SIGXCPU
from typing import TYPE_CHECKING, NamedTuple

from mutants.planted import PLANTED, plant

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from mutants.aims import Broken

ROOT = Path(__file__).parents[2]
LOADED = [
    *("pytest", "_pytest.assertion.rewrite", "hypothesis.stateful", "_hypothesis_pytestplugin", "xdist.plugin"),
    *("aiohttp", "confluent_kafka.admin", "cryptography.x509", "numpy", "pyarrow", "pyspark.sql"),
]
RAN = 100
"""Added to pytest's exit code: a process that ends by itself before pytest has run has another one."""


class Ending(NamedTuple):
    """How pytest ended in such a process."""

    code: int | None
    """Negative where it was not run; none when it hung."""
    noticed_by: str
    """The first test that failed."""


class FirstFailure:
    """Of pytest's plugins: writes which test failed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(report.nodeid)


def run(broken: Broken, folder: Path, tests: Sequence[str], timeout_s: float, cpu_s: int = RLIM_INFINITY) -> Ending:
    """These tests while the module is broken. `folder` is the caller's alone meanwhile."""
    code, failed = folder / "broken.py", folder / "failed"
    code.write_text(ast.unparse(broken.tree))
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(LOADED)
    process = forks.Process(target=_run, args=(f"{broken.module}={code}", list(tests), failed, cpu_s))
    process.start()
    process.join(timeout_s)
    is_hung = process.is_alive()
    process.kill()
    assert process.pid is not None, "it was started"
    with suppress(ProcessLookupError):  # and what it started
        os.killpg(process.pid, SIGKILL)
    process.join()
    assert process.exitcode is not None, "it was joined"
    is_hung |= process.exitcode == -SIGXCPU
    return Ending(None if is_hung else process.exitcode - RAN, failed.read_text() if failed.exists() else "")


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "src"), "KEYLANE_FIRST_EXAMPLE": "1"}


def pytest_arguments(*arguments: str) -> list[str]:
    tests = [f"tests/{one}" if not one.startswith("-") and "/" in one else one for one in arguments]
    return ["-x", "-q", "-m", "", "-p", "no:cacheprovider", *tests]  # a test is named, whatever its mark


def _run(planted: str, tests: list[str], failed: Path, cpu_s: int) -> None:
    import pytest

    os.setsid()
    setrlimit(RLIMIT_CPU, (cpu_s, RLIM_INFINITY))
    os.chdir(ROOT)
    os.environ.update(environment() | {PLANTED: planted})
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    plant()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    # Assertions as they are: pytest would load keylane, which is a plugin of its, by itself to write them anew.
    sys.exit(RAN + pytest.main(["--assert=plain", *pytest_arguments(*tests)], plugins=[FirstFailure(failed)]))
