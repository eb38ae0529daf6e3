"""Kills under a streaming query with carry-over: the driver, an executor or a worker in whatever it does, the broker
and the database.

The sink is idempotent by batch, so a row that is lost, wrong or there twice shows in its files. KEYLANE_STREAM_KILLS
says how many kills (51); a query with trigger availableNow has a fifth of them.
"""

from __future__ import annotations

import json
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
from peers.postgres import PostgresServer, find_postgres

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.spark.structured.carry_lists import CarryList
from kit.cluster import home_in
from kit.processes import is_alive, of_session, parent, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = Path(__file__).with_name("stream_program.py")
KILLS = int(os.environ.get("KEYLANE_STREAM_KILLS", "51"))
RECORDS_A_KILL = 200
BATCH = 100
"""Of the program."""
PATIENCE_S = 240.0
"""Between two batches: for a driver and its executors to come back on a busy machine."""
LOG_CHARACTERS = 5_000


class Query:
    """The program, restarted when it is gone, and what its sink has."""

    def __init__(self, servers: str, topic: str, folder: Path, *arguments: str) -> None:
        master = "local-cluster[2,1,1024]"
        self._command = [sys.executable, str(PROGRAM), master, servers, topic, str(folder), *arguments]
        self._folder = folder
        self._log = (folder / "driver.log").open("ab")
        self._environment = os.environ | {"SPARK_HOME": str(home_in(folder)), "SPARK_LOCAL_DIRS": str(folder / "local")}
        self._sessions: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def go_on(self) -> None:
        """Start it, unless it runs: a query may end by itself when its broker or an executor goes."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=self._log, stderr=self._log, start_new_session=True
            )
            self._sessions.append(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def starts(self) -> int:
        return len(self._sessions)

    def kill(self) -> None:
        """SIGKILL to the driver's process; its JVM and executors end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Returns when all that the drivers started is gone, too: their JVMs, the executors and the workers."""
        self.kill()
        self._log.close()
        deadline = time.monotonic() + PATIENCE_S
        while left := set().union(*map(of_session, self._sessions)):
            assert time.monotonic() < deadline, f"still there: {[words(pid) for pid in left]}"
            time.sleep(0.1)

    def log(self) -> str:
        """The end of what the drivers wrote."""
        return (self._folder / "driver.log").read_text(errors="replace")[-LOG_CHARACTERS:]

    def batches(self) -> dict[int, dict[str, list[int]]]:
        return {int(file.stem): json.loads(file.read_text()) for file in (self._folder / "out").glob("*.json")}

    def kill_a_worker(self) -> bool:
        """A Python worker that made rows of the last batches; False when none of them lives any more."""
        for worker in self._workers():
            os.kill(worker, signal.SIGKILL)
            return True
        return False

    def _workers(self) -> Iterator[int]:
        workers = [pid for _, one in sorted(self.batches().items())[-3:] for pid in one["workers"]]
        return (worker for worker in reversed(workers) if is_alive(worker))

    def kill_an_executor(self) -> bool:
        """One whose worker made rows of the last batches; False when none of them lives any more."""
        for worker in self._workers():
            executor = parent(parent(worker))  # of the worker's daemon
            if any(b"CoarseGrainedExecutorBackend" in word for word in words(executor)):
                os.kill(executor, signal.SIGKILL)
                return True
        return False


def fill(servers: str, topic: str, numbers: range) -> None:
    with BulkProducer(servers) as producer:
        for number in numbers:
            producer.produce(kl.Output(topic, b"key-%d" % (number % 23), b"%d" % number))


def spoil(servers: str, topic: str, numbers: range) -> None:
    """Records that the service refuses for good."""
    with BulkProducer(servers) as producer:
        for number in numbers:
            producer.produce(kl.Output(topic, b"key-%d" % (number % 23), b"%d" % -number))


def until(condition: Callable[[], object], query: Query) -> None:
    seen, deadline = -1, 0.0
    while not condition():
        query.go_on()
        if (batches := len(query.batches())) > seen:
            seen, deadline = batches, time.monotonic() + PATIENCE_S
        assert time.monotonic() < deadline, f"no batch after {seen} in {PATIENCE_S:.0f} s: {query.log()}"
        time.sleep(0.1)


def numbers(query: Query) -> Iterator[int]:
    for one in query.batches().values():
        yield from one["numbers"]


@pytest.mark.soak
def test_no_kill_loses_a_row_or_makes_one_twice(java: None, tmp_path: Path) -> None:
    chance = random.Random(20261121)
    kinds = list(islice(cycle(("executor", "driver", "executor", "broker")), KILLS))
    chance.shuffle(kinds)
    done: dict[str, int] = {}
    filled = 0
    with BrokerProcess(tmp_path / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"rows": 3})
        query = Query(broker.bootstrap, "rows", tmp_path)
        try:
            for kind in kinds:
                seen = len(query.batches())
                fill(broker.bootstrap, "rows", range(filled, filled + RECORDS_A_KILL))
                filled += RECORDS_A_KILL
                until(lambda: len(query.batches()) > seen, query)  # noqa: B023 - called here
                time.sleep(chance.random() * 2)  # so that the kill falls anywhere in a batch
                if kind == "driver" or (kind == "executor" and not query.kill_an_executor()):
                    kind = "driver"
                    query.kill()
                elif kind == "broker":
                    broker.kill()
                    broker.start()
                done[kind] = done.get(kind, 0) + 1
                print(f"{sum(done.values())} of {KILLS}: {kind}, {len(query.batches())} batches", flush=True)  # noqa: T201
            behind, since = filled - len(set(numbers(query))), time.monotonic()
            until(lambda: len(set(numbers(query))) >= filled, query)
            print(f"{behind} rows were to come after the last kill; {time.monotonic() - since:.0f} s")  # noqa: T201
        finally:
            query.close()
    found = sorted(numbers(query))
    print(f"{done} kills, {query.starts} starts, {len(query.batches())} batches, {len(found)} rows of {filled}")  # noqa: T201
    assert found == list(range(filled))
    assert sum(done.values()) == KILLS
    for name in ("spark-home", "local"):
        shutil.rmtree(tmp_path / name)


