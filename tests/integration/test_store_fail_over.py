"""A store whose database goes back in time: PostgreSQL fails over, under load, to a replica that was behind.

Each round a copy of the primary streams asynchronously, is cut off, and takes over a moment later: what was committed
in between is gone, in the middle of a run. A supervisor starts the member again whenever it ends.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
from peers.postgres import find_postgres

from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output
from kit.either_broker import either_broker
from kit.replicated_postgres import ReplicatedPostgres
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAM = """
import keylane as kl
from keylane.delivery import PostgresStore

def book(record, context):
    context.transaction.execute("INSERT INTO booked VALUES (%s, %s)", (record.partition, record.offset))

pipeline = kl.Pipeline(
    kafka={{"bootstrap.servers": "{servers}", "group.id": "booking", "session.timeout.ms": 6000}},
    topics=["orders"], handler=book, offset_reset="earliest", workers=kl.Threads(8), max_concurrency=8,
    retries=kl.Retries(max_attempts=None, delay_ms=100), commit=kl.Commit(interval_ms=100), drain_timeout_ms=2000,
    delivery=kl.ExactlyOnce(PostgresStore("{conninfo}", timeout_ms=5000), unseen_commits="{unseen_commits}"),
)
"""
PARTITIONS = 3

ROUND_S = 180.0
"""A member that ends waits for its last commit, and its successor for the end of its session."""


class Supervisor:
    """Starts the member again whenever it ends."""

    def __init__(self, folder: Path, servers: str, conninfo: str) -> None:
        self._files = {}
        for rule in ("error", "rewind"):
            self._files[rule] = folder / f"booking_{rule}.py"
            text = PROGRAM.format(servers=servers, conninfo=conninfo, unseen_commits=rule)
            self._files[rule].write_text(text)
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = self.refusals = self.losses = 0

    def look(self) -> None:
        """Start the member, as it is; and to rewind, once it was refused."""
        if self._process is not None and self._process.poll() is None:
            return
        said = self._said()
        self.refusals += "that this store has not seen" in said
        self.losses += "the store has lost" in said
        rule = "rewind" if "that this store has not seen" in said else "error"
        with self._log.with_name("logs").open("a") as logs:
            logs.write(f"{said}\n--- {rule}\n")
        self._log.write_text("")
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "keylane", "run", str(self._files[rule])]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.starts += 1

    def _said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


@pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed (/usr/lib/postgresql)")
@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.full), pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["keylane", "apache"])
def test_a_fail_over_to_a_replica_that_was_behind_loses_and_repeats_nothing(
    tmp_path: Path, kind: str, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("SEED", "20261127"))
    chance = random.Random(seed)
    with either_broker(kind, tmp_path) as broker, ReplicatedPostgres() as database:
        servers = broker.bootstrap
        Admin({"bootstrap.servers": servers}).create_topics({"orders": PARTITIONS})
        with psycopg.connect(database.conninfo) as connection:
            connection.execute("CREATE TABLE booked (part int, at bigint)")
        supervisor = Supervisor(tmp_path, servers, database.conninfo)
        produced, gone = 0, 0

        def booked() -> Counter[tuple[int, int]]:
            with psycopg.connect(database.conninfo) as connection:
                return Counter(connection.execute("SELECT part, at FROM booked").fetchall())

        def goes_on(count: int) -> bool:
            supervisor.look()
            return len(booked()) >= count

        try:
            for number in range(rounds):
                if number:
                    database.add_replica()
                with BulkProducer(servers) as producer:
                    for _ in range(3_000):
                        producer.produce(Output("orders", key=b"%d" % produced, value=b"order", partition=produced % 3))
                        produced += 1
                until(partial(goes_on, produced - 2_700), "it runs")
                database.cut_off_replica()
                time.sleep(chance.uniform(0.05, 1.5))  # of work that will be lost
                had = len(booked())
                database.fail_over()
                gone += max(0, had - len(booked()))
                until(partial(goes_on, produced), f"all of {produced} (seed {seed}, round {number})", ROUND_S)
        finally:
            supervisor.end()
        effects = booked()
    found = {"gone": gone, "starts": supervisor.starts, "refused": supervisor.refusals, "noticed": supervisor.losses}
    for name, value in found.items():
        record_property(name, value)
    print(found)  # noqa: T201 - what a soak has seen
    assert gone > 0, "the replica was never behind"
    assert len(effects) == produced
    assert set(effects.values()) == {1}
