"""`RangeReader`: reads given offsets of one partition at a time, without a group, as columns.

The idea: a range is read from its start until a record, or the end of the log, lies at or beyond its stop, so
compaction and control records need no guess. What a range should hold and the log does not is either an error or
logged and passed. A reader keeps its connections between ranges: `borrowed` hands the same ones out again.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Message, TopicPartition

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.client_log import ClientLog
from keylane.kafka.clients import Consumer
from keylane.kafka.consumer import consume_some
from keylane.kafka.faults import DAMAGED, OUT_OF_RANGE, PARTITION_END, Faults, client_of, damage_of
from keylane.kafka.leaders import Leaders
from keylane.kafka.logs import Logs, Patience
from keylane.kafka.settings import CONSUMER_DEFAULTS, CONSUMER_FORCED, reading
from keylane.records import carried_headers_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

logger = logger_of("keylane.kafka")

MAX_CONSUME = 10_000
"""Records in one call into the client, and in one batch of columns."""

POLL_S = 0.1
"""How long one call waits for a first record."""

END_GRACE_S = 5.0
"""How long a log may end below what was planned before that counts as lost: a new leader's high watermark lags."""

SEEK_GAP = 2_000
"""Offsets between two ranges that are read and dropped; over a larger gap the reader goes straight to the next one."""

RANGE_DEFAULTS: dict[str, Any] = {
    "client.id": CONSUMER_DEFAULTS["client.id"],
    "fetch.queue.backoff.ms": CONSUMER_DEFAULTS["fetch.queue.backoff.ms"],
    # What a range has is there already. A fetch beyond its end, which librdkafka sends ahead, would hold back the next
    # range's for this long: 500 ms by default, in each task of a small batch.
    "fetch.wait.max.ms": 10,
    "isolation.level": "read_uncommitted",  # as Java's consumer, and Spark's source
}


class Columns(NamedTuple):
    """Records of one partition, in offset order, a list a field."""

    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: list[int]
    times: list[int]
    """Milliseconds since the epoch."""
    time_types: list[int]
    """0 no timestamp, 1 made by the producer, 2 by the broker."""
    headers: list[list[tuple[str, bytes | None]] | None] | None
    """None when they were not asked for."""


