"""Offsets with their metadata, byte for byte, in a producer's transaction.

confluent-kafka's `Producer.send_offsets_to_transaction` sends the NUL that ends its C string along with the metadata,
as its `commit` does (docs/adr/0007): an offset map sent so cannot be read by the JVM Parallel Consumer. librdkafka
keeps the length, so this calls it for the same producer and the same consumer.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from keylane.kafka.exact import _handle, _library, _offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer, Producer

    from keylane.engine.ports import Offset

_pointer = ctypes.c_void_p


def send_offsets(producer: Producer, consumer: Consumer, offsets: Sequence[Offset], timeout_s: float) -> None:
    """Make these offsets part of the producer's transaction, as this member of its group in its generation.

    Blocks without holding the interpreter. Raises `KafkaException` with the `KafkaError` that says whether to try again
    (`retriable`), to abort (`txn_requires_abort`), or to give the producer up (`fatal`).
    """
    metadata = _library.rd_kafka_consumer_group_metadata(_handle(consumer))
    try:
        with _offsets(offsets) as partitions:
            error = _library.rd_kafka_send_offsets_to_transaction(
                _handle(producer), partitions, metadata, int(timeout_s * 1000)
            )
    finally:
        _library.rd_kafka_consumer_group_metadata_destroy(metadata)
    if error:
        raise KafkaException(_taken(error))


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
