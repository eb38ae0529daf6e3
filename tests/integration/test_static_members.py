"""Static members that the coordinator fences: by an id of their own, or because another process has the name."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from keylane.errors import FencedError
from keylane.testing.embedded import EmbeddedBroker
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import keylane as kl

RECORDS = 400


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


class Group:
    """Static members of one group, and what they ran."""

    def __init__(self, broker: EmbeddedBroker, **kafka: Any) -> None:
        self.broker = broker
        self.stage = Stage(broker.bootstrap_servers, "static")
        self.stage.create(4)
        self._kafka = kafka
        self._lock = threading.Lock()
        self.ran: list[tuple[int, int]] = []
        self.members: list[ThreadMember] = []

    def kafka(self, name: str) -> dict[str, Any]:
        return self.stage.kafka | {"group.instance.id": name, "session.timeout.ms": 30_000} | self._kafka

    def start(self, name: str) -> ThreadMember:
        pipeline = self.stage.pipeline(self._handler, kafka=self.kafka(name))
        self.members.append(ThreadMember(pipeline, f"client-{name}"))
        return self.members[-1]

    def _handler(self, record: kl.Record) -> None:
        with self._lock:
            self.ran.append((record.partition, record.offset))

    def fill(self) -> None:
        self.stage.fill((None, number % 4) for number in range(RECORDS))

    def is_stable_with(self, *names: str) -> bool:
        found = self.stage.admin.describe_group(self.stage.group)
        return found.state == "stable" and {one.group_instance_id for one in found.members} == set(names)

    def restart_before_the_sync(self) -> None:
        """The coordinator gives ids to all members, and comes back without them: they are in its log with the sync."""
        until(lambda: self.syncs.met >= 4, "everybody asks for its assignment")
        self.broker.stop()
        self.broker.clear_faults()
        self.broker.start()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.clear_faults()
        for member in self.members:
            member.consumer.stop()
        for member in self.members:
            member.thread.join()

    def check(self) -> None:
        """Everything runs, on all members."""
        self.fill()
        until(self.stage.all_is_committed, "all is committed")
        assert set(self.ran) == {(name[1], offset) for name, end in self.stage.ends().items() for offset in range(end)}

    def lose_syncs(self) -> None:
        self.syncs = self.broker.fault("SyncGroup", times=None, disconnect="before")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_that_is_fenced_by_its_own_earlier_id_joins_again(
    broker: EmbeddedBroker, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Group(broker, **{"partition.assignment.strategy": strategy}) as group:
        group.start("one")
        group.start("two")
        until(lambda: group.is_stable_with("one", "two"), "both are members")
        group.fill()
        until(group.stage.all_is_committed, "all is committed")
        deaf = broker.fault("Heartbeat", client_id="client-one", times=None, disconnect="before")
        group.lose_syncs()
        group.start("three")
        until(lambda: not group.is_stable_with("one", "two"), "the group rebalances, and one has not heard of it")
        broker.fault("Heartbeat", client_id="client-one", error="UNKNOWN_MEMBER_ID")
        deaf.remove()  # it joins under a new id, which is in no log yet
        group.restart_before_the_sync()
        until(lambda: group.is_stable_with("one", "two", "three"), "all three are members")
        group.check()
    assert "member 'one' of group 'group-static' was fenced by an earlier id of its own, and joins again" in caplog.text


def test_a_member_that_is_fenced_by_its_dead_predecessors_id_joins_again(broker: EmbeddedBroker) -> None:
    with Group(broker) as group:
        assigned = []
        predecessor = Consumer({**group.kafka("one"), "enable.auto.commit": False})
        predecessor.subscribe([group.stage.topic], on_assign=lambda _, partitions: assigned.append(partitions))
        while not assigned:
            predecessor.poll(0.05)
        predecessor.close()  # which says nothing to the group, as it is a static member
        group.lose_syncs()
        group.start("two")
        until(lambda: not group.is_stable_with("one"), "the group rebalances, and waits for its member")
        group.start("one")
        group.restart_before_the_sync()
        until(lambda: group.is_stable_with("one", "two"), "both are members")
        group.check()


def test_of_two_with_one_name_the_older_one_ends(broker: EmbeddedBroker) -> None:
    with Group(broker) as group:
        older = group.start("one")
        until(lambda: group.is_stable_with("one") and older.assigned == 4, "it is a member")
        newer = group.start("one")
        with pytest.raises(
            FencedError, match=r"member 'one' of group 'group-static' is fenced: another process has joi"
        ):
            older.end()
        until(lambda: newer.assigned == 4, "the newer one goes on")
        group.check()


DIES = """
import os, signal, sys
from confluent_kafka import Consumer
servers, topic = sys.argv[1:]
group = {"group.id": "g", "group.protocol": "consumer", "group.instance.id": "i"}
client = Consumer({"bootstrap.servers": servers, **group})
client.subscribe([topic])
while not client.assignment():
    client.poll(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_under_kip_848_a_member_whose_name_is_not_free_yet_joins_once_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """The dead one never left: its name is free when its session has ended."""
    times = {"session.timeout.ms": "4000", "min.session.timeout.ms": "4000", "heartbeat.interval.ms": "500"}
    settings = {f"group.consumer.{name}": value for name, value in times.items()}
    with EmbeddedBroker(settings=settings | {"group.consumer.min.heartbeat.interval.ms": "500"}) as broker:
        stage = Stage(broker.bootstrap_servers, "unreleased")
        stage.create(1)
        stage.fill([(b"k", 0)] * 3)
        died = subprocess.run([sys.executable, "-c", DIES, stage.servers, stage.topic], check=False, timeout=60)
        assert died.returncode == -signal.SIGKILL
        kafka = {"bootstrap.servers": stage.servers, "group.id": "g", "group.protocol": "consumer"}
        ran: list[int] = []
        snapshot = stage.run(lambda record: ran.append(record.offset), kafka=kafka | {"group.instance.id": "i"})
    assert (ran, snapshot.processed) == ([0, 1, 2], 3)
    assert any("UNRELEASED_INSTANCE_ID: the name 'i' in group 'g'" in one.message for one in caplog.records)
