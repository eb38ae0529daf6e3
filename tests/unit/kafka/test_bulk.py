"""What a producer of many records does when one of them cannot be produced."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keylane.errors import PeerError
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output


class Refusing:
    """A client that knows already that there is no such topic."""

    def produce(self, *_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))

    def purge(self) -> None:
        pass

    def flush(self, _: float) -> int:
        return 0


def test_a_record_that_the_client_refuses_is_an_error_that_names_its_topic() -> None:
    producer = BulkProducer("nowhere:1")
    client: Any = Refusing()
    producer._producer = client
    text = "a record for 'gone' could not be produced to nowhere:1: _UNKNOWN_TOPIC"
    with pytest.raises(PeerError, match=text), producer:
        producer.produce(Output("gone", value=b"1"))
