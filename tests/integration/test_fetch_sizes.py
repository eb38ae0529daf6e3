"""A consumer of many partitions has less of each in an answer of its broker, so that all have their turn soon."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from keylane.kafka.consumer import KafkaConsumer
from keylane.kafka.faults import client_of
from keylane.kafka.settings import FETCH_BYTES
from keylane.pipeline import Partitions, Pipeline
from keylane.testing import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"few": 2, "many": 100}) as broker:
        yield broker


@pytest.mark.parametrize(
    ("topics", "given", "size"),
    [
        (["few"], {}, 100_000),
        (["many"], {}, 50_000),
        (["few", "many"], {}, 49_019),
        ("^m.*", {}, 50_000),
        (Partitions([("many", 3)]), {}, 100_000),
        (["many"], {FETCH_BYTES: 60_000}, 60_000),
    ],
)
def test_the_client_that_reads_is_made_for_as_many_partitions(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, topics: Any, given: dict[str, Any], size: int
) -> None:
    made: list[dict[str, Any]] = []

    def note(kind: Any, settings: dict[str, Any], what: str) -> Any:
        made.append(settings)
        return client_of(kind, settings, what)

    monkeypatch.setattr("keylane.kafka.consumer.client_of", note)
    kafka = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"} | given
    with closing(KafkaConsumer(Pipeline(kafka=kafka, handler=print, topics=topics))) as consumer:
        consumer.check()
    assert made[-1][FETCH_BYTES] == size
