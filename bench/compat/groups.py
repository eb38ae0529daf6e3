"""Other people's clients as members of groups: in each protocol that they have, and two protocols in one group."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # exported untyped
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from compat.members import CLASSIC, CONFLUENT, CONSUMER, SHARE, Member, produce
from compat.results import Outcome, check, until
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from compat.members import Client

PARTITIONS = 4
COUNT = 200
A_FEW = 20
WAIT_S = 90.0
"""A crowded machine's time for a rebalance, or for a JVM to start."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
}
"""The pace of rebalances, which for the newer protocols is the broker's (default: 5 s)."""
SHARING = "share: members share partitions"
NO_CONSUMER = "the client has no KIP-848"
NO_SHARE = "the client has no share groups (KIP-932)"


class Topic:
    """A topic that grows, and which records it has."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.records: set[tuple[int, int]] = set()
        Admin({"bootstrap.servers": bootstrap}).create_topics({name: PARTITIONS})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def grow(self, count: int) -> set[tuple[int, int]]:
        """Partition and offset of so many new ones, in all partitions."""
        new: set[tuple[int, int]] = set()

        def add(error: object, message: object) -> None:
            assert error is None, error
            new.add((message.partition(), message.offset()))  # type: ignore[attr-defined]

        for number in range(count):
            self._producer.produce(self.name, b"%d" % number, partition=number % PARTITIONS, on_delivery=add)
        assert self._producer.flush(WAIT_S) == 0
        self.records |= new
        return new

    def member(self, client: Client, protocol: str, group: str) -> Member:
        return Member(client, self.bootstrap, self.name, protocol, group)


def suite_of(client: Client) -> Callable[[str, str], list[Outcome]]:
    """All that the client can do, and what it cannot."""

    def run(bootstrap: str, _folder: str) -> list[Outcome]:
        found = [check("its producer's records are read", partial(produced, client, bootstrap))]
        for number, (name, protocol, other, others) in enumerate(
            (
                ("classic: members come and go", CLASSIC, client, CLASSIC),
                ("consumer: members come and go", CONSUMER, client, CONSUMER),
                ("mixed group: its classic, and confluent-kafka's consumer", CLASSIC, CONFLUENT, CONSUMER),
                ("mixed group: its consumer, and confluent-kafka's classic", CONSUMER, CONFLUENT, CLASSIC),
            )
        ):
            if protocol in client.protocols:
                found.append(
                    check(name, partial(come_and_go, client, protocol, other, others, bootstrap, f"group-{number}"))
                )
            else:
                found.append(Outcome(name, "excluded", NO_CONSUMER))
        if SHARE in client.protocols:
            found.append(check(SHARING, partial(shared, client, bootstrap)))
        else:
            found.append(Outcome(SHARING, "excluded", NO_SHARE))
        return found

    return run


def produced(client: Client, bootstrap: str) -> None:
    """Each value once, and in order by partition."""
    topic = Topic(bootstrap, "produced")
    produce(client, bootstrap, topic.name, COUNT)
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    values: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    with contextlib.closing(Consumer(settings)) as reader:
        reader.assign([TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        ends = 0
        while ends < PARTITIONS:
            message = reader.poll(WAIT_S)
            assert message is not None, "nothing came"
            if message.error():
                ends += 1
            else:
                values[message.partition() or 0].append(int(message.value() or b""))
    assert sorted(value for some in values.values() for value in some) == list(range(COUNT))
    assert all(some == sorted(some) for some in values.values()), "not in order"


def come_and_go(client: Client, protocol: str, other: Client, others: str, bootstrap: str, group: str) -> None:
    """One reads alone, two read side by side, the other goes on alone; and who comes after both have gone goes on where
    they have committed."""
    topic = Topic(bootstrap, f"of-{group}")
    topic.grow(COUNT)
    with topic.member(client, protocol, group) as first:
        wait(first, lambda: first.told == topic.records, "the first reads all")
        with topic.member(other, others, group) as second:
            both(topic, first, second)
            first.end()
            new = topic.grow(COUNT)
            wait(second, lambda: second.told >= new, "the other goes on in all partitions")
            wait(second, lambda: first.told | second.told == topic.records, "nothing is left")
            second.end()
    new = topic.grow(COUNT)
    with topic.member(client, protocol, group) as third:
        wait(third, lambda: third.told >= new, "a third one goes on")
        assert third.told == new, f"{len(third.told - new)} records again that were committed"
        third.end()


def both(topic: Topic, first: Member, second: Member) -> None:
    """Until each of two members has new records that came after both were there."""

    def side_by_side() -> bool:
        new = topic.grow(A_FEW)
        with contextlib.suppress(TimeoutError):
            until(lambda: first.told | second.told >= new, "all is read", 2)
        return bool(new & first.told) and bool(new & second.told) and not new & first.told & second.told

    wait(second, side_by_side, "two read side by side", first)


def shared(client: Client, bootstrap: str) -> None:
    """Two members read the same partitions, and no record is lost."""
    topic = Topic(bootstrap, "shared")
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "sharing", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    topic.grow(COUNT)
    with topic.member(client, SHARE, "sharing") as first, topic.member(client, SHARE, "sharing") as second:

        def step() -> bool:
            topic.grow(A_FEW)
            return len(first.told) > A_FEW and len(second.told) > A_FEW

        wait(second, step, "both have records", first)
        wait(second, lambda: first.told | second.told == topic.records, "all is read", first)
        twice = first.told & second.told
        assert not twice, f"{len(twice)} records were acknowledged twice"
        for one in (first, second):
            one.end()


def wait(member: Member, is_so: Callable[[], bool], what: str, *others: Member) -> None:
    """Until it is so, while these members run."""

    def step() -> bool:
        for one in (member, *others):
            one.check()
        return is_so()

    until(step, what, WAIT_S)
