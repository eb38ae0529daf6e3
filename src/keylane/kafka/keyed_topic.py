"""`KeyedReader` and `KeyedWriter`: a topic of one partition in which a record replaces the one before of its key.

The idea: neither is part of a group or of a transaction, and neither raises for what passes by itself: a reader goes on
where it was, and what a writer could not bring anywhere in a minute is given up.
"""

# ruff: noqa: SLF001 - the client's names for librdkafka's own errors begin with an underscore

from __future__ import annotations

import threading
import uuid
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.bulk import CLIENT_LOG
from keylane.kafka.clients import Consumer, Producer
from keylane.kafka.faults import DAMAGED, PARTITION_END, PASSING, Faults, client_of, damage_of, describe, error_of
from keylane.kafka.logs import Logs, Patience
from keylane.kafka.missing_topics import NO_NEW_TOPICS
from keylane.kafka.redriving import connecting
from keylane.kafka.settings import ANY_SIZE, LEADERS, SILENT_MS, reading
from keylane.records import carried_headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message

    from keylane.kafka.redriving import Settings
    from keylane.records import HasHeaders

END_S = 30.0
"""How long a reader looks for the end of the topic at most."""
CLIENT_ID = {"client.id": "keylane"}
GIVE_UP_MS = 60_000
"""After which a writer gives a record up."""
FAILED_FOR_GOOD = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER})
"""Of a record that was in a client whose log went back."""


class Entry(NamedTuple):
    """A record."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    """Of those with one name, the last."""
    written_ms: int
    offset: int = 0
    leader_epoch: int = -1
    """Of the leader that appended it; -1: its broker does not tell."""
    has_append_time: bool = False
    """Whether `written_ms` is the time at which the leader appended it, and not what its writer said."""


class KeyedReader:
    """Reads a topic from its start on, or from one of its last records on. Raises `UsageError` for settings that
    librdkafka refuses. Thread safety: one thread at a time."""

    def __init__(self, kafka: Settings, topic: str) -> None:
        self._servers = str(kafka["bootstrap.servers"])
        self._topic = topic
        ours = {
            "group.id": f"keylane-reader-{uuid.uuid4()}",  # never joined, never committed to
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 20,
        }
        self._client = client_of(Consumer, reading(CLIENT_LOG | CLIENT_ID | dict(connecting(kafka))) | ours)
        self._client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.position = 0
        """Behind the last record that was read."""
        self.is_another = False
        """Whether the log is another one than that which was read: its offsets went back, or its leader epochs did."""
        self._epoch = -1

    def to_end(self, last: int | None = None) -> list[Entry]:
        """All records up to the end that the topic has now, or so many of the last ones. Raises `PeerError` when the
        topic cannot be read, `BrokerUnavailableError` when no end comes."""
        start, end = Logs(self._client, Patience(self._servers), Faults()).bounds(self._topic, 0)
        if last is not None:
            self.position = max(start, end - last)
            self._client.assign([TopicPartition(self._topic, 0, self.position)])
        found: list[Entry] = []
        until = monotonic() + END_S
        while monotonic() < until:
            some, is_end = self._next(0.2)
            found += some
            if is_end or self.position >= end:  # others write on: an end that is told may never come
                return found
        raise BrokerUnavailableError(
            f"topic {self._topic!r} at {self._servers} was not read to its end within {END_S:.0f} s: try again"
        )

    def poll(self, wait_s: float) -> list[Entry]:
        """The next records, once there are some, or after the wait. Raises `PeerError` as `to_end` does."""
        return self._next(wait_s)[0]

    def close(self) -> None:
        self._client.close()

    def _next(self, wait_s: float) -> tuple[list[Entry], bool]:
        first = self._client.consume(1, wait_s)
        messages = first + self._client.consume(1_000, 0) if first else first
        is_end = False
        found = []
        for message in messages:
            if (error := message.error()) is None:
                found.append(_entry(message))
                self._observe(message.offset() or 0, message.leader_epoch())
            elif error.code() == PARTITION_END:
                is_end = True
            elif error.code() in DAMAGED:
                raise damage_of(message)
            elif error.code() not in PASSING:
                raise PeerError(f"topic {self._topic!r} cannot be read: {describe(error)}")
        return found, is_end

    def _observe(self, offset: int, epoch: int | None) -> None:
        epoch = self._epoch if epoch is None else epoch
        self.is_another |= offset < self.position or epoch < self._epoch
        self.position, self._epoch = offset + 1, epoch


def _entry(message: Message) -> Entry:
    kind, written_ms = message.timestamp()
    epoch = message.leader_epoch()
    return Entry(
        message.key(),
        message.value(),
        dict(carried_headers_of(cast("HasHeaders", message))),
        written_ms,
        message.offset() or 0,
        -1 if epoch is None else epoch,
        has_append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
    )


class KeyedWriter:
    """Writes records by key. `refused` hears of one that a broker does not take, on the thread of a call.

    Raises `UsageError` for settings that librdkafka refuses. Thread safety: any thread.
    """

    def __init__(self, kafka: Settings, topic: str, refused: Callable[[str], None]) -> None:
        self._topic = topic
        self._refused = refused
        ours = (
            NO_NEW_TOPICS
            | LEADERS
            | CLIENT_LOG
            | ANY_SIZE
            | {
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": 5,
                "message.timeout.ms": GIVE_UP_MS,
                "socket.timeout.ms": SILENT_MS,
            }
        )
        self._settings = CLIENT_ID | dict(connecting(kafka)) | ours
        self._client = client_of(Producer, self._settings)
        self._lock = threading.Lock()
        """Guards the client's replacement."""
        self._has_failed = False
        """The client takes nothing any more: its log was put back to an older copy, and knows other sequences."""
        self._not_taken: list[Message] = []
        """What it had not brought anywhere then."""

    def write(self, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Hand one over; None deletes the key."""
        with self._lock:
            self._replace_failed()
            self._produce(key, value, headers)
            self._serve(self._client.poll, 0)

    def flush(self, within_s: float) -> bool:
        """Wait until all are acknowledged or given up; whether they are within the time."""
        until = monotonic() + within_s
        while True:
            left = self._serve(self._client.flush, max(until - monotonic(), 0))
            with self._lock:
                if not self._replace_failed():
                    return left == 0

    def _replace_failed(self) -> bool:
        if not self._has_failed:
            return False
        self._client = client_of(Producer, self._settings)
        self._has_failed = False
        again, self._not_taken = self._not_taken, []
        for one in again:
            self._produce(one.key() or b"", one.value(), cast("HasHeaders", one).headers() or [])
        return True

    def _produce(self, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> None:
        try:
            self._client.produce(
                self._topic, key=key, value=value, headers=list(headers), partition=0, on_delivery=self._delivered
            )
        except BufferError:
            self._refused("too much waits to be written")
        except KafkaException as raised:
            self._delivered(error_of(raised), None)

    def _serve(self, call: Callable[[float], int], wait_s: float) -> int:
        """Make a call that serves reports. Returns how many records are left."""
        try:
            return call(wait_s)
        except KafkaException:
            self._has_failed = True
            return 0

    def _delivered(self, error: KafkaError | None, message: Message | None) -> None:
        if error is None or error.code() == KafkaError._MSG_TIMED_OUT:
            return
        if message is not None and error.code() in FAILED_FOR_GOOD:
            self._has_failed = True
            self._not_taken.append(message)
        else:
            self._refused(describe(error))
