"""`Worker`: a consumer in a process of its own that kills itself at a named point, and notes its effects outside.

The idea: what a delivery guarantee is worth shows between two steps. So a worker ends by SIGKILL right at one of them,
after so many times, and what it has done by then is in a file, a database or a topic that outlives it. Processes are
forked from a server that has everything imported, so that one costs milliseconds.
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
    """What a worker does."""

    kafka: dict[str, Any]
    topic: str
    effects: str
    """A file that effects are appended to; with a `store`, the table in its database; in transactions, a topic."""
    options: dict[str, Any]
    """Of the pipeline."""
    point: Point | None = None
    after: int = 1
    """How many times the point is reached, the last of which is the end."""
    work_ms: int = 0
    to_the_end: bool = True
    """Else it runs until it is stopped with SIGTERM."""


_asking = threading.Lock()
"""Held while multiprocessing may ask how a process ended, which a start does of every process as well: it reads that
once, and two threads that ask at the same time get one answer and one wrong one (255)."""


class Worker:
    """A started worker. Several threads may each have one."""

    def __init__(self, plan: Plan) -> None:
        self.process: BaseProcess = _processes.Process(target=_run, args=(plan,))
        with _asking:
            self.process.start()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Until it has ended; returns its exit code, which is negative for a signal."""
        wait([self.process.sentinel], timeout_s)
        with _asking:
            code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"the worker did not end within {timeout_s:.0f} s")
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


# --- in the worker ---


class Fuse:
    """Ends the process when its point is reached for the last time."""

    def __init__(self, plan: Plan) -> None:
        self._point = plan.point
        self._left = plan.after

    def at(self, point: Point, times: int = 1) -> None:
        if point == self._point and times:
            self._left -= times
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


def _run(plan: Plan) -> None:
    faulthandler.enable()  # a member that dies of something else says where
    logging.disable(logging.CRITICAL)
    fuse = Fuse(plan)
    lay_points(fuse.at)
    pipeline = kl.Pipeline(
        kafka=plan.kafka,
        topics=[plan.topic],
        handler=_handler(plan, fuse),
        offset_reset="earliest",
        **plan.options,
    )
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
