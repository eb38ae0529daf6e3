"""`OpenTransaction`: a producer whose transaction goes on when it is gone."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.faults import describe, error_of
from keylane.kafka.settings import SILENT_MS, TRANSACTIONAL_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

INIT_S = 60.0
"""How long a producer may take to get its transactional id: a coordinator may move meanwhile."""
ABORT_S = 2.0
"""How long a transaction's own abort is waited for: its timeout, or the next batch's start, ends it as well."""


class OpenTransaction(BulkProducer):
    """A transaction for many records. Leaving the block waits until all are acknowledged, and leaves it open: it is
    ended by `TransactionsClient.end`, or by its timeout. An error in the block aborts it.

    Raises `PeerError` and `BrokerUnavailableError` like `BulkProducer`, and when the id cannot be had.
    """

    def __init__(
        self, servers: str, settings: Mapping[str, Any], transactional_id: str, timeout_ms: int, topic: str
    ) -> None:
        """`topic`: of the first record."""
        ours = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "socket.timeout.ms": min(SILENT_MS, max(900, timeout_ms - 100)),
        }
        super().__init__(servers, TRANSACTIONAL_DEFAULTS | dict(settings) | ours)
        self.id = transactional_id
        self._connect(topic)
        self._begin()

    def _begin(self) -> None:
        until = time.monotonic() + INIT_S
        while True:
            try:
                self._producer.init_transactions(max(0.1, until - time.monotonic()))
                self._producer.begin_transaction()
            except KafkaException as raised:
                error = error_of(raised)
                if error.retriable() and time.monotonic() < until:
                    continue
                text = f"transactional id {self.id!r} cannot be had from {self._servers}: {describe(error)}"
                raise (BrokerUnavailableError if error.retriable() else PeerError)(text) from raised
            else:
                return

    def __exit__(
        self, error_type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # The client is dropped and not closed: `Producer.close()` would abort.
        try:
            super().__exit__(error_type, _error, _trace)
        except BaseException:
            self._abort()
            raise
        if error_type is not None:
            self._abort()

    def _abort(self) -> None:
        with suppress(KafkaException):  # its timeout ends it, and the sink's next start
            self._producer.abort_transaction(ABORT_S)