class RangeReader:
    """Reads without joining `group_id`, which librdkafka wants, and brokers may check.

    Raises `UsageError` for settings that librdkafka refuses. Thread safety: one thread at a time.
    """

    def __init__(self, settings: Mapping[str, Any], group_id: str) -> None:
        self._faults = Faults()
        self.failed = False
        """Set when reading ended with an error: its connections are not used again."""
        made = reading(RANGE_DEFAULTS | dict(settings)) | CONSUMER_FORCED | {"group.id": group_id}
        self._consumer = client_of(Consumer, made | {"error_cb": self._faults.report, "logger": ClientLog()})
        self._leaders = Leaders(self._consumer)
        self._logs = Logs(self._consumer, Patience(str(settings.get("bootstrap.servers"))), self._faults)

    def read(
        self,
        topic: str,
        partition: int,
        spans: Sequence[tuple[int, int]],
        *,
        silence_ms: int = 120_000,
        fail_on_data_loss: bool = True,
        headers: bool = False,
    ) -> Iterator[Columns]:
        """The records with offsets in `spans` (ascending, disjoint (start, stop) pairs).

        Raises `PeerError` when some of them are not in the log any more (unless `fail_on_data_loss` is off), one is
        damaged or the broker refuses, and `BrokerUnavailableError` when nothing comes for `silence_ms`.
        """
        self.failed = True
        self._leaders.learn([topic])
        for start, stop in _stretches(spans):
            wanted = [one for one in spans if start <= one[0] < stop]
            for messages in self._stretch(topic, partition, start, stop, silence_ms, fail_on_data_loss):
                kept = messages if len(wanted) == 1 else _within(messages, wanted)
                if kept:
                    yield _columns(kept, headers=headers)
        self._consumer.unassign()
        self.failed = False

    def close(self) -> None:
        self._consumer.close()

    def _stretch(
        self, topic: str, partition: int, start: int, stop: int, silence_ms: int, fail_on_data_loss: bool
    ) -> Iterator[list[Message]]:
        name = f"{topic}-{partition}"
        self._consumer.assign([TopicPartition(topic, partition, start)])
        position, end, heard = start, -1, time.monotonic()
        while position < stop:
            messages = consume_some(self._consumer, MAX_CONSUME, POLL_S)
            self._faults.raise_failure()
            records = [one for one in messages if one.error() is None]
            for event in messages if len(records) < len(messages) else ():
                if (error := event.error()) is None:
                    continue
                if error.code() == PARTITION_END:
                    end = event.offset() or 0
                elif error.code() == OUT_OF_RANGE:
                    position = self._out_of_range(topic, partition, position, stop, fail_on_data_loss)
                else:
                    self._report(event, stop)
            if end >= stop:
                position = stop  # what lies between the last record and the end is no record
            elif end > position and time.monotonic() - heard > END_GRACE_S:
                self._lost(name, f"ends at {end}, before {stop}", fail_on_data_loss)
                position = stop
            if records:
                heard = time.monotonic()
                position = max(position, records[-1].offset() + 1)
                if position > stop or (records[0].offset() or 0) < start:
                    records = _within(records, [(start, stop)])
                if records:
                    yield records
            elif time.monotonic() - heard > silence_ms / 1000:
                reason = f" ({self._faults.last})" if self._faults.last else ""
                raise BrokerUnavailableError(
                    f"{name}: nothing came at offset {position} for {silence_ms} ms{reason}; check the broker, or "
                    "raise kafkaConsumer.pollTimeoutMs"
                )

    def _report(self, event: Message, stop: int) -> None:
        """An error; damage from `stop` on, which was fetched ahead, is no concern of this range."""
        error = event.error()
        assert error is not None
        if error.code() not in DAMAGED:
            self._faults.report(error)
        elif (event.offset() or 0) < stop:
            raise damage_of(event)

    def _out_of_range(self, topic: str, partition: int, position: int, stop: int, fail_on_data_loss: bool) -> int:
        """The log does not reach to the position; returns where to go on."""
        low, high = self._logs.bounds(topic, partition)
        name = f"{topic}-{partition}"
        if position < low:
            self._lost(name, f"starts at {low}, beyond {position}", fail_on_data_loss)
            position = low
        else:
            self._lost(name, f"ends at {high}, before {position}", fail_on_data_loss)
            position = stop
        if position < stop:
            self._consumer.assign([TopicPartition(topic, partition, position)])
        return position

    def _lost(self, name: str, text: str, fail: bool) -> None:
        if fail:
            raise PeerError(
                f"{name}: the log {text}: records were deleted before they were read (retention, or the topic was made "
                "anew); set failOnDataLoss=false to go on without them"
            )
        logger.warning("%s: the log %s; going on without what is lost (failOnDataLoss=false)", name, text)


_idle: dict[tuple[Any, ...], RangeReader] = {}
_idle_lock = threading.Lock()


@contextmanager
def borrowed(settings: Mapping[str, Any], group_id: str) -> Iterator[RangeReader]:
    """A reader with these settings: one that is idle in this process, or a new one. Given back unless it failed."""
    key = (group_id, *sorted(settings.items()))
    with _idle_lock:
        reader = _idle.pop(key, None)
    if reader is None:
        reader = RangeReader(settings, group_id)
    try:
        yield reader
    finally:
        with _idle_lock:
            keep = not reader.failed and key not in _idle
            if keep:
                _idle[key] = reader
        if not keep:
            reader.close()


def _stretches(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans, with those joined that are too near for a seek between them."""
    stretches: list[tuple[int, int]] = []
    for start, stop in spans:
        if stretches and start - stretches[-1][1] <= SEEK_GAP:
            stretches[-1] = (stretches[-1][0], stop)
        else:
            stretches.append((start, stop))
    return stretches


def _within(messages: Sequence[Message], spans: Sequence[tuple[int, int]]) -> list[Message]:
    within, index = [], 0
    for message in messages:
        offset = message.offset()
        assert offset is not None
        while index < len(spans) and offset >= spans[index][1]:
            index += 1
        if index == len(spans):
            break
        if offset >= spans[index][0]:
            within.append(message)
    return within


def _columns(messages: list[Any], *, headers: bool) -> Columns:
    of: Any = Message  # its methods, called from C for a whole list
    # A list of the pairs themselves would have Python look for cycles in them.
    return Columns(
        list(map(of.key, messages)),
        list(map(of.value, messages)),
        list(map(of.offset, messages)),
        list(map(itemgetter(1), map(of.timestamp, messages))),
        list(map(itemgetter(0), map(of.timestamp, messages))),
        [carried_headers_of(one) or None for one in messages] if headers else None,
    )
