"""Rules for every test: no process is left behind, and with KEYLANE_NO_SKIPS=1 a skip is a failure."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


def pytest_configure() -> None:
    """A shell that starts the tests in the background leaves SIGINT ignored; Ctrl-C is part of what is tested."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line takes over the logger `keylane`; the next test finds it as it was."""
    logger = logging.getLogger("keylane")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate = propagate
    logger.handlers[:] = handlers


def children() -> set[int]:
    """The process ids of this process's living children (zombies that nobody waited for count too)."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@pytest.fixture(scope="module", autouse=True)
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every module ends with the children it began with; a session-wide Spark JVM is the one exception."""
    before = children()
    yield
    left = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:4] for pid in children() - before}
    left = {pid: words for pid, words in left.items() if not any(b"java" in word for word in words)}
    assert not left, f"{request.node.name} left processes behind: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """`make test-full` counts a skip as a failure, with the skip's reason."""
    report = yield
    if report.skipped and os.environ.get("KEYLANE_NO_SKIPS") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which test-full does not allow: {report.longrepr}"
    return report
