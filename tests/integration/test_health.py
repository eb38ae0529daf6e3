"""`/healthz` and `/readyz` of a consumer: what each fault and each outage shows, and within which time."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.consumer.core import Core
from keylane.errors import KeylaneError
from keylane.kafka.admin import Admin
from keylane.metrics.pages import HealthServer
from keylane.parallel_consumer import ParallelConsumer
from keylane.testing.embedded import EmbeddedBroker
from kit.filling import filling
from kit.processes import Stopwatch
from kit.stage import Member, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keylane.consumer.modes.at_least_once import Plan

SHOWN_WITHIN_S = 10.0
SLACK_S = 3.0
"""Of a machine that is busy."""
TOPIC = "orders"


class Watched:
    """A consumer that runs, and its probes."""

    def __init__(
        self,
        servers: str,
        group: str,
        handler: Callable[[kl.Record], Any],
        *,
        ready_when_assigned: bool = False,
        **options: Any,
    ) -> None:
        kafka = {"bootstrap.servers": servers, "group.id": group} | options.pop("kafka", {})
        pipeline = kl.Pipeline(kafka=kafka, topics=[TOPIC], handler=handler, offset_reset="earliest", **options)
        self.consumer = ParallelConsumer(pipeline, ready_when_assigned=ready_when_assigned)
        self._server = HealthServer(self.consumer.health, 0)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with suppress(KeylaneError):  # the probes are asked for it
            self.consumer.run()

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._server.port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def until(self, path: str, status: int, within_s: float = SHOWN_WITHIN_S + SLACK_S) -> str:
        """What it says once it has this status."""
        watch = Stopwatch()
        while (found := self.ask(path))[0] != status:
            assert watch.took_s() < within_s, found
            time.sleep(0.1)
        return found[1]

    def joined(self) -> None:
        """It has its partitions, and is ready."""
        until(lambda: bool(self.consumer.snapshot().partitions), "it has its partitions")
        self.until("/readyz", 200)

    @contextmanager
    def running(self) -> Iterator[Watched]:
        with self._server:
            self._thread.start()
            try:
                yield self
            finally:
                self.consumer.close("now")
                self._thread.join()


def fill(servers: str, count: int = 3) -> None:
    with filling(servers) as producer:
        for number in range(count):
            producer.produce(kl.Output(TOPIC, key=b"%d" % number, value=b"secret"))


def nothing(_: kl.Record) -> None:
    pass


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={TOPIC: 2}) as made:
        yield made


def test_a_member_with_its_partitions_is_alive_and_ready_and_other_paths_are_not_there(broker: EmbeddedBroker) -> None:
    watched = Watched(broker.bootstrap_servers, "g", nothing)
    with watched._server:
        assert watched.ask("/healthz") == (200, "alive\n")
        assert watched.ask("/readyz") == (503, "not ready: it has not started yet\n")
    watched = Watched(broker.bootstrap_servers, "g", nothing)
    with watched.running():
        assert watched.until("/readyz", 200) == "ready\n"
        assert watched.ask("/healthz?verbose") == (200, "alive\n")
        for path in ("/", "/metrics", "/healthz/", "/health"):
            assert watched.ask(path) == (404, "served here: /healthz, /readyz\n")
    assert watched.consumer.health().fault == "it has ended"


def test_a_member_without_an_assignment_yet_is_not_ready_where_that_is_asked_for(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It would be without: for the one reason, the answer has no other one."""
    servers, times = broker.bootstrap_servers, {"session.timeout.ms": 6_000}
    kafka: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "g", **times}
    with Member(kafka=kafka, topic=TOPIC, ledger=str(tmp_path / "ledger"), ends=False) as child:
        until(lambda: any(one.assignment for one in Admin(kafka).describe_group("g").members), "it is a member")
        child.kill()  # the group waits for it
    watched = Watched(servers, "g", nothing, ready_when_assigned=True, kafka=times)
    with watched.running():
        lacks = "not ready: its group has not given it an assignment yet"
        until(lambda: watched.ask("/readyz")[1].startswith(lacks), "it joins")
        assert watched.ask("/healthz") == (200, "alive\n")
        watched.until("/readyz", 200, 60)
        until(lambda: bool(watched.consumer.snapshot().partitions), "it has its partitions")


