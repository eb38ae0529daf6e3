"""The driver's side of many lanes, without Spark and Kafka: processes play the lanes, over the real channel.

A player stands for some executors: it runs each lane as an executor does (`keylane.spark.lanes.run_lane`), with a
consumer that does nothing but tell of its partitions. What is measured is the driver's process alone: its processor
time, its memory, how old what it shows of a lane is, and how long it takes to start lanes, to start those of a killed
player again, and to have fewer or more.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.consumer.snapshot import PartitionSnapshot, Snapshot
from keylane.flow.workers import BUCKETS, Histogram
from keylane.spark.jobs import JobFailure
from keylane.spark.lanes import run_lane
from keylane.spark.listeners import Listeners
from keylane.spark.plan import LanePlan
from keylane.spark.progress import QueryName
from keylane.spark.restarts import RestartLimits
from keylane.spark.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from keylane.consumer.intake import Liveness
    from keylane.consumer.work import Work
    from keylane.kafka.membership import Target
    from keylane.options import Rates
    from keylane.spark.controls import Name
    from keylane.spark.jobs import JobResult
    from keylane.spark.lanes import LaneTask

COUNTS: tuple[int, ...] = (10, 100, 1_000)
PLAYERS = 10
"""Processes that play the executors; each has as many lanes."""
PARTITIONS = 10
"""Of each lane."""
STEADY_S = 15.0
SETTLE_S = 3.0
LOOK_S = 0.5
"""Between two looks at what the driver shows: each costs its process a look at every lane."""
PATIENCE_S = 120.0
LOST = JobFailure("died", "the player was killed")


class Played:
    """A lane's consumer that has its partitions and does nothing. A busy one's snapshots are other each time in all
    that moves with records, and its `processed` says when one was made."""

    def __init__(self, lane: int, *, busy: bool) -> None:
        self._lane = lane
        self._busy = busy
        self._stopped = threading.Event()

    def run(self) -> None:
        self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self._stopped.set()

    def snapshot(self) -> Snapshot:
        now_ms = int(time.time() * 1000) if self._busy else 0
        first = self._lane * PARTITIONS
        partitions = tuple(
            PartitionSnapshot("t", first + one, now_ms, now_ms, now_ms - 1, 0, now_ms, now_ms, 50, remaining=0)
            for one in range(PARTITIONS)
        )
        took = Histogram((0,) * 15 + (now_ms,) * 3 + (0,) * (BUCKETS - 18), float(now_ms))
        return Snapshot(
            processed=now_ms,
            produced=now_ms,
            commits=now_ms,
            in_flight=now_ms,
            buffered=now_ms,
            handed_over=now_ms,
            handler_latency=took,
            partitions=partitions,
        )

    def pause(self, partitions: Any = None) -> None: ...
    def resume(self, partitions: Any = None) -> None: ...
    def adjust(self, *, max_concurrency: int | None = None, rates: Rates | None = None) -> None: ...
    def rule_keys(self, rules: Any) -> None: ...
    def pass_over(self, asked: Any, told: Any) -> None: ...
    def move(self, targets: Mapping[Name, Target], moved: Callable[[Mapping[Name, str]], None]) -> None: ...
    def replay(self, asked: Any, told: Any) -> None: ...

    def show(self, to_driver: Any) -> None: ...

    def liveness(self) -> Liveness:
        raise NotImplementedError

    def work(self) -> Work:
        raise NotImplementedError


def _handle(record: kl.Record) -> None: ...


PIPELINE = kl.Pipeline(kafka={"bootstrap.servers": "none:1", "group.id": "g"}, topics=["t"], handler=_handle)


def play(pipe: Connection[Any, Any], *, busy: bool) -> None:
    """A player's process: it runs the lanes that it is given, and returns how each ended."""
    sending = threading.Lock()

    def one(number: int, task: LaneTask) -> None:
        outcome = run_lane(task, PIPELINE, lambda _, task: Played(task.lane, busy=busy), 0)
        with sending:
            pipe.send((number, outcome))

    with suppress(EOFError):
        while True:
            number, shipment = pipe.recv()
            threading.Thread(target=one, args=(number, pickle.loads(shipment)), daemon=True).start()


