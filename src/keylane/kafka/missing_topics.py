"""Topics that outputs are for and that do not exist: told, and not made by accident.

The idea: a broker makes a topic for any client that asks about it (`auto.create.topics.enable`, on by default), so a
misspelled name would get a topic of its own, with one partition, unnoticed. keylane's producers ask for none.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

NO_NEW_TOPICS: dict[str, Any] = {
    "allow.auto.create.topics": False,
    # How long librdkafka waits for brokers that may not have heard of a topic yet; 30 s by default.
    "topic.metadata.propagation.max.ms": 5_000,
}
"""Defaults of producers of results."""

NO_TOPIC = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})  # noqa: SLF001 - the client's name
"""What librdkafka and brokers answer to an output for a topic that does not exist."""


def way_out(topic: str) -> str:
    """What to do about it."""
    return f"create it (`keylane topics create {topic}`), or set kafka['allow.auto.create.topics'] to have it made"
