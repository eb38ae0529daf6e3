"""Members of the consumer protocol (KIP-848) on the embedded broker: keylane's own, and a broker and a member that are
killed under them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.ledger import Ledger
from kit.stage import Member, Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS, RECORDS, KEYS = 4, 400, 40
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        yield process


@pytest.fixture
def stage(broker: BrokerProcess) -> Stage:
    return Stage(broker.bootstrap, "consumer-protocol")


def kafka(stage: Stage) -> dict[str, Any]:
    return {"bootstrap.servers": stage.servers, "group.id": stage.group, "group.protocol": "consumer"}


def fill(stage: Stage) -> None:
    stage.create(PARTITIONS)
    stage.fill((b"%d" % (number % KEYS), number % KEYS % PARTITIONS) for number in range(RECORDS))


def test_members_come_and_go_and_each_record_runs_once_in_order(stage: Stage, tmp_path: Path) -> None:
    fill(stage)
    ledger = Ledger(tmp_path / "ledger")

    def member(name: str) -> ThreadMember:
        noted = Ledger(ledger.path, name)

        def handler(record: kl.Record) -> None:
            noted.began(record)
            time.sleep(0.02)
            noted.done(record)

        return ThreadMember(stage.pipeline(handler, kafka=kafka(stage), workers=kl.Threads(2)), name)

    first = member("first")
    until(lambda: first.consumer.snapshot().processed > 10, "the first works")
    until(lambda: first.consumer.liveness().session_timeout_ms == 6_000, "it knows what the broker has decided")
    assert first.consumer.liveness().heartbeat_interval_ms == 100
    second = member("second")
    until(lambda: (first.assigned, second.assigned) == (2, 2), "both have their share")
    second.consumer.stop()
    second.end()
    until(lambda: first.assigned == PARTITIONS, "the first has everything again")
    until(stage.all_is_committed, "all is done")
    first.consumer.stop()
    first.end()
    sources = stage.sources()
    assert ledger.disorders("key", sources) == []
    assert ledger.done_times() == {source: 1 for source, _ in sources}, "graceful rebalances repeat nothing"
    ledger.close()


def test_a_fleet_moves_to_kip_848_and_back(stage: Stage, tmp_path: Path) -> None:
    """By one member of the new protocol that comes and one that goes, while classic ones are there."""
    fill(stage)
    ledger = Ledger(tmp_path / "ledger")
    old = {name: value for name, value in kafka(stage).items() if name != "group.protocol"}
    old |= {
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6_000,
        "partition.assignment.strategy": "cooperative-sticky",
    }

    def member(name: str, settings: dict[str, Any]) -> ThreadMember:
        noted = Ledger(ledger.path, name)

        def handler(record: kl.Record) -> None:
            noted.began(record)
            time.sleep(0.02)
            noted.done(record)

        return ThreadMember(stage.pipeline(handler, kafka=settings, workers=kl.Threads(2)), name)

    classic = member("classic", old)
    until(lambda: classic.consumer.snapshot().processed > 10, "the first works")
    modern = member("modern", kafka(stage))
    until(lambda: (classic.assigned, modern.assigned) == (2, 2), "both have their share")
    assert group_type(stage) == "consumer"
    classic.consumer.stop()
    classic.end()
    until(lambda: modern.assigned == PARTITIONS, "the new one has everything")
    back = member("back", old)
    until(lambda: (back.assigned, modern.assigned) == (2, 2), "a classic one comes into the group of the new protocol")
    modern.consumer.stop()
    modern.end()
    until(lambda: back.assigned == PARTITIONS, "the group is of the classic protocol again")
    assert group_type(stage) == "classic"
    until(stage.all_is_committed, "all is done")
    back.consumer.stop()
    back.end()
    sources = stage.sources()
    assert ledger.disorders("key", sources) == []
    assert ledger.done_times() == {source: 1 for source, _ in sources}, "nothing is left out, and nothing is repeated"
    ledger.close()


def group_type(stage: Stage) -> str:
    admin = AdminClient({"bootstrap.servers": stage.servers})
    (found,) = [one for one in admin.list_consumer_groups().result(30).valid if one.group_id == stage.group]
    return str(found.type.name).lower()


def test_a_member_and_the_broker_are_killed(stage: Stage, broker: BrokerProcess, tmp_path: Path) -> None:
    """What was committed is not run again, and nothing is left out."""
    fill(stage)
    ledger = Ledger(tmp_path / "ledger")
    options = {"kafka": kafka(stage), "topic": stage.topic, "ledger": str(ledger.path), "ends": False, "work_s": 0.02}
    with Member(**options) as victim, Member(**options) as survivor:
        until(lambda: len(described(stage)) == 2, "both are members")
        until(lambda: len(stage.covered()) > 20, "they work")
        members = described(stage)
        broker.restart()
        assert set(described(stage)) == set(members), "the group is what it was"
        until(lambda: len(stage.covered()) > 60, "they go on")
        victim.kill()
        committed = stage.covered()
        done = ledger.done_times()
        until(stage.all_is_committed, "the survivor has done the rest")
        again = {source for source, times in ledger.done_times().items() if times > done.get(source, 0)}
        assert not again & committed, "what was committed runs again"
        survivor.process.terminate()
        survivor.end()
    sources = stage.sources()
    assert ledger.done_times().keys() == {source for source, _ in sources}
    ledger.close()


def described(stage: Stage) -> list[str]:
    """Ids of the group's members."""
    admin = AdminClient({"bootstrap.servers": stage.servers})
    group = admin.describe_consumer_groups([stage.group])[stage.group].result(30)
    return [member.member_id for member in group.members]


def test_a_member_with_an_expression_goes_on_where_another_one_stood(stage: Stage) -> None:
    stage.create(1)
    settings = kafka(stage) | {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    first, second = Consumer(settings), Consumer(settings)
    first.subscribe([stage.topic])
    until(lambda: first.poll(0.05) is not None or bool(first.assignment()), "it has the partition")
    commit = TopicPartition(stage.topic, 0, 0)
    assert [one.error for one in first.commit(offsets=[commit], asynchronous=False) or []] == [None]
    first.close()
    second.subscribe([f"^{stage.topic[:-1]}.*"])
    until(lambda: second.poll(0.05) is not None or bool(second.assignment()), "an expression finds it")
    assert [one.offset for one in second.committed([commit], 30)] == [0]
    second.close()