@pytest.mark.soak
def test_no_kill_loses_or_repeats_an_effect_in_a_database(java: None, tmp_path: Path) -> None:
    """What runs again after a kill is handed on; the database is asked by another client."""
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    import psycopg

    chance = random.Random(20261124)
    kinds = list(islice(cycle(("worker", "executor", "worker", "driver", "worker", "database")), KILLS))
    chance.shuffle(kinds)
    done: dict[str, int] = {}
    filled = 0
    with BrokerProcess(tmp_path / "data") as broker, PostgresServer() as server:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"rows": 3})
        with psycopg.connect(server.conninfo) as database:
            database.execute("CREATE TABLE effects (number INTEGER)")
        query = Query(broker.bootstrap, "rows", tmp_path, server.conninfo)
        try:
            for kind in kinds:
                seen = len(query.batches())
                fill(broker.bootstrap, "rows", range(filled, filled + RECORDS_A_KILL))
                filled += RECORDS_A_KILL
                until(lambda: len(query.batches()) > seen, query)  # noqa: B023 - called here
                time.sleep(chance.random() * 2)  # so that the kill falls anywhere in a batch
                if kind == "database":
                    server.kill()
                    server.start()
                elif (kind == "worker" and not query.kill_a_worker()) or (
                    kind == "executor" and not query.kill_an_executor()
                ):
                    kind = "driver"
                if kind == "driver":
                    query.kill()
                done[kind] = done.get(kind, 0) + 1
                print(f"{sum(done.values())} of {KILLS}: {kind}, {len(query.batches())} batches", flush=True)  # noqa: T201
            until(lambda: len(set(numbers(query))) >= filled, query)
        finally:
            query.close()
        with psycopg.connect(server.conninfo) as database:
            effects = sorted(number for (number,) in database.execute("SELECT number FROM effects"))
            kept = [size for (size,) in database.execute("SELECT length(outputs) FROM keylane_processed")]
    found = sorted(numbers(query))
    print(f"{done} kills, {query.starts} starts, {len(query.batches())} batches, {len(effects)} effects")  # noqa: T201
    assert effects == list(range(filled)), "each once, by SQL"
    assert found == list(range(filled)), "each in the sink once"
    assert len(kept) <= 3 * BATCH, "what is before the last batches is purged"
    for name in ("spark-home", "local"):
        shutil.rmtree(tmp_path / name)


@pytest.mark.soak
def test_available_now_ends_when_all_is_written_or_dead_whatever_was_killed(java: None, tmp_path: Path) -> None:
    """The sink has no record twice, and it and the dead-letter topic, which is at least once, have all of them."""
    kills = max(2, KILLS // 5)
    records, refused = 150, 7  # before each kill; the second kind for good
    chance = random.Random(20261123)
    filled = 0
    with BrokerProcess(tmp_path / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"rows": 3, "rows.dead": 1})
        query = Query(broker.bootstrap, "rows", tmp_path, "available-now")
        try:
            for kill in range(kills):
                seen = len(query.batches())
                fill(broker.bootstrap, "rows", range(filled, filled + records))
                spoil(broker.bootstrap, "rows", range(1 + kill * refused, 1 + (kill + 1) * refused))
                filled += records
                until(lambda: len(query.batches()) > seen, query)  # noqa: B023 - called here
                time.sleep(chance.random() * 4)  # in a batch, or in the wait for a retry
                if kill % 3 != 1 or not query.kill_an_executor():
                    query.kill()
            query.kill()  # a run that began before the last records ends without them
            until(lambda: query.exit_code == 0, query)
        finally:
            query.close()
        dead = [int(record.value or b"") for some in read_to_end(broker.bootstrap, "rows.dead") for record in some]
    found = sorted(numbers(query))
    lists = [CarryList.from_json(file.read_text()) for file in (tmp_path / "lists").glob("*.json")]
    print(f"{kills} kills, {query.starts} starts, {len(query.batches())} batches, {len(found)} rows, {len(dead)} dead")  # noqa: T201
    assert max(lists, key=lambda one: one.batch).records() == []
    assert len(found) == len(set(found)), "a record was written twice"
    assert {*found, *dead} == {*range(filled), *range(-kills * refused, 0)}
    assert {one for one in dead if one < 0} == set(range(-kills * refused, 0))
    for name in ("spark-home", "local"):
        shutil.rmtree(tmp_path / name)
