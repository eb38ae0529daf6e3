"""`Redriving`: records and a group's offsets in Kafka transactions, one after the other.

The idea: the group is nobody's but the redrive's, and its name is the transactional id as well. Whoever begins fences
an earlier one, whose open transaction is aborted, and reads the group's offsets after that: those are committed. So a
process that is killed anywhere has done all of a transaction or nothing of it, and the next one knows which.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.bulk import CLIENT_LOG, read_each, read_one, read_to_end
from keylane.kafka.clients import Consumer
from keylane.kafka.exact_transactions import send_offsets
from keylane.kafka.faults import client_of, describe, error_of
from keylane.kafka.missing_topics import NO_NEW_TOPICS
from keylane.kafka.open_transaction_producer import OpenTransaction
from keylane.kafka.settings import CONSUMER_ONLY, MEMBER_DEFAULTS, PRODUCER_ONLY, STATISTICS
from keylane.pipeline import TRACKING_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from keylane.consumer.ports import Offset
    from keylane.records import Record

Settings = Mapping[str, Any]
"""Of Kafka's clients."""

TRANSACTION_TIMEOUT_MS = 30_000
"""So long readers of committed records wait for a process that was killed, unless the next one begins before."""
CALL_S = 5.0
END_S = 60.0
"""How long the end of a transaction is asked for: a coordinator may move meanwhile."""

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001 - the client's name


def read_committed(kafka: Settings, topic: str) -> Iterator[list[Record]]:
    """All committed records of a topic, up to the end that it has now. Raises what `bulk.read_to_end` does."""
    return read_to_end(str(kafka["bootstrap.servers"]), topic, settings=_reading(kafka))


def committed_record(kafka: Settings, topic: str, partition: int, offset: int) -> Record | None:
    """The committed record at an offset; None where there is none: compaction took it, its transaction was aborted, or
    it is a transaction's marker. The offset is within the log. Raises what `bulk.read_one` does."""
    return read_one(str(kafka["bootstrap.servers"]), topic, partition, offset, settings=_reading(kafka))


def committed_records(kafka: Settings, places: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int, int], Record]:
    """The same for many places, without those that have none. Raises what `bulk.read_each` does."""
    return read_each(str(kafka["bootstrap.servers"]), places, settings=_reading(kafka))


def _reading(kafka: Settings) -> Settings:
    return dict(connecting(kafka)) | {"isolation.level": "read_committed"}


def connecting(kafka: Settings) -> Settings:
    """The settings that any client may have: where brokers are, TLS, SASL."""
    dropped = CONSUMER_ONLY | PRODUCER_ONLY | STATISTICS | TRACKING_SETTINGS.keys()
    return {name: value for name, value in kafka.items() if name not in dropped}


class Redriving(OpenTransaction):
    """One transaction after another, as the only one that redrives for `group`. Leaving the block aborts what is open.

    Raises `UsageError` for settings that librdkafka refuses, `PeerError` for a record that is refused and when another
    one has begun for the group, `BrokerUnavailableError`. Thread safety: one thread.
    """

    def __init__(self, kafka: Settings, group: str, topic: str) -> None:
        """`topic`: one of those that are produced to."""
        servers = str(kafka["bootstrap.servers"])
        dropped = CONSUMER_ONLY | TRACKING_SETTINGS.keys()
        producing = {name: value for name, value in kafka.items() if name not in dropped}
        super().__init__(servers, NO_NEW_TOPICS | producing, group, TRANSACTION_TIMEOUT_MS, topic)
        asking = (
            MEMBER_DEFAULTS | CLIENT_LOG | dict(connecting(kafka)) | {"group.id": group, "enable.auto.commit": False}
        )
        self._asking = client_of(Consumer, asking)
        """Knows who coordinates the group, and never joins it."""

    def commit(self, positions: Sequence[Offset]) -> None:
        """End the transaction with these offsets in it, and begin the next one. On an error nothing of it counts,
        unless it is the answer to the commit itself that did not come: the group's offsets tell."""
        self.flush()
        self._until_told(lambda: send_offsets(self._producer, self._asking, positions, CALL_S))
        self._until_told(lambda: self._producer.commit_transaction(CALL_S))
        self._producer.begin_transaction()

    def _until_told(self, call: Callable[[], None]) -> None:
        """Make a call until it succeeds, or cannot."""
        until = time.monotonic() + END_S
        while True:
            try:
                call()
            except KafkaException as raised:
                error = error_of(raised)
                if error.code() in _FENCED:
                    raise PeerError(
                        f"another redrive has begun for the group {self.id!r}, and goes on from what this one has "
                        "committed: wait for it, or name another group"
                    ) from raised
                if error.retriable() and time.monotonic() < until:
                    time.sleep(0.05)  # as a coordinator that moves takes its time
                    continue
                kind = BrokerUnavailableError if error.retriable() else PeerError
                raise kind(f"the transaction of {self.id!r} did not end: {describe(error)}; start again") from raised
            else:
                return

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._producer.purge()
            self._abort()
        finally:
            self._asking.close()
