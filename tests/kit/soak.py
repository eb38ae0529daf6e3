"""`make soak` can be stopped: what has passed is written down, and left out the next time, until the code changes. At
its end it prints one table of all that was asked for, whenever it ran."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CODE = ("src", "tests")
"""What was tried: a change in these folders makes what passed before say nothing."""


@dataclass
class Row:
    test: str
    outcome: str = "passed"
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    """What the test recorded (`record_property`): kills, disks, seeds."""


def pytest_configure(config: pytest.Config) -> None:
    place = config.rootpath / "build" / "soak.jsonl"
    place.parent.mkdir(exist_ok=True)
    config.pluginmanager.register(Soak(place, digest(config.rootpath)), "keylane-soak-table")


def digest(root: Path) -> str:
    """Of the code's files, by name and content."""
    made = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        made.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return made.hexdigest()


class Soak:
    """The rows of a file: first the code's digest, then one a test, appended when it ends."""

    def __init__(self, place: Path, code: str) -> None:
        self._place = place
        self._code = code
        self._asked: list[str] = []
        self._running = Row("")
        self._rows: dict[str, Row] = {}
        lines = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
        if lines and lines[0] == code:
            self._rows = {row["test"]: Row(**row) for row in lines[1:]}
        self._earlier = {name for name, row in self._rows.items() if row.outcome == "passed"}
        self._write()

    @pytest.hookimpl(trylast=True)  # after -m and -k have chosen
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self._asked = [item.nodeid for item in items]
        passed = [item for item in items if item.nodeid in self._earlier]
        if passed and not config.option.collectonly:
            items[:] = [item for item in items if item.nodeid not in self._earlier]
            config.hook.pytest_deselected(items=passed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._running = Row(report.nodeid)
        row = self._running
        row.seconds += report.duration
        if row.outcome == "passed" and report.outcome != "passed":
            row.outcome = report.outcome
        if report.when == "teardown":
            row.figures = dict(report.user_properties)
            self._rows[row.test] = row
            with self._place.open("a") as file:
                file.write(json.dumps(vars(row)) + "\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """An earlier run has done all that is left to do, or this one has: the next one begins anew."""
        if self.is_done and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            left = {name: row for name, row in self._rows.items() if name not in self._asked}
            self._rows, done = left, self._rows
            self._write()
            self._rows = done

    @property
    def is_done(self) -> bool:
        return bool(self._asked) and all(
            name in self._rows and self._rows[name].outcome == "passed" for name in self._asked
        )

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.option.collectonly:
            return
        rows = [self._rows[name] for name in self._asked if name in self._rows]
        terminalreporter.section("soak")
        for row in rows:
            figures = ", ".join(f"{name} {value}" for name, value in row.figures.items())
            when = " (earlier)" if row.test in self._earlier else ""
            terminalreporter.write_line(f"{row.outcome + when:17} {row.seconds:8.1f} s  {row.test}  {figures}".rstrip())
        left = len(self._asked) - len(rows)
        terminalreporter.write_line(
            f"{len(rows)} of {len(self._asked)} ran in {sum(row.seconds for row in rows):.0f} s"
            + (f"; {left} are left: run it again, and it goes on" if left else "")
        )

    def _write(self) -> None:
        rows = [json.dumps(self._code), *(json.dumps(vars(row)) for row in self._rows.values())]
        self._place.write_text("\n".join(rows) + "\n")
