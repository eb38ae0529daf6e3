"""A pause is one assignment's: it may come late, when the partition was given back and given anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.consumer.start import Start
from keylane.kafka.consumer import Fetcher
from keylane.kafka.faults import Faults
from keylane.offsets import OffsetMap

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

NAME = ("orders", 1)


class Client:
    """Notes what is paused."""

    def __init__(self) -> None:
        self.paused: set[tuple[str, int]] = set()

    def list_topics(self, topic: str, timeout: float) -> None:
        """It knows all."""

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        """As far as its broker."""

    def incremental_unassign(self, positions: list[TopicPartition]) -> None:
        """librdkafka keeps a pause over it."""

    def pause(self, some: list[TopicPartition]) -> None:
        self.paused.update((one.topic, one.partition) for one in some)

    def resume(self, some: list[TopicPartition]) -> None:
        self.paused.difference_update((one.topic, one.partition) for one in some)


def test_a_pause_of_an_assignment_that_is_over_does_not_hold_the_next_one() -> None:
    client: Any = Client()
    fetcher = Fetcher(client, Any, Faults())  # type: ignore[arg-type] # no log is out of range here
    fetcher.assign([Start(*NAME, 1, OffsetMap(0), 0, 100)])
    fetcher.pause({NAME: 1})
    assert client.paused == {NAME}
    fetcher.unassign([NAME])
    fetcher.assign([Start(*NAME, 2, OffsetMap(24), 0, 100)])
    fetcher.pause({NAME: 1})  # was asked for before the rebalance
    assert client.paused == set(), "it is never read again: for the engine it is not paused"
    fetcher.pause({NAME: 2})
    fetcher.resume({NAME: 1})
    assert client.paused == {NAME}
    fetcher.resume({NAME: 2})
    assert client.paused == set()
