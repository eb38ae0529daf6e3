"""Commits and fetches a second: keylane's broker and Apache Kafka, warm, by turns, under one load generator."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from contests import FLUSHING, KAFKA, OURS, Beside, nobody
from peers import jvm

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from offsets.bare import bounds
from offsets.load import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PARTITIONS = 1_000
WARM_UP_S = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One shape of load."""

    name: str
    what: str
    connections: int
    in_flight: int
    partitions: int
    wanted: float
    """The least rate in multiples of the peer's that was asked for."""
    peer: str = KAFKA
    is_against_disk: bool = False
    groups: int = 1
    """Of each connection."""


ROWS = (
    Row("commit, 1 client, 1 in flight", "commit", 1, 1, 1, 1.0, FLUSHING, is_against_disk=True),
    Row("commit, 4 × 100 in flight", "commit", 4, 100, 1, 2.0),
    Row("commit, 16 × 100 in flight", "commit", 16, 100, 1, 1.0),
    Row("commit, 100 partitions", "commit", 4, 25, 100, 1.0),
    Row("commit, 1,000 partitions", "commit", 4, 10, 1_000, 0.5),
    Row("fetch, 1 client, 1 in flight", "fetch", 1, 1, 1, 1.0),
    Row("fetch, 4 × 100 in flight", "fetch", 4, 100, 1, 1.0),
    Row("fetch, 16 × 100 in flight", "fetch", 16, 100, 1, 1.0),
    Row("fetch, 100 partitions", "fetch", 4, 25, 100, 1.0),
    Row("fetch, 1,000 partitions", "fetch", 4, 10, 1_000, 0.5),
    Row("commit, 16 clients, 1 in flight", "commit", 16, 1, 1, 0.0),
    Row("commit, 100 clients, 1 in flight", "commit", 100, 1, 1, 0.0),
    Row("commit, 1,000 clients, 1 in flight", "commit", 1_000, 1, 1, 0.0),
)


def selected(patterns: Sequence[str], rows: Sequence[Row] = ROWS) -> list[Row]:
    return [row for row in rows if any(fnmatch.fnmatch(row.name, pattern) for pattern in patterns)]


@dataclass(slots=True)
class Standing:
    """The runs of one contestant on one row."""

    runs: list[dict[str, Any]] = field(default_factory=list)

    def median(self, figure: str) -> float | None:
        values = [run[figure] for run in self.runs if run.get(figure) is not None]
        return statistics.median(values) if values else None


class Contest:
    """The brokers and the load generator. A context manager: their processes end with it."""

    def __init__(self, folder: Path, beside: Beside = nobody, *, partitions: int = PARTITIONS) -> None:
        self._folder = folder
        self._partitions = partitions
        self._beside = beside
        self._stack = contextlib.ExitStack()
        self._bootstraps: dict[str, str] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(BrokerProcess(self._folder / "data"))
            self._bootstraps[OURS] = ours.bootstrap
            self._bootstraps |= self._beside(stack)
            self._generator = stack.enter_context(jvm.LineProcess([sys.executable, "-m", "offsets.load"]))
            for bootstrap in self._bootstraps.values():
                Admin({"bootstrap.servers": bootstrap}, timeout_ms=120_000).create_topics({TOPIC: self._partitions})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def warm_up(self, seconds: float = WARM_UP_S) -> None:
        """A cold JVM is two to four times slower."""
        for name in self._bootstraps:
            for what, partitions in (("commit", 1), ("commit", 100), ("fetch", 1), ("fetch", 100)):
                self._run(name, Row("", what, 4, 50, partitions, 0), seconds / 4)

    def play(self, row: Row, repeat: int, seconds: float, report: Callable[[str, Any], None]) -> dict[str, Standing]:
        """The row `repeat` times by both, in turns; the first of a turn changes."""
        names = [name for name in (OURS, row.peer) if name in self._bootstraps]
        standings = {name: Standing() for name in names}
        for turn in range(repeat):
            for name in names if turn % 2 == 0 else reversed(names):
                run = {"load": os.getloadavg()[0]}
                if row.is_against_disk:
                    run |= bounds(self._folder)
                run |= self._run(name, row, seconds)
                standings[name].runs.append(run)
                report(name, run)
        return standings

    def _run(self, name: str, row: Row, seconds: float) -> dict[str, Any]:
        load = {
            "bootstrap": self._bootstraps[name],
            "what": row.what,
            "connections": row.connections,
            "in_flight": row.in_flight,
            "partitions": row.partitions,
            "seconds": seconds,
            "prefix": f"{row.what}-{row.partitions}",
            "groups": row.groups,
        }
        answer: dict[str, Any] = json.loads(self._generator.ask(json.dumps(load)))
        if "error" in answer:
            raise RuntimeError(f"{name} on {row.name}: {answer['error']}")
        return answer
