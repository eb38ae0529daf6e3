"""A log that was cut below what was read of it, as a node without its disk may leave it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, Message

from keylane.consumer.start import Start
from keylane.errors import PeerError
from keylane.kafka.consumer import Fetcher
from keylane.kafka.faults import Faults
from keylane.offsets import OffsetMap

CUT = Message(  # librdkafka tells no position
    topic="t",
    partition=0,
    offset=OFFSET_INVALID,
    error=KafkaError(KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected"),
)


class Client:
    def list_topics(self, *_: Any, **__: Any) -> None:
        pass

    incremental_assign = resume = list_topics

    def consume(self, *_: Any) -> list[Any]:
        return [CUT]


def test_it_is_an_error_that_names_the_partition() -> None:
    client: Any = Client()
    fetcher = Fetcher(client, Any, Faults())  # type: ignore[arg-type] # the log is not asked
    fetcher.assign([Start("t", 0, 1, OffsetMap(0), 0, 100)])
    with pytest.raises(PeerError, match=r"t-0: its log was cut below what was read of it .*truncation detected"):
        fetcher.poll(10, 0)
