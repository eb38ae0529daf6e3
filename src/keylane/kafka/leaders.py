"""`Leaders`: has a client know who leads a topic's partitions before it is told to read them.

The idea: librdkafka asks about a topic that it sees for the first time in an assignment from a timer of one second, so
that the first record of a manual assignment comes up to a second late. Asked beforehand, it reads at once.

`learn_leaders` does the same again, for a client whose leaders may have moved, and wherever the client is in use.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from keylane.kafka.exact import _handle, _library, _raise
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Consumer

logger = logger_of("keylane.kafka")

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


def learn_leaders(client: Consumer, topic: str, timeout_s: float) -> None:
    """Have any broker say who leads this topic's partitions now. Raises `KafkaException`.

    For use in the client's own callbacks, too. confluent-kafka's `list_topics` is not: it takes away what the next
    callback of the same poll looks for, and that one then ends the process on an assertion.
    """
    handle = _handle(client)
    one = _library.rd_kafka_topic_new(handle, topic.encode(), None)
    if not one:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC, f"{topic!r} is no topic's name"))  # noqa: SLF001 - the client's name
    found = ctypes.c_void_p()
    try:
        _raise(_library.rd_kafka_metadata(handle, 0, one, ctypes.byref(found), int(timeout_s * 1000)))
        _library.rd_kafka_metadata_destroy(found)
    finally:
        _library.rd_kafka_topic_destroy(one)


def _declare() -> None:
    pointer = ctypes.c_void_p
    declarations: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_topic_new": (pointer, [pointer, ctypes.c_char_p, pointer]),
        "rd_kafka_topic_destroy": (None, [pointer]),
        "rd_kafka_metadata": (ctypes.c_int, [pointer, ctypes.c_int, pointer, pointer, ctypes.c_int]),
        "rd_kafka_metadata_destroy": (None, [pointer]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(_library, name)
        function.restype, function.argtypes = result, arguments


_declare()
