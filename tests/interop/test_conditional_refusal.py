"""Conditional commits on Apache Kafka: refused before anything is sent that could commit."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from keylane.kafka.admin import Admin
from keylane.kafka.conditional import Change, ConditionalCommits, ConditionalCommitUnsupportedError

if TYPE_CHECKING:
    import peers


@pytest.mark.parametrize("expected", [5, 4, None])
def test_apache_kafka_is_not_committed_to(apache_kafka: peers.ApacheKafka, expected: int | None) -> None:
    admin = Admin({"bootstrap.servers": apache_kafka.bootstrap})
    admin.create_topics({"conditional": 1})
    settings = {"bootstrap.servers": apache_kafka.bootstrap, "group.id": "conditional"}
    with closing(Consumer(settings)) as consumer:
        consumer.commit(offsets=[TopicPartition("conditional", 0, 5)], asynchronous=False)
    with (
        ConditionalCommits(apache_kafka.bootstrap, "conditional") as commits,
        pytest.raises(ConditionalCommitUnsupportedError, match="does not offer conditional commits"),
    ):
        commits.commit({("conditional", 0): Change(expected, 9)})
    (one,) = admin.committed_offsets("conditional").values()
    assert one.offset == 5
