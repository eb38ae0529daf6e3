"""Links that carry nothing any more, and say so to nobody: broker and members are on hosts of their own (`kit.net`).

The verdict is from outside: a ledger of what handlers ran, and the group's commits as a third host reads them.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from confluent_kafka import Producer
from peers.postgres import PostgresServer, find_postgres

import keylane as kl
from keylane import http
from keylane.broker.process import BrokerProcess
from keylane.delivery import PostgresStore
from kit import net as nets
from kit.http_service import Service
from kit.ledger import Ledger
from kit.net import Net
from kit.processes import memory_mb, starved_s
from kit.stage import Member, Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.ledger import Look

pytestmark = pytest.mark.soak

IDLE_S = 30.0
SETTINGS = {
    "keylane.allow.unauthenticated.remote.clients": "true",  # the hosts are reached by nobody else
    "connections.max.idle.ms": str(int(IDLE_S * 1_000)),
}
"""The broker's."""
VANISHING = 2_000
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request of version 0, without a client's name."""
PARTITIONS = 4
KEYS = 32
SESSION_S = 6.0
"""Of `Stage`'s groups."""
CUT_S = SESSION_S + 4
"""From when the others go on."""
SILENT_S = 30.0
"""After which a database that says nothing has failed whoever waits for it."""
BOUND_S = 5.0
"""Beyond a session, from a cut to new commits of each partition: a rebalance, and what waited meanwhile."""


@pytest.fixture
def net() -> Iterator[Net]:
    if reason := nets.missing():
        pytest.skip(reason)
    with Net("broker", "database", "judge", "one", "service", "two") as net:
        yield net


@pytest.fixture
def broker(net: Net, tmp_path: Path) -> Iterator[BrokerProcess]:
    with net.inside("broker") as host:
        started = BrokerProcess(tmp_path / "data", host=host, settings=SETTINGS)
    with started:
        yield started


@pytest.fixture
def database(net: Net) -> Iterator[PostgresServer]:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql)")
    with ExitStack() as running:
        with net.inside("database") as host:
            started = running.enter_context(PostgresServer(host))
        yield started


@pytest.fixture
def service(net: Net) -> Iterator[Service]:
    with ExitStack() as running:
        with net.inside("service") as host:
            started = running.enter_context(Service(host=host))
        yield started


class Took(NamedTuple):
    """In seconds."""

    all_s: float
    starved_s: float
    """In which something waited for a processor: a machine's that other work keeps busy."""

    def __str__(self) -> str:
        return f"{self.all_s:.1f} s (processes waited for a processor for {self.starved_s:.1f} s of them)"

    def is_within(self, bound_s: float) -> bool:
        return self.all_s - self.starved_s < bound_s


class Watched:
    """Members at work on a topic that grows, and what is seen of them from the judge's host."""

    def __init__(self, stage: Stage, ledger: Ledger, members: list[Member]) -> None:
        self.stage, self.ledger, self._members = stage, ledger, members
        self._looks: list[Look] = []
        self._producer = Producer({"bootstrap.servers": stage.servers})
        self._count = 0

    def until(self, condition: Callable[[], bool], what: str) -> Took:
        """Records come in until it holds."""
        began, starved = time.monotonic(), starved_s()

        def holds() -> bool:
            assert all(member.process.poll() is None for member in self._members), "a member has ended"
            for _ in range(4):
                key = self._count % KEYS
                self._producer.produce(self.stage.topic, b"", b"%d" % key, partition=key % PARTITIONS)
                self._count += 1
            assert self._producer.flush(30) == 0
            committed = self.stage.committed()
            self._looks.append((self.ledger.length(), committed))
            return condition()

        until(holds, what)
        return Took(time.monotonic() - began, starved_s() - starved)

    def stay(self, seconds: float) -> None:
        """All stays as it is for so long, and records come in."""
        over = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > over, f"{seconds} s are over")

    def goes_on(self) -> Callable[[], bool]:
        """Of each partition something is complete that came in from now on."""
        ends = self.stage.ends()

        def is_so() -> bool:
            committed = self._looks[-1][1]
            return all(name in committed and committed[name].base > end for name, end in ends.items())

        return is_so

    def works(self, member: Member) -> Callable[[], bool]:
        """It has begun something from now on."""
        before = self.ledger.length()
        return lambda: any(one.member == member.name for one in list(self.ledger.entries())[before:])

    def finish(self) -> None:
        until(self.stage.all_is_committed, "all is committed")
        for member in self._members:
            member.process.send_signal(signal.SIGTERM)
        for member in self._members:
            member.end()

    def check(self) -> None:
        records = self.stage.sources()
        assert len(records) == self._count
        done = self.ledger.done_times()
        lost = {source for source, _ in records} - done.keys()
        assert not lost, f"lost: {sorted(lost)[:10]}"
        disorders = self.ledger.disorders("key", records)
        assert disorders == [], f"{len(disorders)} disorders: {disorders[:10]}"
        again = self.ledger.run_again(self._looks, "key")
        assert again == [], f"acknowledged, and run again: {again[:10]}"
        sys.stdout.write(f"{len(records)} records, {sum(done.values())} runs, {len(self._looks)} looks\n")