class Player:
    """One player, from the driver's side. When it ends, all of its lanes' jobs have died."""

    def __init__(self, *, busy: bool) -> None:
        ours, theirs = get_context("spawn").Pipe()
        self._pipe = ours
        self.process = get_context("spawn").Process(target=play, args=(theirs,), kwargs={"busy": busy}, daemon=True)
        self.process.start()
        theirs.close()
        self._jobs: dict[int, Callable[[JobResult], None]] = {}
        self._lock = threading.Lock()
        self._number = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def submit(self, shipment: bytes, on_end: Callable[[JobResult], None]) -> None:
        with self._lock:
            self._number += 1
            self._jobs[self._number] = on_end
            self._pipe.send((self._number, shipment))

    def _serve(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, outcome = self._pipe.recv()
                self._jobs.pop(number)(outcome)
        for on_end in list(self._jobs.values()):
            on_end(LOST)


class Jobs:
    """Spark, as the supervisor sees it: a lane's job runs in the player that has its place."""

    def __init__(self, *, busy: bool) -> None:
        self._busy = busy
        self.players = [Player(busy=busy) for _ in range(PLAYERS)]

    def submit(self, lane: int, shipment: bytes, on_end: Callable[[JobResult], None]) -> None:
        place = lane % PLAYERS
        if not self.players[place].process.is_alive():
            self.players[place] = Player(busy=self._busy)
        self.players[place].submit(shipment, on_end)

    def cancel(self, lane: int) -> None: ...

    def executor_of(self, lane: int) -> str | None:
        return str(lane % 100)

    def silence(self) -> str:
        return ""

    def is_decommissioned(self, executor_id: str) -> bool:  # noqa: ARG002 - the protocol's
        return False

    def describe(self, lane: int, partitions: tuple[str, ...], figures: str) -> None: ...
    def join(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        for player in self.players:
            player.process.kill()
            player.process.join()


@dataclass
class Query:
    """A supervisor that runs."""

    supervisor: Supervisor
    jobs: Jobs

    def until_running(self, lanes: int, *, launched_again: int = 0) -> float:
        """Seconds until so many lanes run, and no others; so many of them for the second time."""
        begun = time.monotonic()
        while True:
            shown = self.supervisor.view.lanes
            states = [lane.state for lane in shown if lane.state != "removed"]
            if states == ["running"] * lanes and sum(lane.launches > 1 for lane in shown) >= launched_again:
                return time.monotonic() - begun
            if time.monotonic() - begun > PATIENCE_S:
                counts = {state: states.count(state) for state in set(states)}
                raise RuntimeError(f"{lanes} lanes do not run after {PATIENCE_S:g} s: {counts}")
            time.sleep(0.05)


def measure(lanes: int) -> dict[str, Any]:
    """The figures for so many lanes. Lanes that are killed are not logged one by one."""
    logging.getLogger("keylane.spark").setLevel(logging.ERROR)
    return {"lanes": lanes} | _measured(lanes) | {"rest_cores": _at_rest(lanes), "load": os.getloadavg()[0]}


@contextmanager
def _query(lanes: int, *, busy: bool) -> Iterator[Query]:
    plan = LanePlan(
        query=QueryName(str(uuid.uuid4()), str(uuid.uuid4()), None, "g", ("t",)),
        lanes=lanes,
        bounds=None,
        room=lambda: lanes,
        concurrency=10,
        cargo=b"",
        log_ends={},
        ending_offsets=None,
        lane_settings=lambda _: {},
        assignment=(),
        limits=RestartLimits(max_failures=10),
        drain_timeout_s=60.0,
        session_timeout_s=60.0,
        revoke_timeout_s=5.0,
        progress_interval_s=1.0,
        recent_progress=100,
        prepare=lambda _: None,
        committed=dict,
        closed=lambda: None,
    )
    jobs = Jobs(busy=busy)
    supervisor = Supervisor(plan, jobs, "127.0.0.1", "127.0.0.1", os.urandom(32), Listeners(plan.query, []))
    try:
        yield Query(supervisor, jobs)
    finally:
        supervisor.stop()
        supervisor.ended.wait(PATIENCE_S)
        jobs.close()


def _measured(lanes: int) -> dict[str, Any]:
    """Of busy lanes."""
    memory_mb = rss_mb()
    with _query(lanes, busy=True) as query:
        query.supervisor.start()
        start_s = query.until_running(lanes)
        time.sleep(SETTLE_S)
        before_s, begun = time.process_time(), time.monotonic()
        ages = []
        while time.monotonic() < begun + STEADY_S:
            time.sleep(LOOK_S)
            now_ms = time.time() * 1000
            ages += [now_ms - one.processed for one in query.supervisor.view.snapshots]
        cores = (time.process_time() - before_s) / (time.monotonic() - begun)
        ages.sort()
        figures = {
            "start_s": round(start_s, 2),
            "cores": round(cores, 3),
            "memory_mb": round(rss_mb() - memory_mb, 1),
            "age_p50_s": round(ages[len(ages) // 2] / 1000, 2),
            "age_max_s": round(ages[-1] / 1000, 2),
        }
        query.jobs.players[0].process.kill()
        figures["wave_s"] = round(query.until_running(lanes, launched_again=lanes // PLAYERS), 2)
        query.supervisor.set_lanes(lanes // 2)
        figures["fewer_s"] = round(query.until_running(lanes // 2), 2)
        query.supervisor.set_lanes(lanes)
        figures["more_s"] = round(query.until_running(lanes), 2)
        return figures


def _at_rest(lanes: int) -> float:
    """How much of a core lanes cost of which none has anything to do."""
    with _query(lanes, busy=False) as query:
        query.supervisor.start()
        query.until_running(lanes)
        time.sleep(SETTLE_S)
        before_s, begun = time.process_time(), time.monotonic()
        time.sleep(STEADY_S)
        return round((time.process_time() - before_s) / (time.monotonic() - begun), 3)


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
