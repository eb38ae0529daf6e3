"""`Leaders`: has a client know who leads a topic's partitions before it is told to read them.

The idea: librdkafka asks about a topic that it sees for the first time in an assignment from a timer of one second, so
that the first record of a manual assignment comes up to a second late. Asked beforehand, it reads at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Consumer

logger = logging.getLogger("keylane.kafka")

ANSWER_S = 0.5
"""How long one question waits for the broker: not as long as librdkafka's timer."""


class Leaders:
    """Of one client. Thread safety: one thread at a time."""

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self._known: set[str] = set()

    def learn(self, topics: Iterable[str]) -> None:
        """Ask about those that were not asked about before. A broker that is away is left to librdkafka's timer."""
        new = sorted(set(topics) - self._known)
        self._known.update(new)
        try:
            for topic in new:
                self._client.list_topics(topic, timeout=ANSWER_S)
        except KafkaException as error:
            logger.debug("leaders of %s are not known yet: %s", ", ".join(new), error)