@pytest.mark.full
def test_a_loop_that_stands_is_no_longer_alive(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    stands, plan = threading.Event(), Core.plan
    stands.set()

    def planned(self: Core, now: float) -> Plan:
        stands.wait()
        return plan(self, now)

    monkeypatch.setattr(Core, "plan", planned)
    with Watched(broker.bootstrap_servers, "g", nothing).running() as watched:
        watched.joined()
        stands.clear()
        try:
            assert watched.until("/healthz", 503) == "not alive: its loop has not answered for 5 s\n"
            assert watched.ask("/readyz")[0] == 503
        finally:
            stands.set()
        assert watched.until("/healthz", 200) == "alive\n"


def test_a_handler_that_takes_long_is_no_fault_until_the_stall_timeout(broker: EmbeddedBroker) -> None:
    inside, ends = threading.Event(), threading.Event()

    def handler(_: kl.Record) -> None:
        inside.set()
        ends.wait()

    options: dict[str, Any] = {"stall_timeout_ms": 3_000, "drain_timeout_ms": 60_000}
    try:
        with Watched(broker.bootstrap_servers, "g", handler, **options).running() as watched:
            watched.joined()
            stalls_at = time.monotonic() + 3.0  # or later: no handler has begun
            fill(broker.bootstrap_servers)
            assert inside.wait(20)
            found = watched.ask("/healthz")
            while time.monotonic() < stalls_at:
                assert found == (200, "alive\n")
                time.sleep(0.1)
                found = watched.ask("/healthz")
            said = watched.until("/healthz", 503)
            assert "no handler has ended for 3 s" in said
            assert "orders-" in said
            assert "secret" not in said
            ends.set()
    finally:
        ends.set()


def test_a_member_whose_instance_id_another_one_takes_shows_it(broker: EmbeddedBroker) -> None:
    kafka = {"group.instance.id": "one"}
    with Watched(broker.bootstrap_servers, "g", nothing, kafka=kafka).running() as older:
        older.joined()
        with Watched(broker.bootstrap_servers, "g", nothing, kafka=kafka).running() as newer:
            newer.joined()
            older.until("/healthz", 503)
            assert newer.ask("/healthz")[0] == 200


def test_a_producer_that_is_fenced_for_good_shows_it(broker: EmbeddedBroker) -> None:
    broker.create_topics({"out": 1})
    for api in ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"):
        broker.fault(api, times=None, error="PRODUCER_FENCED")
    fill(broker.bootstrap_servers)

    def handler(record: kl.Record) -> kl.Output:
        return kl.Output("out", value=record.value)

    with Watched(broker.bootstrap_servers, "g", handler, delivery="transactional").running() as watched:
        said = watched.until("/healthz", 503, 30)
        assert "secret" not in said


@pytest.mark.full
def test_a_member_that_lost_its_group_is_not_ready_until_it_is_back_and_stays_alive(broker: EmbeddedBroker) -> None:
    kafka = {"session.timeout.ms": 6_000}  # the broker waits so long for the member that it takes it to be
    with Watched(broker.bootstrap_servers, "g", nothing, kafka=kafka).running() as watched:
        watched.joined()
        broker.fault("JoinGroup", delay_ms=8_000)
        broker.fault("Heartbeat", error="UNKNOWN_MEMBER_ID")
        said = watched.until("/readyz", 503)
        assert "the group took this member's partitions away" in said
        assert watched.ask("/healthz") == (200, "alive\n")
        watched.until("/readyz", 200, 30)


@pytest.mark.full
def test_an_outage_of_the_broker_restarts_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker.bootstrap)
        kafka = {"session.timeout.ms": 6_000, "reconnect.backoff.max.ms": 500}
        with Watched(broker.bootstrap, "g", nothing, kafka=kafka).running() as watched:
            watched.joined()
            broker.kill()
            assert "group" in watched.until("/readyz", 503)
            begun = time.monotonic()
            while time.monotonic() - begun < 4.0:  # beyond the session
                assert watched.ask("/healthz") == (200, "alive\n")
                assert watched.ask("/readyz")[0] == 503
                time.sleep(0.2)
            broker.start()
            watched.until("/readyz", 200, 60)


def test_what_the_users_code_raised_is_not_quoted(broker: EmbeddedBroker) -> None:
    def handler(record: kl.Record) -> None:
        raise ValueError(f"cannot read {record.value!r}")

    fill(broker.bootstrap_servers)
    options: dict[str, Any] = {"on_exhausted": kl.Halt(), "retries": kl.Retries(max_attempts=1)}
    with Watched(broker.bootstrap_servers, "g", handler, **options).running() as watched:
        assert watched.until("/healthz", 503) == "not alive: it failed: ValueError\n"
