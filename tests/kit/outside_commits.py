"""Commits by somebody else than keylane."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kit.stage import until

NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""What Apache Kafka answers while it makes its offsets topic, loads a partition of it, or has yet to lead it."""


def commit(servers: str, group: str, offsets: list[TopicPartition]) -> None:
    """Commit for a group without members, with another client."""
    with closing(Consumer({"bootstrap.servers": servers, "group.id": group})) as consumer:

        def is_committed() -> bool:
            try:
                committed = consumer.commit(offsets=offsets, asynchronous=False) or []
            except KafkaException as raised:
                if raised.args[0].code() in NOT_YET:
                    return False
                raise
            errors = [one.error for one in committed if one.error is not None]
            if any(error.code() in NOT_YET for error in errors):
                return False
            assert (len(committed), errors) == (len(offsets), [])
            return True

        until(is_committed, "the coordinator takes commits")
