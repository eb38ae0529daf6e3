"""A consumer that kills itself at a named point, and notes its effects outside: a process's, or a lane's.

The idea: what a delivery guarantee is worth shows between two steps. So a process ends by SIGKILL right at one of them,
after so many times, and what it has done by then is in a file, a database or a topic that outlives it. `Worker` is a
process of its own, forked from a server that has everything imported, so that one costs milliseconds; `Sent` is a
handler that does the same in the Python worker of a lane.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.parallel_consumer import ParallelConsumer
from kit.engine_points import Point, lay_points

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["kit.crash_points", "keylane.delivery", "psycopg", "psycopg_pool"])


@dataclass(frozen=True, slots=True)
class Plan:
    """What a consumer does, and where it is killed."""

    kafka: dict[str, Any]
    topic: str
    effects: str
    """A file that effects are appended to; with a `store`, the table in its database; in transactions, a topic."""
    options: dict[str, Any]
    """Of the pipeline."""
    kills: tuple[tuple[Point, int], ...] = ()
    """One after another: a point, and how many times a process reaches it, the last of which is its end."""
    marks: str = ""
    """The folder in which each kill leaves a file named by its number, so that it happens once."""
    work_ms: int = 0
    to_the_end: bool = True
    """Else it runs until it is stopped with SIGTERM."""


_asking = threading.Lock()
"""Held while multiprocessing may ask how a process ended, which a start does of every process as well: it reads that
once, and two threads that ask at the same time get one answer and one wrong one (255)."""


class Worker:
    """A started worker. Several threads may each have one."""

    def __init__(self, plan: Plan) -> None:
        self._topic = plan.topic
        self.process: BaseProcess = _processes.Process(target=_run, args=(plan,))
        with _asking:
            self.process.start()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Until it has ended; returns its exit code, which is negative for a signal."""
        wait([self.process.sentinel], timeout_s)
        with _asking:
            code = self.process.exitcode
        if code is None:
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGABRT)  # it says what its threads are at, on stderr
            raise AssertionError(f"the worker of {self._topic} did not end within {timeout_s:.0f} s")
        return code

    def end(self) -> None:
        with _asking:
            if self.process.is_alive():
                self.process.kill()
        wait([self.process.sentinel])
        with _asking:
            self.process.join()


def effects_in(path: str) -> Counter[tuple[int, int]]:
    """How often each record's effect is in a file, by partition and offset."""
    if not os.path.exists(path):  # noqa: PTH110 - nothing was done
        return Counter()
    with open(path) as lines:  # noqa: PTH123
        return Counter(tuple(map(int, line.split())) for line in lines)  # type: ignore[misc]


class Sent:
    """A handler on its way to a lane: what arrives in its process is the real one, and has laid the points there."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self._plan,)

    def __call__(self, record: kl.Record, context: kl.Context) -> None:
        raise AssertionError("it runs where it arrives")


def _arrive(plan: Plan) -> Callable[..., Any]:
    """Travels as code; all that follows is the module of the process, where points are laid once."""
    from kit.crash_points import armed

    return armed(plan)


def pipeline_of(plan: Plan, handler: Callable[..., Any]) -> kl.Pipeline:
    return kl.Pipeline(kafka=plan.kafka, topics=[plan.topic], handler=handler, offset_reset="earliest", **plan.options)


# --- in the process that is killed ---


class Fuse:
    """Ends the process when the point of the kill that is due is reached for the last time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._number = 0
        self._point: Point | None = None
        self._left = 0
        self._aim()

    def at(self, point: Point, times: int = 1) -> None:
        if point == self._point and times:
            self._left -= times
            if self._left <= 0:
                self._burn()

    def _aim(self) -> None:
        """At the first kill that nobody has made."""
        kills = self._plan.kills
        self._number = len(os.listdir(self._plan.marks)) if kills else 0  # noqa: PTH208
        self._point, self._left = kills[self._number] if self._number < len(kills) else (None, 0)

    def _burn(self) -> None:
        try:
            os.close(os.open(f"{self._plan.marks}/{self._number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:  # another lane was killed meanwhile
            self._aim()
            return
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


def armed(plan: Plan) -> Callable[..., Any]:
    """The plan's handler, in a process that ends where the plan says."""
    fuse = Fuse(plan)
    lay_points(fuse.at)
    return _handler(plan, fuse)


def _run(plan: Plan) -> None:
    faulthandler.enable()  # a member that dies of something else says where
    logging.disable(logging.CRITICAL)
    pipeline = pipeline_of(plan, armed(plan))
    with ParallelConsumer(pipeline, ending_offsets="latest" if plan.to_the_end else None) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run()


def _handler(plan: Plan, fuse: Fuse) -> Callable[..., Any]:
    delivery = plan.options["delivery"]
    if isinstance(delivery, kl.ExactlyOnce):
        return _database_handler(plan, fuse)
    return _topic_handler(plan, fuse) if delivery == "transactional" else _file_handler(plan, fuse)


def _file_handler(plan: Plan, fuse: Fuse) -> Callable[..., Any]:
    file = os.open(plan.effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handler(record: kl.Record) -> None:
        _work(plan)
        fuse.at("inside")
        os.write(file, b"%d %d\n" % (record.partition, record.offset))

    return handler


def _topic_handler(plan: Plan, fuse: Fuse) -> Callable[..., Any]:
    def handler(record: kl.Record) -> kl.Output:
        _work(plan)
        fuse.at("inside")
        return kl.Output(plan.effects, key=record.key, value=b"%d %d" % (record.partition, record.offset))

    return handler


def _database_handler(plan: Plan, fuse: Fuse) -> Callable[..., Any]:
    def handler(record: kl.Record, context: kl.Context) -> None:
        _work(plan)
        statement = f"INSERT INTO {plan.effects} VALUES ({record.partition}, {record.offset})"
        context.transaction.execute(statement)
        fuse.at("inside")

    return handler


def _work(plan: Plan) -> None:
    if plan.work_ms:
        time.sleep(plan.work_ms / 1000)
