"""`TopicIds`: a topic that was deleted and made anew under its name is another one, and no commit is made in it.

The idea: librdkafka reads on in the new log at its position in the old one, where that is long enough by then, and
Apache Kafka's leader epochs begin at 0 again. Whoever commits there has passed over all that lies below. A topic has an
id, which it keeps until it is deleted (KIP-516): so ids are asked at the assignment, and again before a commit. By the
C API, for the client that is there already (as `keylane.kafka.exact`).
"""

from __future__ import annotations

import ctypes
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError
from keylane.kafka.exact import _ADMIN_GRACE_MS, _handle, _library

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Consumer

ANSWER_S = 5.0
"""How long a question waits. Brokers that do not answer take no commit either."""
FRESH_S = 1.0
"""So long an answer holds: what commits with each record does not ask with each."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Of brokers before KIP-516."""
_ANY_OPERATION = 0


class AnotherTopicError(PeerError):
    """A topic that is read is another one now."""


class TopicIds:
    """Of the topics that a member reads. Thread safety: any thread."""

    def __init__(self, client: Consumer) -> None:
        """`client` asks the brokers that have the records."""
        self._client = client
        self._known: dict[str, str] = {}
        self._asked_at: dict[str, float] = {}

    def know(self, topics: Iterable[str]) -> None:
        """These are read from now on. Of one that no broker tells in time, nothing is known."""
        question = Question(self._client, topics)
        for topic in question.topics:
            self._known.pop(topic, None)
        self._keep(question, question.wait())

    def question(self, topics: Iterable[str]) -> Question | None:
        """To `check` before a commit in these topics; None where that was done just now."""
        now = monotonic()
        old = [one for one in topics if one in self._known and now - self._asked_at[one] >= FRESH_S]
        return Question(self._client, old) if old else None

    def check(self, question: Question, found: Mapping[str, str]) -> None:
        """Raises `AnotherTopicError`."""
        for topic, topic_id in found.items():
            if topic_id != self._known.get(topic, topic_id):
                raise AnotherTopicError(
                    f"topic {topic!r} was deleted and made anew under its name while it was read: nothing is committed "
                    "in the new one, of which records may have been passed over. Start again: the group begins in it "
                    "as offset_reset says"
                )
        self._keep(question, found)

    def _keep(self, question: Question, found: Mapping[str, str]) -> None:
        self._asked_at |= dict.fromkeys(question.topics, question.asked_at)
        self._known |= found


class Question:
    """Which ids these topics have. Thread safety: one thread."""

    def __init__(self, client: Consumer, topics: Iterable[str]) -> None:
        self.topics = sorted(set(topics))
        self.asked_at = monotonic()
        handle = _handle(client)
        names = (ctypes.c_char_p * len(self.topics))(*(one.encode() for one in self.topics))
        self._queue = _library.rd_kafka_queue_new(handle)
        options = _library.rd_kafka_AdminOptions_new(handle, _ANY_OPERATION)
        collection = _library.rd_kafka_TopicCollection_of_topic_names(names, len(names))
        try:
            timeout_ms = int(ANSWER_S * 1000)
            _library.rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, None, 0)
            _library.rd_kafka_DescribeTopics(handle, collection, options, self._queue)
        finally:
            _library.rd_kafka_TopicCollection_destroy(collection)
            _library.rd_kafka_AdminOptions_destroy(options)

    def wait(self) -> dict[str, str]:
        """The answer; empty where none comes in time."""
        found = self.answer(int(ANSWER_S * 1000) + _ADMIN_GRACE_MS)
        if found is None:
            self.close()
        return found or {}

    def answer(self, wait_ms: int = 0) -> dict[str, str] | None:
        """By topic, of those that are there and have one; None where no answer is there within this time. Once."""
        event = _library.rd_kafka_queue_poll(self._queue, wait_ms)
        if not event:
            return None
        try:
            return _read(event)
        finally:
            _library.rd_kafka_event_destroy(event)
            self.close()

    def close(self) -> None:
        """Wait no more, where there was no answer."""
        _library.rd_kafka_queue_destroy(self._queue)


def _read(event: int) -> dict[str, str]:
    if _library.rd_kafka_event_error(event):
        return {}
    count = ctypes.c_size_t()
    result = _library.rd_kafka_event_DescribeTopics_result(event)
    described = _library.rd_kafka_DescribeTopics_result_topics(result, ctypes.byref(count))
    found = {}
    for one in described[: count.value]:
        if _library.rd_kafka_error_code(_library.rd_kafka_TopicDescription_error(one)):
            continue
        topic_id = _library.rd_kafka_Uuid_base64str(_library.rd_kafka_TopicDescription_topic_id(one)).decode()
        if topic_id != NO_ID:
            found[_library.rd_kafka_TopicDescription_name(one).decode()] = topic_id
    return found


def _declare() -> None:
    pointer = ctypes.c_void_p
    declarations: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_TopicCollection_of_topic_names": (pointer, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t]),
        "rd_kafka_TopicCollection_destroy": (None, [pointer]),
        "rd_kafka_DescribeTopics": (None, [pointer, pointer, pointer, pointer]),
        "rd_kafka_event_DescribeTopics_result": (pointer, [pointer]),
        "rd_kafka_DescribeTopics_result_topics": (
            ctypes.POINTER(pointer),
            [pointer, ctypes.POINTER(ctypes.c_size_t)],
        ),
        "rd_kafka_TopicDescription_error": (pointer, [pointer]),
        "rd_kafka_TopicDescription_name": (ctypes.c_char_p, [pointer]),
        "rd_kafka_TopicDescription_topic_id": (pointer, [pointer]),
        "rd_kafka_Uuid_base64str": (ctypes.c_char_p, [pointer]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(_library, name)
        function.restype, function.argtypes = result, arguments


_declare()