@pytest.mark.parametrize("way", ["both", "from it", "to it"])
def test_a_member_is_cut_off_for_longer_than_its_session(
    net: Net, broker: BrokerProcess, tmp_path: Path, way: str
) -> None:
    with net.inside("judge"):
        stage = Stage(broker.bootstrap, "silence")
        stage.create(PARTITIONS)
        ledger = Ledger(tmp_path / "ledger")
        options = {"kafka": stage.kafka, "topic": stage.topic, "ledger": str(ledger.path), "ends": False}
        with net.inside("one"):
            one = Member(**options)
        with net.inside("two"):
            two = Member(**options)
        with one, two:
            watched = Watched(stage, ledger, [one, two])
            watched.until(watched.works(one), "the first works")
            watched.until(watched.works(two), "the second works")
            goes_on = watched.goes_on()
            if way in ("both", "from it"):
                net.cut("one", None)
            if way in ("both", "to it"):
                net.cut(None, "one")
            took = watched.until(goes_on, "all partitions go on without it")
            watched.stay(CUT_S)
            net.heal()
            back = watched.until(watched.works(one), "it works again")
            watched.until(watched.goes_on(), "all partitions go on with it")
            watched.finish()
        watched.check()
        ledger.close()
    sys.stdout.write(f"cut off ({way}): the others went on after {took}; it was back {back} after it was healed\n")
    assert took.is_within(SESSION_S + BOUND_S)
    assert back.is_within(SESSION_S + BOUND_S)


