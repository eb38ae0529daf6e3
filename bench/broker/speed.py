"""Records and transactions a second: keylane's broker and Apache Kafka, warm, by turns, under one load generator."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from contests import FLUSHING, KAFKA, OURS, Beside, nobody
from peers import jvm

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DISK_PIECE_BYTES = 1_000_000
"""A producer's largest batch: what a flushing broker writes and syncs at a time."""
DISK_S = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One shape of load."""

    name: str
    what: str
    size: int
    partitions: int = 1
    clients: int = 1
    records: int = 0
    peers: tuple[str, ...] = (KAFKA,)


ROWS = (
    Row("produce 1 KB", "produce", 1_000, 1, 1, 0, (KAFKA, FLUSHING)),
    Row("produce 100 B", "produce", 100, 1, 1, 0, (KAFKA, FLUSHING)),
    Row("fetch 1 KB", "fetch", 1_000, 1, 1, 300_000),
    Row("fetch 100 B", "fetch", 100, 1, 1, 2_000_000),
    Row("a single record, awaited", "single", 1_000, 1, 1, 0, (KAFKA, FLUSHING)),
    Row("transactions of one record", "transactions", 100),
    Row("produce 1 KB, 10 partitions", "produce", 1_000, 10),
    Row("produce 1 KB, 100 partitions", "produce", 1_000, 100),
    Row("produce 1 KB, 20 clients", "produce", 1_000, 1, 20),
    Row("fetch in a session, 10 of 1,000 partitions with records", "session", 100, 1_000, 1, 10),
    Row("the same without a session", "sessionless", 100, 1_000, 1, 10),
)


def selected(patterns: Sequence[str]) -> list[Row]:
    return [row for row in ROWS if any(fnmatch.fnmatch(row.name, pattern) for pattern in patterns)]


class Contest:
    """The brokers and the load generator. A context manager: their processes end with it."""

    def __init__(self, folder: Path, beside: Beside = nobody) -> None:
        self._folder = folder
        self._beside = beside
        self._stack = contextlib.ExitStack()
        self._bootstraps: dict[str, str] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._bootstraps[OURS] = stack.enter_context(BrokerProcess(self._folder / "data")).bootstrap
            self._bootstraps |= self._beside(stack)
            self._generator = stack.enter_context(jvm.LineProcess([sys.executable, "-m", "broker.load"]))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def warm_up(self, seconds: float) -> None:
        """A cold JVM is two to four times slower."""
        for name in self._bootstraps:
            for what in ("produce", "single", "transactions", "fetch"):
                self._run(name, Row("", what, 1_000, records=10_000 if what == "fetch" else 0), seconds / 4)

    def play(
        self, row: Row, repeat: int, seconds: float, report: Callable[[str, Any], None]
    ) -> dict[str, list[dict[str, Any]]]:
        """The row `repeat` times by all, in turns; the first of a turn changes."""
        names = [name for name in (OURS, *row.peers) if name in self._bootstraps]
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for turn in range(repeat):
            for name in names if turn % 2 == 0 else reversed(names):
                run = {"load": os.getloadavg()[0]}
                if row.what == "produce" and name == OURS:
                    run["disk_bytes_per_s"] = disk_bytes_per_s(self._folder)
                run |= self._run(name, row, seconds)
                found[name].append(run)
                report(name, run)
        return found

    def _run(self, name: str, row: Row, seconds: float) -> dict[str, Any]:
        load = {
            "bootstrap": self._bootstraps[name], "what": "create", "topic": f"bench-{next(self._numbers)}",
            "size": row.size, "partitions": row.partitions, "clients": row.clients, "seconds": seconds,
            "records": row.records,
        }  # fmt: skip
        self._ask(name, load)
        answer = self._ask(name, load | {"what": row.what})
        self._ask(name, load | {"what": "delete"})
        return answer

    def _ask(self, name: str, load: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._generator.ask(json.dumps(load)))
        if "error" in answer:
            raise RuntimeError(f"{name}, {load['what']}: {answer['error']}")
        return answer


def disk_bytes_per_s(folder: Path) -> float:
    """What the disk does in one thread: a piece, and fdatasync, again and again."""
    path = folder / "disk"
    piece = os.urandom(DISK_PIECE_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < DISK_S:
            os.write(fd, piece)
            os.fdatasync(fd)
            count += 1
        return count * DISK_PIECE_BYTES / (time.perf_counter() - start)
    finally:
        os.close(fd)
        path.unlink()
