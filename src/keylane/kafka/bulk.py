"""Plain, bounded producing and reading: fill a topic, read it whole. No group, no commits, nothing of the engine.

The demo's input and its verdict go through here, so that what is verified is read by other code than what is verified.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Self, cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from keylane.errors import BrokerUnavailableError, PeerError, RecordTooLargeError
from keylane.kafka.clients import Consumer, Producer
from keylane.kafka.faults import DAMAGED, PARTITION_END, PASSING, Faults, client_of, damage_of, describe, error_of
from keylane.kafka.logs import Logs, Patience
from keylane.kafka.missing_topics import NO_TOPIC, way_out
from keylane.kafka.settings import ANY_SIZE, LEADERS, SILENT_MS, reading
from keylane.kafka.sizes import TOO_LARGE, Limits, size_of
from keylane.records import Record
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from confluent_kafka import Message

    from keylane.records import Message as StoredMessage
    from keylane.records import Output

READ_BATCH_RECORDS = 2_000
"""Records a call into the client; larger ones gain nothing."""

POLL_S = 0.2
POLL_RECORDS = 100
"""A producer looks for errors each time it has taken so many records: a look at each costs a quarter of its time."""
CALL_RECORDS = 500
"""Records that one call hands to the client: one by one they cost three times as much."""

QUEUE_FULL = KafkaError._QUEUE_FULL  # noqa: SLF001 - the client's name

CLIENT_LOG = {"logger": logger_of("keylane.kafka"), "log_level": "2"}
"""librdkafka's lines about each attempt to connect are not wanted: what goes wrong is in the errors raised here."""

LOOK_S = 5.0
"""How long the first record's topic is asked about."""

FLUSH_TIMEOUT_S = 60.0
"""For the last records' acknowledgements; longer than a broker's restart."""

SILENCE_TIMEOUT_S = 30.0
"""A reader that is not at its end and gets nothing for this long fails."""


