"""Topics as the brokers' metadata have them, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from keylane.kafka.faults import NOT_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Who has a partition."""

    leader: int | None
    """None while there is none."""
    replicas: list[int]
    isr: list[int]
    """The replicas that are in sync."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, by number."""

    name: str
    partitions: Mapping[int, PartitionDescription]

    @property
    def replication_factor(self) -> int:
        """Of the partition that has the most replicas: while they are moved, that differs."""
        return max((len(one.replicas) for one in self.partitions.values()), default=0)


def check_may_see(client: Consumer | AdminClient, topic: str, timeout_s: float) -> None:
    """Raises `KafkaException` with what a broker says that does not tell this user whether a topic is there. A list of
    all topics leaves it out, as if it were not there; asked by name, the broker says why."""
    error = client.list_topics(topic, timeout=timeout_s).topics[topic].error
    if error is not None and error.code() in NOT_ALLOWED:
        raise KafkaException(error)


def described(topics: Mapping[str, Any]) -> list[TopicDescription]:
    """What the client's metadata say, by name; a topic with an error is left out."""
    return [
        TopicDescription(name, {number: _partition(found) for number, found in sorted(topic.partitions.items())})
        for name, topic in sorted(topics.items())
        if topic.error is None
    ]


def _partition(found: Any) -> PartitionDescription:
    leader = found.leader if found.leader >= 0 else None
    return PartitionDescription(leader, sorted(found.replicas), sorted(found.isrs))
