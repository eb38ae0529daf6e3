"""KEYLANE_ONCE names a file of tests that have passed: they are not run again, and those that pass are added.

Spark's tests are run again, since another Java may be there, and those that try more examples in `make test-full`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

AGAIN = "tests/spark/"


class Once:
    """A plugin of pytest; of the workers of `pytest -n` each leaves out, and the one that started them adds."""

    def __init__(self, path: Path, *, adds: bool) -> None:
        self._path = path
        self._adds = adds
        self._passed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        passed = set(self._path.read_text().splitlines()) if self._path.exists() else set()
        left_out = [item for item in items if item.nodeid in passed and not is_run_again(item)]
        if left_out:
            names = {item.nodeid for item in left_out}
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in names]
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._adds:
            with self._path.open("a") as file:
                file.writelines(f"{one}\n" for one in self._passed)


def is_run_again(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    return (
        item.nodeid.startswith(AGAIN)
        or hasattr(item.module, "examples")
        or getattr(item.obj, "is_hypothesis_test", False)
    )


def leave_out_what_has_passed(config: pytest.Config) -> None:
    """Where the file is named."""
    if path := os.environ.get("KEYLANE_ONCE"):
        config.pluginmanager.register(Once(Path(path), adds=not hasattr(config, "workerinput")))
