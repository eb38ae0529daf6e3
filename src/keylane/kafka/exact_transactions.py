"""Offsets with their metadata, byte for byte, in a producer's transaction.

confluent-kafka's `Producer.send_offsets_to_transaction` sends the NUL that ends its C string along with the metadata,
as its `commit` does (docs/adr/0007): an offset map sent so cannot be read by the JVM Parallel Consumer. librdkafka
keeps the length, so this calls it for the same producer and the same consumer.

`member` reads who the consumer is in its group, and `send_offsets` sends as that: a member that is no longer in the
generation which it was read in is refused by the broker (docs/adr/0051).
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from keylane.kafka.exact import _handle, _library, _offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Consumer, Producer

    from keylane.consumer.ports import Offset

_pointer = ctypes.c_void_p


class Member:
    """A consumer's place in its group, as of the moment when it was read. Thread safety: one thread."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    @property
    def member_id(self) -> str:
        """Empty while it has none."""
        found: bytes | None = _library.rd_kafka_consumer_group_metadata_member_id(self._pointer)
        return (found or b"").decode(errors="replace")

    @property
    def is_in_group(self) -> bool:
        """False when it has no generation or no member id. Brokers take offsets without both from anybody."""
        generation: int = _library.rd_kafka_consumer_group_metadata_generation_id(self._pointer)
        return generation >= 0 and bool(self.member_id)

    def send_offsets(self, producer: Producer, offsets: Sequence[Offset], timeout_s: float) -> None:
        """Make these offsets part of the producer's transaction.

        Blocks without holding the interpreter. Raises `KafkaException` with the `KafkaError` that says whether to try
        again (`retriable`), to abort (`txn_requires_abort`), or to give the producer up (`fatal`).
        """
        with _offsets(offsets) as partitions:
            error = _library.rd_kafka_send_offsets_to_transaction(
                _handle(producer), partitions, self._pointer, int(timeout_s * 1000)
            )
        if error:
            raise KafkaException(_taken(error))


@contextmanager
def member(consumer: Consumer) -> Iterator[Member]:
    """Who this consumer is in its group now."""
    pointer = _library.rd_kafka_consumer_group_metadata(_handle(consumer))
    try:
        yield Member(pointer)
    finally:
        _library.rd_kafka_consumer_group_metadata_destroy(pointer)


def send_offsets(producer: Producer, consumer: Consumer, offsets: Sequence[Offset], timeout_s: float) -> None:
    """`Member.send_offsets` as who the consumer is now."""
    with member(consumer) as now:
        now.send_offsets(producer, offsets, timeout_s)


def _taken(error: int) -> KafkaError:
    """librdkafka's error as confluent-kafka's; it is freed."""
    try:
        return KafkaError(
            _library.rd_kafka_error_code(error),
            _library.rd_kafka_error_string(error).decode(errors="replace"),
            bool(_library.rd_kafka_error_is_fatal(error)),
            bool(_library.rd_kafka_error_is_retriable(error)),
            bool(_library.rd_kafka_error_txn_requires_abort(error)),
        )
    finally:
        _library.rd_kafka_error_destroy(error)


def _declare() -> None:
    declarations: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_consumer_group_metadata": (_pointer, [_pointer]),
        "rd_kafka_consumer_group_metadata_destroy": (None, [_pointer]),
        "rd_kafka_consumer_group_metadata_generation_id": (ctypes.c_int32, [_pointer]),
        "rd_kafka_consumer_group_metadata_member_id": (ctypes.c_char_p, [_pointer]),
        "rd_kafka_send_offsets_to_transaction": (_pointer, [_pointer, _pointer, _pointer, ctypes.c_int]),
        "rd_kafka_error_code": (ctypes.c_int, [_pointer]),
        "rd_kafka_error_string": (ctypes.c_char_p, [_pointer]),
        "rd_kafka_error_is_fatal": (ctypes.c_int, [_pointer]),
        "rd_kafka_error_is_retriable": (ctypes.c_int, [_pointer]),
        "rd_kafka_error_txn_requires_abort": (ctypes.c_int, [_pointer]),
        "rd_kafka_error_destroy": (None, [_pointer]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(_library, name)
        function.restype, function.argtypes = result, arguments


_declare()
