"""Kills at twelve points on a standalone cluster of two hosts, of the exactly-once sink and of carry-over: workers,
executors and whole nodes in tasks, and the driver between any two of its steps.

`test_exactly_once_kills.py` and `test_stream_kills.py` kill more, on executors of one host.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from kit.cluster import StandaloneCluster
from kit.processes import of_session
from kit.sink_kills import Storm
from kit.stages import kill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


HERE = Path(__file__).parent
PATIENCE_S = 300.0
ROWS = 50
"""Each time that a query is to have something to do."""
LOOK_S = 5.0
IN_FLIGHT = 100
"""Rows of a batch of carry-over, all of which a kill may make run again."""

EXACTLY_ONCE = (
    "Task:begin:1 worker",
    "Task:begin:1 node",
    "Task:rows:1 executor",
    "Task:rows:1 node",
    "Task:end:1 worker",
    "Task:end:1 node",
    "Decide:before:1 driver",
    "Decide:after:1 driver",
    "End:before:1 driver",
    "End:before:2 driver",
    "Append:before:2 driver",
    "Commit:after:1 driver",
)
CARRY_OVER = (
    "Call:before:1 worker",
    "Call:before:1 executor",
    "Call:before:1 node",
    "Call:after:1 worker",
    "Call:after:1 executor",
    "Call:after:1 node",
    "List:before:1 driver",
    "List:after:1 driver",
    "Sink:before:1 driver",
    "Sink:after:1 driver",
    "Commit:before:1 driver",
    "Commit:after:1 driver",
)


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", hosts=("127.0.0.1", "127.0.0.2")) as made:
        yield made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as made:
        yield made


class Query:
    """A program that is started again when it has ended."""

    def __init__(self, folder: Path, cluster: StandaloneCluster, *command: str) -> None:
        self._folder, self._cluster, self._command = folder, cluster, command
        self._process: subprocess.Popen[bytes] | None = None

    def go_on(self) -> None:
        self._cluster.replace_dead()
        if self._process is None or self._process.poll() is not None:
            with (self._folder / "driver.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, *self._command],
                    env=os.environ | {"SPARK_LOCAL_DIRS": str(self._folder / "local")},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def until(self, condition: Callable[[], bool], what: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        looked = begun = time.monotonic()
        while not condition():
            self.go_on()
            now = time.monotonic()
            assert now - begun < PATIENCE_S, f"{what}: {(self._folder / 'driver.log').read_text()[-5_000:]}"
            if now - looked > LOOK_S:
                meanwhile()
                looked = now
            time.sleep(0.05)

    def kill_each(self, points: tuple[str, ...], more: Callable[[], object], is_idle: Callable[[], bool]) -> None:
        """In an order of the seed's. `more`: it gets something to do, now and whenever it is idle before a kill."""
        for point in random.Random(20261127).sample(points, len(points)):
            (self._folder / "died").unlink(missing_ok=True)
            more()
            (self._folder / "die").write_text(point)
            self.until((self._folder / "died").exists, point, lambda: is_idle() and more())

    def close(self) -> None:
        if self._process is not None:
            kill(of_session(self._process.pid))
            self._process.wait()


def fill(broker: BrokerProcess, topic: str, numbers: range) -> None:
    with BulkProducer(broker.bootstrap) as producer:
        for number in numbers:
            producer.produce(kl.Output(topic, b"key-%d" % (number % 23), b"%d" % number))


@pytest.mark.soak
def test_the_exactly_once_sink_has_each_row_once(
    cluster: StandaloneCluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"in": 3})
    storm = Storm(broker.bootstrap, "out")
    program = str(HERE / "exactly_once_program.py")
    query = Query(tmp_path, cluster, program, cluster.url, broker.bootstrap, "in", "out", str(tmp_path), "goes-on")
    try:
        query.kill_each(
            EXACTLY_ONCE,
            lambda: fill(broker, "in", storm.more(ROWS)),
            lambda: len(storm.seen(now=True)) == storm.rows,
        )
        query.until(lambda: len(storm.seen(now=True)) >= storm.rows, "the rest")
    finally:
        query.close()
    storm.judge()


@pytest.mark.soak
def test_carry_over_loses_and_repeats_no_row(cluster: StandaloneCluster, broker: BrokerProcess, tmp_path: Path) -> None:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"rows": 3})
    program, filled = str(HERE / "stream_program.py"), 0
    query = Query(tmp_path, cluster, program, cluster.url, broker.bootstrap, "rows", str(tmp_path), "watched")

    def more() -> None:
        nonlocal filled
        fill(broker, "rows", range(filled, filled + ROWS))
        filled += ROWS

    def written() -> list[int]:
        files = (tmp_path / "out").glob("*.json")
        return sorted(number for file in files for number in json.loads(file.read_text())["numbers"])

    try:
        query.kill_each(CARRY_OVER, more, lambda: len(set(written())) == filled)
        query.until(lambda: len(set(written())) >= filled, "the rest")
    finally:
        query.close()
    calls = Counter((tmp_path / "calls").read_text().split())
    again = calls.total() - len(calls)
    print(f"{len(CARRY_OVER)} kills: {len(written())} rows of {filled}, {again} calls again", flush=True)  # noqa: T201
    assert written() == list(range(filled))
    assert again <= len(CARRY_OVER) * IN_FLIGHT
