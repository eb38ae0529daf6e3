"""One test of a copied tree in a process of its own, which has loaded beforehand what is dear and not keylane's."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOADED = [
    *("pytest", "_pytest.assertion.rewrite", "hypothesis.stateful", "_hypothesis_pytestplugin", "xdist.plugin"),
    *("aiohttp", "confluent_kafka.admin", "cryptography.x509", "numpy", "pyarrow", "pyspark.sql"),
]
RAN = 100
"""Added to pytest's exit code: a process that ends by itself before pytest has run has another one."""


def exit_code(tree: Path, test: str, timeout_s: float) -> int | None:
    """Of pytest with this test, negative where it was not run; none when it hangs."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(LOADED)
    process = forks.Process(target=_run, args=(tree, test))
    process.start()
    process.join(timeout_s)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    assert process.exitcode is not None, "it was joined, and is not alive"
    return process.exitcode - RAN


def environment(tree: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(tree / "src"), "KEYLANE_FIRST_EXAMPLE": "1"}


def pytest_arguments(*arguments: str) -> list[str]:
    tests = [f"tests/{one}" if not one.startswith("-") and "/" in one else one for one in arguments]
    return ["-x", "-q", "-m", "", "-p", "no:cacheprovider", *tests]  # a test is named, whatever its mark


def _run(tree: Path, test: str) -> None:
    import pytest

    os.chdir(tree)
    os.environ.update(environment(tree))
    sys.path[:0] = [str(tree), str(tree / "src")]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.exit(RAN + pytest.main(pytest_arguments(test)))
