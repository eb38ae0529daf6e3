"""What a producer of many records does when one of them cannot be produced."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keylane.errors import PeerError
from keylane.kafka import bulk
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.sizes import Limits
from keylane.records import Output


class Connected:
    """A client that tells which topics it was asked about, and what it had taken then."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[tuple[str, int]] = []

    def list_topics(self, topic: str, _: float) -> None:
        self.asked.append((topic, len(self.taken)))


class Refusing(Connected):
    """A client that knows already that there is no such topic."""

    def produce(self, *_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))

    def purge(self) -> None:
        pass

    def flush(self, _: float) -> int:
        return 0


def producer_of(client: Connected) -> BulkProducer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "client_of", lambda *_: client)
        return BulkProducer("nowhere:1")


def test_a_record_that_the_client_refuses_is_an_error_that_names_its_topic() -> None:
    client = Refusing()
    producer = producer_of(client)
    text = "a record for 'gone' could not be produced to nowhere:1: _UNKNOWN_TOPIC"
    with pytest.raises(PeerError, match=text), producer:
        producer.produce(Output("gone", value=b"1"))


class Narrow(Connected):
    """A client that has room for some, as librdkafka is full: it takes those before the first that finds none."""

    def __init__(self, room: int, most: int = 1_000_000) -> None:
        super().__init__()
        self._room = room
        self._most = most

    def produce_batch(self, topic: str, given: list[dict[str, Any]], on_delivery: object) -> int:
        before = len(self.taken)
        for one in given:
            if len(one["value"]) > self._most:
                one["_error"] = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
            elif self._room and "_error" not in given[0]:
                self._room -= 1
                self.taken.append((topic, one))
            else:
                one["_error"] = KafkaError(KafkaError._QUEUE_FULL)
        return len(self.taken) - before

    def produce(self, topic: str, **given: Any) -> None:
        self.taken.append((topic, given))

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            self._room = 3

    def purge(self) -> None:
        pass

    def flush(self, _: float) -> int:
        return 0

    def __len__(self) -> int:
        return 0


def test_many_are_handed_over_in_their_order_however_little_room_there_is() -> None:
    client = Narrow(5)
    producer = producer_of(client)
    given = [Output("some", b"k", b"%d" % number) for number in range(20)]
    given += [Output("other", value=b"20", partition=3), Output("other", value=b"21", headers=[("h", b"v")])]
    with producer:
        producer.produce_all(given)
        assert producer.delivered == 22
    assert [(topic, int(one["value"]), one.get("partition", -1)) for topic, one in client.taken] == [
        *(("some", number, -1) for number in range(20)),
        ("other", 20, 3),
        ("other", 21, -1),
    ]
    assert all("_error" not in one for _, one in client.taken)


def test_one_of_many_that_the_client_refuses_is_an_error_that_names_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "of", lambda *_: 3)
    client = Narrow(5, most=3)
    producer = producer_of(client)
    with pytest.raises(PeerError, match="its 4 bytes are too large for topic 'some', which takes 3"):
        producer.produce_columns("some", None, [b"1", b"1234"])


@pytest.mark.parametrize("many", [True, False])
def test_a_connection_is_waited_for_once_and_before_the_first_record(many: bool) -> None:
    """Else librdkafka asks for its producer id half a second later."""
    client = Narrow(5)
    producer = producer_of(client)
    with producer:
        for topic in ("some", "other"):
            if many:
                producer.produce_columns(topic, None, [b"1", b"2"])
            else:
                producer.produce(Output(topic, value=b"1"))
    assert client.asked == [("some", 0), ("some", 0)]
    assert len(client.taken) > 1
