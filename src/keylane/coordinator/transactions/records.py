"""Keys and values of `__transaction_state`, in Apache Kafka's own formats, version 0 of both.

Source: `TransactionLogKey.json` and `TransactionLogValue.json` of Apache Kafka's transaction coordinator.
"""

from __future__ import annotations

import struct
from itertools import groupby

from keylane.coordinator.formats import RecordFormatError, encode_string
from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import Transaction
from keylane.wire.primitives import FieldError, FieldReader

VERSION = b"\0\0"
_HEAD = struct.Struct(">qhibi")
"""Producer id, epoch, timeout, state, number of topics (-1: null, as Kafka writes it for an empty transaction)."""
_TIMES = struct.Struct(">qq")


def encode_transaction_key(transactional_id: str) -> bytes:
    """Raises `ValueError` for an id of more than 32,767 bytes."""
    return VERSION + encode_string(transactional_id)


def decode_transaction_key(key: bytes) -> str:
    """Raises `RecordFormatError`."""
    reader = FieldReader(key)
    try:
        _check_version(reader)
        transactional_id = reader.string()
        reader.finish()
    except FieldError as error:
        raise RecordFormatError(f"a transactional id's key of {len(key)} bytes: {error}") from None
    return transactional_id


def encode_transaction(value: Transaction) -> bytes:
    topics = [
        (topic, [index for _, index in rows])
        for topic, rows in groupby(sorted(value.partitions), key=lambda one: one[0])
    ]
    count = -1 if value.state is State.EMPTY else len(topics)
    parts = [VERSION, _HEAD.pack(value.producer_id, value.epoch, value.timeout_ms, value.state.value, count)]
    for topic, indexes in topics:
        parts += (encode_string(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(_TIMES.pack(value.updated_ms, value.started_ms))
    return b"".join(parts)


def decode_transaction(data: bytes) -> Transaction:
    """Raises `RecordFormatError`."""
    reader = FieldReader(data)
    try:
        _check_version(reader)
        producer_id, epoch, timeout_ms, number, count = reader.numbers(_HEAD)
        state = State(number)
        partitions = set()
        for _ in range(max(count, 0)):
            topic = reader.string()
            partitions |= {(topic, reader.int32()) for _ in reader.items()}
        updated_ms, started_ms = reader.numbers(_TIMES)
        reader.finish()
    except ValueError as error:
        raise RecordFormatError(f"a transaction of {len(data)} bytes: {error}") from None
    return Transaction(producer_id, epoch, timeout_ms, state, frozenset(partitions), started_ms, updated_ms)


def _check_version(reader: FieldReader) -> None:
    if version := reader.int16():
        raise FieldError(f"version {version}: 0 is read")
