"""One group, by turns of the JVM Parallel Consumer and of keylane: nothing runs twice, nothing is skipped.

Each turn leaves some records pending and closes; the next member goes on from the offset and map that the other
committed. What ran is what the handlers themselves wrote down, and what is committed is read by a third client.
"""

from __future__ import annotations

import random
import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # exported untyped
from peers import jvm

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka import exact
from keylane.offsets import OffsetMap, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from pathlib import Path

    import peers

Place = tuple[int, int]
"""Partition and offset."""
PARTITIONS = 2
KEYS = 12
ANSWER_S = 20
TURN_S = 60
"""A turn takes some 3 s; beyond this it hangs."""
FOREVER_MS = 3_600_000


@dataclass
class Group:
    """A topic of known records and a group that reads it."""

    bootstrap: str
    ordering: str
    name: str = field(default_factory=lambda: f"handover-{uuid.uuid4().hex[:8]}")
    records: dict[Place, bytes] = field(default_factory=dict)
    """The key of each record."""
    done: set[Place] = field(default_factory=set)

    def runnable(self, pending: Set[Place]) -> set[Place]:
        """What is not done and need not wait for a pending record: with KEY, nothing behind one of its key."""
        blocked: set[tuple[int, bytes]] = set()
        found = set()
        for place in sorted(self.records.keys() - self.done):
            lane = (place[0], self.records[place])
            if place in pending:
                blocked |= {lane} if self.ordering == "key" else set()
            elif lane not in blocked:
                found.add(place)
        return found

    def committed(self) -> dict[int, OffsetMap]:
        """Offset and map of each partition, read by a client that is no member."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        try:
            found = exact.committed(reader, [(self.name, p) for p in range(PARTITIONS)], ANSWER_S)
        finally:
            reader.close()
        return {one.partition: decode(one.metadata, max(one.offset, 0)) for one in found}

    def check_turn(self, ran: list[Place], expected: set[Place]) -> None:
        """A turn ran each of the expected records once, and committed exactly what is done by now."""
        assert len(ran) == len(set(ran)), "a record ran twice within a turn"
        again = set(ran) & self.done
        assert not again, f"ran again after the hand-over: {sorted(again)[:10]}"
        assert set(ran) == expected
        self.done |= expected
        committed = self.committed()
        assert {place for place in self.records if committed[place[0]].is_complete(place[1])} == self.done


def produce(group: Group, count: int, transactional: bool) -> None:
    """Fill the group's topic. With transactions, commit and abort markers leave gaps in the offsets."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for made in admin.create_topics([NewTopic(group.name, PARTITIONS, 1)]).values():
        made.result(ANSWER_S)
    settings: dict[str, object] = {"bootstrap.servers": group.bootstrap, "enable.idempotence": True}
    producer = Producer(settings | ({"transactional.id": group.name} if transactional else {}))

    def send(numbers: range, on_delivery: Callable[..., None]) -> None:
        for number in numbers:
            key = b"k%d" % (number * 7 % KEYS)
            producer.produce(group.name, b"v", key, partition=number % PARTITIONS, on_delivery=on_delivery)
        assert producer.flush(ANSWER_S) == 0

    def delivered(error: object, message: object) -> None:
        assert error is None
        group.records[message.partition(), message.offset()] = message.key()  # type: ignore[attr-defined]

    if not transactional:
        send(range(count), delivered)
        return
    producer.init_transactions(ANSWER_S)
    for first in range(0, count, 50):
        producer.begin_transaction()
        send(range(first, first + 50), delivered)
        producer.commit_transaction(ANSWER_S)
        producer.begin_transaction()
        send(range(5), lambda *_: None)
        producer.abort_transaction(ANSWER_S)


def jvm_turn(group: Group, pending: Set[Place]) -> None:
    """The JVM Parallel Consumer runs what it can run, and closes."""
    expected = group.runnable(pending)
    command = jvm.command(jvm.HAND_OVER, group.bootstrap, group.name, group.name, group.ordering.upper())
    ran: list[Place] = []
    with jvm.LineProcess(command) as process:
        killer = threading.Timer(TURN_S, process.kill)
        killer.start()
        process.tell(",".join(f"{partition}:{offset}" for partition, offset in pending) or "-")
        last = ""
        for line in process.lines():
            last = line
            word, *place = line.split(" ")
            if word == "ran":
                ran.append((int(place[0]), int(place[1])))
                if len(ran) == len(expected):
                    process.tell("close")
        killer.cancel()
    assert last == "closed", f"the JVM ran {len(ran)} of {len(expected)} records and did not close"
    group.check_turn(ran, expected)


def keylane_turn(group: Group, pending: Set[Place]) -> None:
    """keylane runs what it can run, and closes; with nothing pending it must find the end by itself."""
    expected = group.runnable(pending)
    ran: list[Place] = []
    lock = threading.Lock()

    def handler(record: kl.Record) -> None:
        place = (record.partition, record.offset)
        if place in pending:
            raise RuntimeError("stays pending")
        with lock:
            ran.append(place)
            if len(ran) == len(expected) and pending:
                consumer.stop()

    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": group.bootstrap, "group.id": group.name},
        topics=[group.name],
        handler=handler,
        ordering="key" if group.ordering == "key" else "unordered",
        offset_reset="earliest",
        retries=kl.Retries(max_attempts=2, delay_ms=FOREVER_MS, max_delay_ms=FOREVER_MS),
    )
    killer = threading.Timer(TURN_S, lambda: consumer.stop())
    with kl.ParallelConsumer(pipeline, ending_offsets=None if pending else "latest") as consumer:
        killer.start()
        consumer.run()
    killer.cancel()
    group.check_turn(ran, expected)


def choose_pending(group: Group, rng: random.Random, share: float) -> set[Place]:
    """A share of what is left, and always the first of each partition, so that only the map knows of the others."""
    left = sorted(group.records.keys() - group.done)
    firsts = {min(place for place in left if place[0] == partition) for partition in range(PARTITIONS)}
    return firsts | {place for place in left if rng.random() < share}


@pytest.mark.parametrize("ordering", ["unordered", pytest.param("key", marks=pytest.mark.soak)])
def test_a_group_moves_between_the_jvm_and_keylane_and_back(apache_kafka: peers.ApacheKafka, ordering: str) -> None:
    group, rng = Group(apache_kafka.bootstrap, ordering), random.Random(ordering)
    produce(group, 400, transactional=False)
    jvm_turn(group, choose_pending(group, rng, 0.2))
    keylane_turn(group, choose_pending(group, rng, 0.3))
    assert all(one.span for one in group.committed().values()), "only a map tells the next member what is done"
    jvm_turn(group, set())


def test_a_group_moves_on_the_embedded_broker_too(jvm_peers: None, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        group, rng = Group(broker.bootstrap, "unordered"), random.Random(2)
        produce(group, 200, transactional=False)
        keylane_turn(group, choose_pending(group, rng, 0.4))
        jvm_turn(group, choose_pending(group, rng, 0.4))
        assert all(one.span for one in group.committed().values())
        keylane_turn(group, set())


def test_keylane_finishes_what_the_jvm_left(apache_kafka: peers.ApacheKafka) -> None:
    """Offsets have gaps here (transaction markers, aborted records), which both must count as complete."""
    group, rng = Group(apache_kafka.bootstrap, "unordered"), random.Random(1)
    produce(group, 200, transactional=True)
    keylane_turn(group, choose_pending(group, rng, 0.5))
    jvm_turn(group, choose_pending(group, rng, 0.5))
    assert all(one.span for one in group.committed().values())
    keylane_turn(group, set())
    assert group.done == group.records.keys()
