"""Kills under a streaming query that writes exactly once, on executors of their own: the driver, an executor, a worker
and the broker, each at a step of a batch.

The oracle is another library's reader of committed records, and the broker's list of open transactions.
KEYLANE_SINK_KILLS says how many kills (40) each broker's test has.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.open_transactions import TransactionsClient
from keylane.spark.structured.exact.record import task_prefix
from kit.cluster import home_in
from kit.committed import committed_values
from kit.processes import of_session

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("exactly_once_program.py")
KILLS = int(os.environ.get("KEYLANE_SINK_KILLS", "40"))
PATIENCE_S = 600.0
ROWS = 40
"""Each time that the query is to have something to do."""
LOOK_S = 5.0

OF_DRIVER = [
    *(f"{request}:{side}:1" for request in ("Open", "Init", "Read", "Describe", "Add") for side in ("before", "after")),
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
KINDS = [
    *(f"{point} driver" for point in (*OF_DRIVER, *OF_TASK)),
    *(f"{point} {whom}" for point in OF_TASK for whom in ("worker", "executor", "worker", "executor")),
    *(f"{point} broker" for point in (*OF_TASK, "Decide:before:1", "Decide:after:1", "End:before:1", "End:before:2")),
    "Append:before:2 broker",
    "Commit:after:1 broker",
]


class Query:
    """The program, on two executors, and its rows."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers, self.folder, self.filled, self.starts = servers, folder, 0, 0
        self._environment = os.environ | {"SPARK_HOME": str(home_in(folder)), "SPARK_LOCAL_DIRS": str(folder / "local")}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), "local-cluster[2,1,1024]", self.servers, "in", "out", str(self.folder)]
        with (self.folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *options], env=self._environment, stdout=log, stderr=log, start_new_session=True
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
            for pid in of_session(self._process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait()

    def fill(self) -> None:
        with BulkProducer(self.servers) as producer:
            for number in range(self.filled, self.filled + ROWS):
                producer.produce(kl.Output("in", b"key-%d" % (number % 7), b"%d" % number))
        self.filled += ROWS

    def seen(self, *, now: bool) -> list[int]:
        return sorted(map(int, committed_values(self.servers, "out", now=now)))

    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-5_000:]


def until_dead(query: Query) -> None:
    """The query gets rows when it has none, and is started when it is gone, until the kill has happened."""
    begun = looked = time.monotonic()
    while not (query.folder / "died").exists():
        query.go_on()
        now = time.monotonic()
        assert now - begun < PATIENCE_S, f"{(query.folder / 'die').read_text()} was not reached: {query.log()}"
        if now - looked > LOOK_S:
            if len(query.seen(now=True)) == query.filled:  # all has passed the step already
                query.fill()
            looked = time.monotonic()
        time.sleep(0.05)


def storm(servers: str, folder: Path, replication: int, break_a_broker: Callable[[random.Random], None]) -> None:
    chance = random.Random(20261124)
    kinds = list(islice(cycle(chance.sample(KINDS, len(KINDS))), KILLS))
    Admin({"bootstrap.servers": servers}).create_topics({"in": 3, "out": 2}, replication_factor=replication)
    query = Query(servers, folder)
    done: dict[str, int] = {}
    try:
        for kind in kinds:
            for name in ("died", "go"):
                (folder / name).unlink(missing_ok=True)
            query.fill()
            (folder / "die").write_text(kind)
            until_dead(query)
            whom = kind.rpartition(" ")[2]
            if whom == "broker":
                break_a_broker(chance)
                (folder / "go").touch()
            done[whom] = done.get(whom, 0) + 1
            seen = query.seen(now=True)
            assert len(seen) == len(set(seen)), f"a row is there twice after {kind}"
            print(f"{sum(done.values())} of {KILLS}: {kind}, {len(seen)} of {query.filled} rows", flush=True)  # noqa: T201
        query.close()  # a run that began before the last rows ends without them
        while (code := query.start().wait(PATIENCE_S)) != 0:
            assert query.starts < 3 * KILLS, f"exit code {code}: {query.log()}"
    finally:
        query.close()
    found = query.seen(now=False)
    print(f"{done} kills, {query.starts} starts, {len(found)} rows of {query.filled}")  # noqa: T201
    assert found == list(range(query.filled))
    with TransactionsClient({"bootstrap.servers": servers}) as client:
        assert client.open_ids(task_prefix("out"), "out") == (0, []), "a transaction is left open"
    for name in ("spark-home", "local", "checkpoint"):
        shutil.rmtree(folder / name)


@pytest.mark.soak
def test_each_row_is_seen_once_on_the_embedded_broker(java: None, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        def again(_: random.Random) -> None:
            broker.kill()
            broker.start()

        storm(broker.bootstrap, tmp_path, 1, again)


@pytest.mark.soak
def test_each_row_is_seen_once_on_apache_kafka(java: None, tmp_path: Path) -> None:
    import peers

    if missing := peers.missing():
        pytest.skip(missing)
    with peers.ApacheKafka({}) as kafka:

        def again(_: random.Random) -> None:
            kafka.kill()
            kafka.start()

        storm(kafka.bootstrap, tmp_path, 1, again)


@pytest.mark.soak
def test_each_row_is_seen_once_on_three_nodes(java: None, tmp_path: Path) -> None:
    import peers
    from peers.cluster import ApacheCluster

    if missing := peers.missing():
        pytest.skip(missing)
    with ApacheCluster() as cluster:

        def another(chance: random.Random) -> None:
            node = chance.choice(cluster.running)
            cluster.kill(node)
            cluster.start(node)
            cluster.wait_until_in_sync()

        storm(cluster.bootstrap, tmp_path, 3, another)
