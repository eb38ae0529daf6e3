"""Commits by somebody else than keylane."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kit.stage import until


def commit(servers: str, group: str, offsets: list[TopicPartition]) -> None:
    """Commit for a group without members, with another client."""
    with closing(Consumer({"bootstrap.servers": servers, "group.id": group})) as consumer:

        def is_committed() -> bool:
            """Not while Apache Kafka makes its offsets topic, or loads a partition of it."""
            try:
                committed = consumer.commit(offsets=offsets, asynchronous=False) or []
            except KafkaException as raised:
                if raised.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                    return False
                raise
            assert [one.error for one in committed] == [None] * len(offsets)
            return True

        until(is_committed, "the coordinator takes commits")
