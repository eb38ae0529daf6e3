"""Kills under a streaming query that writes exactly once: the driver, and on executors of their own an executor, a
worker and the broker, each at a step of a batch.

The judge is another library's reader of committed records, and the broker's list of open transactions.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from kit.cluster import home_in
from kit.processes import of_session
from kit.sink_kills import PLACES, Place, Storm, place
from kit.stages import kill

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("exactly_once_program.py")
PATIENCE_S = 600.0
ROWS = 40
"""Each time that the query is to have something to do."""
LOOK_S = 5.0
ANYWHERE_S = 15.0
"""From the start of a run on."""

ANYWHERE = "anywhere"
TO_THE_LIST = [
    f"{request}:{side}:1" for request in ("Open", "Init", "Read", "Describe", "Add") for side in ("before", "after")
]
FROM_THE_LIST_ON = [
    "Decide:before:1",
    "Decide:after:1",  # the list is decided, and nothing has ended
    "End:before:1",
    "End:after:1",
    "End:before:2",  # between two ends
    "Append:before:2",  # all have ended, and nothing says so
    "Decide:after:2",
    "Commit:after:1",  # `done` is written, and Spark's log does not have the batch
]
OF_TASK = ["Task:begin:1", "Task:rows:1", "Task:end:1"]
OF_BROKER = ["Decide:before:1", "Decide:after:1", "End:before:1", "End:before:2", "Append:before:2", "Commit:after:1"]
KINDS = {
    "the driver, to the list": [f"{point} driver" for point in TO_THE_LIST],
    "the driver, from the list on": [f"{point} driver" for point in FROM_THE_LIST_ON],
    "the driver, in tasks and anywhere": [f"{point} driver" for point in (*OF_TASK, *[ANYWHERE] * 4)],
    "workers and executors": [f"{point} {whom}" for point in (*OF_TASK, *OF_TASK) for whom in ("worker", "executor")],
    "the broker": [f"{point} broker" for point in (*OF_TASK, *OF_BROKER)],
}


def master(whose: str) -> str:
    """All that a driver has started dies with it, and comes again after each kill: so it is one JVM, and not three."""
    return "local[2]" if "driver" in whose else "local-cluster[2,1,1024]"


class Query:
    """The program and its rows."""

    def __init__(self, master: str, servers: str, folder: Path) -> None:
        self.folder, self.starts = folder, 0
        self._master, self._servers = master, servers
        self._environment = os.environ | {"SPARK_LOCAL_DIRS": str(folder / "local")}
        if "cluster" in master:
            self._environment |= {"SPARK_HOME": str(home_in(folder))}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), self._master, self._servers, "in", "out"]
        with (self.folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self.folder), *options],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        return self._process

    def go_on(self) -> None:
        """Start it, unless it runs: it ends when its driver is killed, or when a batch has failed."""
        if self._process is None or self._process.poll() is not None:
            self.start("goes-on")

    def close(self) -> None:
        """SIGKILL to all of its processes; those of drivers that died before have ended by themselves, or end now."""
        if self._process is not None:
            kill(of_session(self._process.pid))
            self._process.wait()

    def fill(self, numbers: range) -> None:
        with BulkProducer(self._servers) as producer:
            for number in numbers:
                producer.produce(kl.Output("in", b"key-%d" % (number % 7), b"%d" % number))

    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-5_000:]


def until_dead(query: Query, storm: Storm) -> None:
    """The query gets rows when it has none, and is started when it is gone, until the kill has happened."""
    begun = looked = time.monotonic()
    while not (query.folder / "died").exists():
        query.go_on()
        now = time.monotonic()
        assert now - begun < PATIENCE_S, f"{(query.folder / 'die').read_text()} was not reached: {query.log()}"
        if now - looked > LOOK_S:
            if len(storm.seen(now=True)) == storm.rows:  # all has passed the step already
                query.fill(storm.more(ROWS))
            looked = time.monotonic()
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("whose", KINDS)
def test_each_row_is_seen_once(
    java: None, tmp_path: Path, whose: str, where: str, record_property: Callable[[str, object], None]
) -> None:
    with place(where, tmp_path) as brokers:
        storm = Storm(brokers.servers, "out", brokers.replication)
        query = Query(master(whose), brokers.servers, tmp_path)
        try:
            kill_each(KINDS[whose], query, storm, brokers)
        finally:
            query.close()
        storm.judge()
    record_property("kills", dict(storm.kills))
    record_property("starts", query.starts)
    for name in ("spark-home", "local", "checkpoint"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)


def kill_each(kinds: list[str], query: Query, storm: Storm, brokers: Place) -> None:
    """In an order of the seed's; then the query ends by itself."""
    chance = random.Random(20261124)
    Admin({"bootstrap.servers": brokers.servers}).create_topics({"in": 3}, replication_factor=brokers.replication)
    for kind in chance.sample(kinds, len(kinds)):
        for name in ("died", "go"):
            (query.folder / name).unlink(missing_ok=True)
        query.fill(storm.more(ROWS))
        point, whom = kind.split()
        if point == ANYWHERE:
            query.go_on()
            time.sleep(chance.random() * ANYWHERE_S)
            query.close()
        else:
            (query.folder / "die").write_text(kind)
            until_dead(query, storm)
        if whom == "broker":
            back = brokers.kill(chance)
            (query.folder / "go").touch()  # on its own, without the broker
            back()
        storm.killed(whom, f"at {point}")
    query.close()  # a run that began before the last rows ends without them
    while (code := query.start().wait(PATIENCE_S)) != 0:
        assert query.starts < 3 * len(kinds), f"exit code {code}: {query.log()}"