@pytest.mark.parametrize("way", ["both", "to it"])
def test_a_database_is_cut_off_under_exactly_once(
    net: Net, broker: BrokerProcess, database: PostgresServer, way: str
) -> None:
    """Handlers that wait for its answer fail, and are tried again; none waits for ever."""
    failures: list[float] = []
    """When an attempt failed."""

    def note(record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("INSERT INTO noted VALUES (%s, %s)", (record.partition, record.offset))

    with net.inside("judge"):
        with psycopg.connect(database.conninfo, autocommit=True) as sql:
            sql.execute("CREATE TABLE noted (part int, at bigint)")
            stage = Stage(broker.bootstrap, "database")
            stage.create(PARTITIONS)
            pipeline = stage.pipeline(
                note,
                delivery=kl.ExactlyOnce(PostgresStore(database.conninfo)),
                retries=kl.Retries(max_attempts=None, max_delay_ms=1_000),
                on_failure=lambda *_: failures.append(time.monotonic()),
                max_concurrency=8,
                commit=kl.Commit(interval_ms=100),
            )
            stage.fill((b"%d" % (number % KEYS), number % KEYS % PARTITIONS) for number in range(200))
            with net.inside("one"):
                member = ThreadMember(pipeline, "one")
            try:
                until(stage.all_is_committed, "it works")
                if way == "both":
                    net.cut("one", "database")
                net.cut("database", "one")
                cut = time.monotonic()
                stage.fill((b"%d" % (number % KEYS), number % KEYS % PARTITIONS) for number in range(200))
                until(lambda: bool(failures), "an attempt fails", 90)
                failed_s = failures[0] - cut
                until(lambda: time.monotonic() > cut + SILENT_S + 30, "a while")
                net.heal()
                healed = time.monotonic()
                until(stage.all_is_committed, "it works again", 180)
                back_s = time.monotonic() - healed
            finally:
                net.heal()
                member.consumer.stop()
                member.end()
            noted = Counter(sql.execute("SELECT part, at FROM noted").fetchall())
        assert noted == Counter({source[1:]: 1 for source, _ in stage.sources()})
    sys.stdout.write(
        f"database cut off ({way}): attempts failed from {failed_s:.1f} s on, {len(failures)} in all; "
        f"all was done {back_s:.1f} s after it was healed\n"
    )
    assert failed_s < SILENT_S + 10
    assert back_s < 30


@pytest.mark.parametrize("way", ["both", "to it"])
def test_a_called_service_is_cut_off(net: Net, broker: BrokerProcess, service: Service, way: str) -> None:
    """A call fails at its `timeout_ms`, and no connection of before keeps the calls after."""
    begun: dict[int, float] = {}
    took: list[float] = []

    def request(record: kl.Record) -> http.Request:
        begun[record.offset] = time.monotonic()
        return http.Request("GET", f"{service.url}/{record.offset}")

    def failed(failed_attempt: kl.FailedAttempt) -> None:
        took.append(time.monotonic() - begun[failed_attempt.record.offset])

    calls = http.Calls(request=request, timeout_ms=2_000, connect_timeout_ms=2_000)
    with net.inside("judge"):
        stage = Stage(broker.bootstrap, "service")
        stage.create(1)
        retries = kl.Retries(max_attempts=None, delay_ms=100, max_delay_ms=1_000)
        pipeline = stage.pipeline(calls, resource=calls.pool, retries=retries, on_failure=failed, max_concurrency=8)
        stage.fill((b"%d" % number, 0) for number in range(40))
        with net.inside("one"):
            member = ThreadMember(pipeline, "one")
        try:
            until(stage.all_is_committed, "it works")
            if way == "both":
                net.cut("one", "service")
            net.cut("service", "one")
            starved = starved_s()
            stage.fill((b"%d" % number, 0) for number in range(40))
            until(lambda: len(took) >= 16, "calls fail")
            starved = starved_s() - starved
            net.heal()
            healed = time.monotonic()
            until(stage.all_is_committed, "it works again")
            back = time.monotonic() - healed
        finally:
            net.heal()
            member.consumer.stop()
            member.end()
        assert {int(path[1:]) for path in service.asked} == set(range(80))
    sys.stdout.write(
        f"service cut off ({way}): {len(took)} calls failed, after {min(took):.1f} to {max(took):.1f} s (processes "
        f"waited for a processor for {starved:.1f} s); all was done {back:.1f} s after it was healed\n"
    )
    assert max(took) < 2 + 2 + 1 + starved


def test_clients_that_vanish_are_let_go(net: Net, broker: BrokerProcess) -> None:
    """Their connections stay until `connections.max.idle.ms`, as Apache Kafka's do; others are served meanwhile."""
    files = Path(f"/proc/{broker.pid}/fd")
    with net.inside("judge"):
        stage = Stage(broker.bootstrap, "vanished")
        stage.create(1)
        before, before_mb = len(list(files.iterdir())), memory_mb(broker.pid)
        with ExitStack() as clients:
            with net.inside("one"):
                place = (broker.host, broker.port)
                made = [clients.enter_context(socket.create_connection(place)) for _ in range(VANISHING)]
            for client in made:
                client.sendall(API_VERSIONS)
            for client in made:
                assert client.recv(4)
            held, held_mb = len(list(files.iterdir())), memory_mb(broker.pid)
            assert held >= before + VANISHING
            net.isolate("one")
            vanished = time.monotonic()
            stage.fill((b"key", 0) for _ in range(100))
            assert len(stage.read(stage.topic)) == 100
            served_s = time.monotonic() - vanished
            until(lambda: len(list(files.iterdir())) < before + 10, "their files are closed", 3 * IDLE_S)
            gone_s = time.monotonic() - vanished
    sys.stdout.write(
        f"{VANISHING} clients vanished: files {before}, {held} with them; memory {before_mb} MB, {held_mb} MB with "
        f"them; 100 records written and read within {served_s:.1f} s; all were closed after {gone_s:.1f} s\n"
    )
    assert held_mb - before_mb < VANISHING * 32 // 1_024