class BulkProducer:
    """An idempotent producer for many records; close() (or leaving the block) waits until all are acknowledged.

    Raises `PeerError` for the first record that could not be delivered. Thread safety: one thread at a time.
    """

    def __init__(self, servers: str, settings: Mapping[str, Any] | None = None) -> None:
        # The partitioner of Java's clients, so that a key's partition is the same whoever produces it.
        defaults = {"enable.idempotence": True, "linger.ms": 20, "partitioner": "murmur2_random", **CLIENT_LOG}
        # A call of ours for each record that arrives costs as much as handing it over: errors alone are told.
        defaults |= LEADERS | ANY_SIZE | {"socket.timeout.ms": SILENT_MS, "delivery.report.only.error": True}
        self._servers = servers
        self._limits = Limits({**(settings or {}), "bootstrap.servers": servers})
        self._producer = client_of(Producer, defaults | dict(settings or {}) | {"bootstrap.servers": servers})
        self._failure: PeerError | None = None
        self._records = 0
        """Handed over."""
        self._is_connected = False

    @property
    def delivered(self) -> int:
        """Records that the broker has acknowledged, as far as no error was told."""
        return self._records - len(self._producer)

    def produce(self, record: Output) -> None:
        """Hand one record over; waits while the client's queue is full."""
        self._connect(record.topic)
        while True:
            self._raise_failure()
            try:
                self._producer.produce(
                    record.topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=-1 if record.partition is None else record.partition,
                    timestamp=record.timestamp_ms or 0,  # 0: now
                    on_delivery=self._on_delivery,
                )
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as raised:  # the client knows already what the broker would say
                self._failed(record.topic, error_of(raised), size_of(record))
            else:
                self._records += 1
                if self._records % POLL_RECORDS == 0:
                    self._producer.poll(0)
                return

    def produce_all(self, records: Iterable[Output]) -> None:
        """Hand many over, in their order; waits while the client's queue is full."""
        for topic, some in groupby(records, _topic_of_plain):
            if topic is None:
                for record in some:
                    self.produce(record)
                continue
            while many := list(islice(some, CALL_RECORDS)):
                self.produce_columns(topic, [one.key for one in many], [one.value for one in many])

    def produce_columns(self, topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]) -> None:
        """Hand records over, in their order, of which there are keys (None: no record has one) and values alone: by far
        the cheapest way."""
        for at in range(0, len(values), CALL_RECORDS):
            some = slice(at, at + CALL_RECORDS)
            if keys is None:
                self._produce_batch(topic, [{"value": value} for value in values[some]])
            else:
                pairs = zip(keys[some], values[some], strict=True)
                self._produce_batch(topic, [{"key": key, "value": value} for key, value in pairs])

    def _connect(self, topic: str) -> None:
        """Before the first record. The client asks for a producer id, and for a transactional id's coordinator, at once
        where it has a connection; else, 500 ms later. The first answer makes it drop the bootstrap server's, so the
        second one is waited for, over the next. A broker that is away is told of by what follows."""
        if not self._is_connected:
            self._is_connected = True
            with suppress(KafkaException):
                for _ in range(2):
                    self._producer.list_topics(topic, LOOK_S)

    def _produce_batch(self, topic: str, left: list[dict[str, Any]]) -> None:
        self._connect(topic)
        while left:
            self._raise_failure()
            self._records += self._producer.produce_batch(topic, left, on_delivery=self._on_delivery)
            refused = [(one, one.pop("_error")) for one in left if "_error" in one]
            for one, error in refused:
                if error.code() != QUEUE_FULL:
                    self._failed(topic, error, len(one.get("key") or b"") + len(one["value"] or b""))
            left = [one for one, _ in refused]  # all from the first on for which there was no room
            self._producer.poll(POLL_S if left else 0)

    def close(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Wait until all are acknowledged."""
        waiting = self._producer.flush(FLUSH_TIMEOUT_S)
        self._raise_failure()
        if waiting:
            raise BrokerUnavailableError(
                f"{waiting} records were not acknowledged by {self._servers} within {FLUSH_TIMEOUT_S:.0f} s"
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            key, value = message.key(), message.value()
            self._failed(message.topic(), error, size=len(key or b"") + len(value or b""))

    def _failed(self, topic: str | None, error: KafkaError, size: int | None = None) -> None:
        if self._failure is None and error.code() in TOO_LARGE:
            self._failure = RecordTooLargeError(f"a record was not taken: {self._limits.refusal(str(topic), size)}")
        elif self._failure is None:
            hint = f"; {way_out(str(topic))}" if error.code() in NO_TOPIC else ""
            text = f"a record for {topic!r} could not be produced to {self._servers}: {describe(error)}{hint}"
            self._failure = PeerError(text)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error_type is None:
            self.close()
        else:
            self._producer.purge()
            self._producer.flush(0)


def _topic_of_plain(record: Output) -> str | None:
    """None for a record that the client takes by itself alone: with headers, a timestamp or a partition."""
    is_plain = not record.headers and record.timestamp_ms is None and record.partition is None
    return record.topic if is_plain else None


def read_to_end(
    servers: str, topic: str, partitions: list[int] | None = None, *, settings: Mapping[str, Any] | None = None
) -> Iterator[list[Record]]:
    """All records of a topic (or of some of its partitions) from its start to the end it has when the reading starts.

    Batches may mix partitions; within one they come in offset order. Raises `PeerError` when the topic is unknown,
    cannot be read or is damaged, `BrokerUnavailableError` when nothing comes for 30 s.
    """
    reader = reader_of(servers, settings or {})
    try:
        yield from _read(reader, topic, _spans(reader, servers, topic, partitions))
    finally:
        reader.close()


def read_one(servers: str, topic: str, partition: int, offset: int, *, settings: Mapping[str, Any]) -> Record | None:
    """The record at an offset of the log; None where the log has none there. Raises what `read_to_end` does."""
    return read_first(servers, topic, partition, (offset, offset + 1), settings=settings)


def read_first(
    servers: str, topic: str, partition: int, span: tuple[int, int], *, settings: Mapping[str, Any]
) -> Record | None:
    """The first record with an offset in start … stop - 1; None where the log has none there. Raises what
    `read_to_end` does."""
    reader = reader_of(servers, {"queued.min.messages": 1} | dict(settings))
    try:
        for batch in _read(reader, topic, {partition: span}):
            return batch[0]
    finally:
        reader.close()
    return None


def read_each(
    servers: str, places: Iterable[tuple[str, int, int]], *, settings: Mapping[str, Any]
) -> dict[tuple[str, int, int], Record]:
    """The records at these places (topic, partition, offset within the log), without those of which the log has none.
    Raises what `read_to_end` does."""
    found: dict[tuple[str, int, int], Record] = {}
    reader = reader_of(servers, {"queued.min.messages": 1} | dict(settings))
    try:
        for topic, partition, offset in sorted(places):
            for batch in _read(reader, topic, {partition: (offset, offset + 1)}):
                found[topic, partition, offset] = batch[0]
    finally:
        reader.close()
    return found


def reader_of(servers: str, settings: Mapping[str, Any]) -> Consumer:
    return client_of(
        Consumer,
        reading({"fetch.wait.max.ms": 50, "fetch.queue.backoff.ms": 20, **CLIENT_LOG, **settings})
        | {
            "bootstrap.servers": servers,
            "group.id": f"keylane-reader-{uuid.uuid4()}",  # never joined, never committed to
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        },
    )


def _spans(reader: Consumer, servers: str, topic: str, partitions: list[int] | None) -> dict[int, tuple[int, int]]:
    """Partition to (start, end) for the partitions that hold anything."""
    logs = Logs(reader, Patience(servers), Faults())
    if partitions is None:
        known = logs.metadata(topic).get(topic)
        if known is None or known.error is not None:
            reason = "it does not exist" if known is None or known.error is None else describe(known.error)
            raise PeerError(f"topic {topic!r} at {servers} cannot be read: {reason}")
        partitions = sorted(known.partitions)
    spans = {}
    for partition in partitions:
        start, end = logs.bounds(topic, partition)
        if start < end:
            spans[partition] = (start, end)
    return spans


def _read(reader: Consumer, topic: str, spans: dict[int, tuple[int, int]]) -> Iterator[list[Record]]:
    if not spans:
        return
    reader.assign([TopicPartition(topic, partition, start) for partition, (start, _) in spans.items()])
    open_ends = {partition: end for partition, (_, end) in spans.items()}
    heard = time.monotonic()
    while open_ends:
        batch: list[Record] = []
        for message in _arrived(reader):
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None
            if error is not None:
                if error.code() == PARTITION_END:
                    open_ends.pop(partition, None)  # an end of control records alone is only told by this event
                else:
                    _check(message, error)
            elif partition in open_ends:
                assert offset is not None
                if offset < spans[partition][1]:
                    batch.append(Record(cast("StoredMessage", message)))
                if offset + 1 >= open_ends[partition]:
                    del open_ends[partition]
        if batch:
            yield batch
            heard = time.monotonic()  # however long the caller took
        elif time.monotonic() - heard > SILENCE_TIMEOUT_S:
            raise BrokerUnavailableError(
                f"topic {topic!r}: nothing came for {SILENCE_TIMEOUT_S:.0f} s from partitions {sorted(open_ends)}"
            )


def _arrived(reader: Consumer) -> list[Message]:
    """What is there, once something is. A call for the whole number waits for it to be there, or for the time's end."""
    first = reader.consume(1, POLL_S)
    return first + reader.consume(READ_BATCH_RECORDS, 0) if first else first


def _check(event: Message, error: KafkaError) -> None:
    """Raises unless a leader moves: then it is silence that ends the reading."""
    if error.code() in DAMAGED:
        raise damage_of(event)
    if error.code() not in PASSING:
        raise PeerError(f"topic {event.topic()!r} cannot be read: {describe(error)}")
