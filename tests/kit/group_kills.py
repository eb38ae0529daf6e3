"""What members of a group saw while the broker was killed again and again, and the judge of it.

The judge knows nothing of brokers: it is given the log as a reader without a group finds it in the end, the values
whose writing was acknowledged, and what members saw and said, in one order (`Story`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

DEADLINE_S = 120.0
OUTSTANDING = 50
"""Values that a writer has sent and knows nothing of."""
AHEAD = 300
"""Values that were written and not delivered yet: with so many the writer waits for the members."""
Place = tuple[int, int]
"""Partition and offset."""
Log = dict[Place, bytes]


class Event(NamedTuple):
    """`delivered`: a member was given a record. `releasing`, `accepting`: it is about to say that of it. `accepted`:
    that was acknowledged. `committed`: so was a commit of a group, up to an offset that stands in the record's
    place."""

    what: Literal["delivered", "releasing", "accepting", "accepted", "committed"]
    life: int
    """Of the broker: how often it had been killed when the member connected."""
    member: str
    place: Place


class Story:
    """Events in the order in which they were told. Thread safety: any thread may tell."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.deliveries = 0
        self._grown = threading.Condition()

    def tell(self, what: Any, life: int, member: str, places: Iterable[Place]) -> None:
        with self._grown:
            added = [Event(what, life, member, place) for place in places]
            self.events += added
            self.deliveries += len(added) if what == "delivered" else 0
            self._grown.notify_all()

    def wait_for_all(self, what: str, places: Iterable[Place]) -> None:
        """Until that was told of each of them."""

        def left() -> set[Place]:
            return wanted - {event.place for event in self.events if event.what == what}

        wanted = set(places)
        with self._grown:
            assert self._grown.wait_for(lambda: not left(), DEADLINE_S), f"not {what}: {sorted(left())[:5]}"

    def wait_for_more(self, count: int) -> None:
        """Until so many more events were told."""
        with self._grown:
            wanted = len(self.events) + count
            assert self._grown.wait_for(lambda: len(self.events) >= wanted, DEADLINE_S), "the members stand still"


class Verdict(NamedTuple):
    lost: list[Any]
    """Values whose writing was acknowledged and that are not in the log; records that nobody saw through."""
    wrong: list[str]
    """Deliveries that should not have been."""
    again: int
    """Deliveries of records that were delivered before."""


def judge_group(log: Log, acknowledged: set[bytes], events: Iterable[Event]) -> Verdict:
    """A consumer group: each record is delivered, and never after a commit that covers it was acknowledged."""
    wrong, again = [], 0
    seen: set[Place] = set()
    committed: dict[int, int] = defaultdict(int)
    for event in events:
        partition, offset = event.place
        if event.what == "committed":
            committed[partition] = max(committed[partition], offset)
            continue
        if offset < committed[partition]:
            wrong.append(f"{event.place} was delivered to {event.member} when {committed[partition]} was committed")
        again += event.place in seen
        seen.add(event.place)
    return Verdict(_missing(log, acknowledged) + sorted(log.keys() - seen), wrong, again)


def judge_share_group(log: Log, acknowledged: set[bytes], events: Iterable[Event]) -> Verdict:
    """A share group: each record is accepted, and delivered again only where its member released it or the broker was
    killed before it acknowledged what its member said."""
    wrong, again = [], 0
    by_place: dict[Place, list[Event]] = defaultdict(list)
    for event in events:
        by_place[event.place].append(event)
    for place, story in by_place.items():
        last: Event | None = None
        is_accepted = is_released = False
        for event in story:
            if event.what == "accepted":
                is_accepted = True
            elif event.what == "releasing":
                is_released = True
            elif event.what == "delivered":
                if is_accepted:
                    wrong.append(f"{place} was delivered to {event.member} after it was accepted")
                elif last is not None and not is_released and event.life == last.life:
                    wrong.append(f"{place} was delivered to {event.member} and to {last.member} at once")
                again += last is not None
                last, is_released = event, False
    done = {event.place for event in events if event.what == "accepting"}
    return Verdict(_missing(log, acknowledged) + sorted(log.keys() - done), wrong, again)


def _missing(log: Log, acknowledged: set[bytes]) -> list[Any]:
    values = list(log.values())
    assert len(values) == len(set(values)), "a value was written twice"
    return sorted(acknowledged - set(values))


class Writer(threading.Thread):
    """Writes one value after the other to all partitions, and notes those that are acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, story: Story) -> None:
        super().__init__(name="writer")
        self._story = story
        self.acknowledged: set[bytes] = set()
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._topic, self._partitions = topic, partitions
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "batch.num.messages": 5,
            "message.timeout.ms": 300_000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
        })  # fmt: skip

    def run(self) -> None:
        try:
            number = 0
            while not self.stop.is_set():
                if len(self._producer) < OUTSTANDING and number - self._story.deliveries < AHEAD:
                    value = b"%d" % number
                    self._producer.produce(
                        self._topic, value, partition=number % self._partitions, on_delivery=self._delivered
                    )
                    number += 1
                self._producer.poll(0.002)
            assert self._producer.flush(DEADLINE_S) == 0
        except BaseException as error:
            self.error = error

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.error = KafkaException(error)
        else:
            self.acknowledged.add(message.value())


def read_log(bootstrap: str, topic: str, partitions: int) -> Log:
    """All that is in it, by a reader without a group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])
    log: Log = {}
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        if message.error() is not None:
            ended.add(partition)
        else:
            assert offset is not None
            assert isinstance(value, bytes)
            log[partition, offset] = value
    consumer.close()
    return log
