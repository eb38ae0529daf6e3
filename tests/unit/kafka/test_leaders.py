"""What a client is asked to learn before it reads, and what it is not asked twice."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keylane.consumer.start import Start
from keylane.kafka.consumer import Fetcher
from keylane.kafka.faults import Faults
from keylane.kafka.leaders import Leaders
from keylane.offsets import OffsetMap


class Client:
    """Notes what it is told, and is as far as its broker."""

    def __init__(self, *, away: bool = False) -> None:
        self.told: list[tuple[str, Any]] = []
        self.waited_s = 0.0
        self._away = away

    def list_topics(self, topic: str, timeout: float) -> None:
        assert 0 < timeout < 1  # librdkafka's own timer fires after a second
        self.told.append(("learn", topic))
        if self._away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        self.told.append(("read", sorted({one.topic for one in positions})))

    def resume(self, _: list[TopicPartition]) -> None:
        pass

    def consume(self, _: int, timeout_s: float) -> list[Any]:
        self.waited_s += timeout_s
        return []


def test_a_client_learns_who_leads_a_topic_before_it_is_told_to_read_it_and_once() -> None:
    client: Any = Client()
    fetcher = Fetcher(client, Any, Faults())  # type: ignore[arg-type] # no log is out of range here
    for starts in ([("a", 0), ("b", 0), ("b", 1)], [("b", 2)]):
        fetcher.assign([Start(*name, 1, OffsetMap(0), 0, 100) for name in starts])
        fetcher.poll(10, 0)
    assert client.told == [("learn", "a"), ("learn", "b"), ("read", ["a", "b"]), ("read", ["b"])]


def test_a_broker_that_is_away_is_asked_once_for_all_topics() -> None:
    client: Any = Client(away=True)
    Leaders(client).learn(["a", "b"])
    assert client.told == [("learn", "a")]


def test_an_expected_topic_is_learned_before_it_is_assigned() -> None:
    client: Any = Client()
    fetcher = Fetcher(client, Any, Faults())  # type: ignore[arg-type] # as above
    fetcher.expect("a")
    assert client.told == [("learn", "a")]
    fetcher.assign([Start("a", 0, 1, OffsetMap(0), 0, 100)])
    fetcher.poll(10, 0)
    assert client.told == [("learn", "a"), ("read", ["a"])]


def test_a_poll_without_partitions_waits_for_an_assignment_and_not_for_records() -> None:
    client: Any = Client()
    fetcher = Fetcher(client, Any, Faults())  # type: ignore[arg-type] # as above
    waiting = threading.Thread(target=fetcher.poll, args=(10, 60.0))
    waiting.start()
    fetcher.assign([Start("a", 0, 1, OffsetMap(0), 0, 100)])
    waiting.join(10)
    assert not waiting.is_alive()
    assert client.told == [("learn", "a"), ("read", ["a"])]
    assert client.waited_s == 0
    fetcher.poll(10, 60.0)
    assert client.waited_s == 60
