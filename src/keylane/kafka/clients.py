"""The Kafka clients that keylane makes: confluent-kafka's own classes, whatever has taken their place in its package.

OpenTelemetry's instrumentation, for one, puts classes of its own there. These would write a second `traceparent` beside
keylane's, and leave the context of whatever was polled last on keylane's threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, cimpl
from confluent_kafka.cimpl import Consumer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Consumer", "Producer"]

FATAL = KafkaError._FATAL  # noqa: SLF001 - the client's name


class Producer(cimpl.Producer):
    """`poll` and `flush` raise `KafkaException` once when the client has failed for good, as where its partition was
    put back to an older copy. confluent-kafka loses that exception when another callback runs before the call returns,
    and then Python raises a `SystemError`."""

    def poll(self, timeout: float = -1) -> int:
        return _serving(super().poll, timeout)

    def flush(self, timeout: float = -1) -> int:
        return _serving(super().flush, timeout)


def _serving(call: Callable[[float], int], timeout_s: float) -> int:
    try:
        return call(timeout_s)
    except SystemError as raised:
        raise KafkaException(KafkaError(FATAL, "the client failed for good, and lost why", fatal=True)) from raised
