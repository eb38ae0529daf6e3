"""The demo's view of a Kafka: its topics, and where its group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.demo.observer import ToDo
from keylane.errors import PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.group_standing import Standing, group_standing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


ANSWER_TIMEOUT_MS = 5_000
"""For one question; a broker on this machine answers in milliseconds."""


class Cluster:
    """Raises `BrokerUnavailableError` when no broker answers. Thread safety: any thread."""

    def __init__(self, servers: str, settings: Mapping[str, str] | None = None) -> None:
        self.servers = servers
        self.settings = dict(settings or {})
        """Of every client: TLS, SASL."""
        self.kafka = self.settings | {"bootstrap.servers": servers}
        """Of a client."""
        self.admin = Admin(self.kafka, timeout_ms=ANSWER_TIMEOUT_MS)

    def refuse_occupied(self, topics: Iterable[str], partitions: int) -> None:
        """Raises `PeerError` for a topic that somebody else uses: it has records, or another partition count."""
        counts = self.admin.topics()
        for topic in topics:
            if topic not in counts:
                continue
            if counts[topic] != partitions:
                raise PeerError(
                    f"the topic {topic!r} at {self.servers} has {counts[topic]} partitions, and the demo needs "
                    f"{partitions}: delete it, or use another broker"
                )
            places = [(topic, number) for number in range(partitions)]
            ends, starts = self.admin.log_ends(places, read_committed=False), self.admin.log_starts(places)
            held = sum((ends[place] or 0) - (starts[place] or 0) for place in places)
            if held:
                raise PeerError(
                    f"the topic {topic!r} at {self.servers} holds {held:,} records that this run did not make: "
                    "delete it, use another broker, or go on with the run that made it (--keep)"
                )

    def create_missing(self, topics: Iterable[str], partitions: int) -> set[str]:
        """Returns the names of those made."""
        return self.admin.create_topics(dict.fromkeys(topics, partitions))

    def delete(self, topics: Collection[str]) -> None:
        """Delete topics, and with them what groups have committed there; a group without offsets is soon forgotten."""
        self.admin.delete_topics(topics)

    def standing(self, group: str, topic: str) -> tuple[Standing, ...]:
        """Where the group stands, by partition."""
        return group_standing(self.admin, group, [topic])

    def to_do(self, group: str, topic: str) -> ToDo:
        """What the group has still to do, over all partitions."""
        standing = self.standing(group, topic)
        return ToDo(sum(one.lag for one in standing), sum(one.remaining for one in standing))
