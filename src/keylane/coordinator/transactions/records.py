"""Keys and values of `__transaction_state`, in Apache Kafka's own formats, version 0 of both.

Source: `TransactionLogKey.json` and `TransactionLogValue.json` of Apache Kafka's transaction coordinator.
"""

from __future__ import annotations

import struct
from itertools import groupby

from keylane.coordinator.formats.consumer_offsets import RecordFormatError, encode_string
from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import Transaction

VERSION = b"\0\0"
_HEAD = struct.Struct(">qhibi")
"""Producer id, epoch, timeout, state, number of topics (-1: null, as Kafka writes it for an empty transaction)."""
_TIMES = struct.Struct(">qq")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


def encode_transaction_key(transactional_id: str) -> bytes:
    """Raises `ValueError` for an id of more than 32,767 bytes."""
    return VERSION + encode_string(transactional_id)


def decode_transaction_key(key: bytes) -> str:
    """Raises `RecordFormatError`."""
    try:
        (size,) = _I16.unpack_from(key, 2)
        if not key.startswith(VERSION) or len(key) != 4 + size:
            raise RecordFormatError(f"a key of {len(key)} bytes that is no transactional id's")
        return key[4:].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordFormatError(f"a transactional id's key of {len(key)} bytes: {error}") from None


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
    if not data.startswith(VERSION):
        raise RecordFormatError(f"a transaction of version {int.from_bytes(data[:2], 'big')}: 0 is read")
    try:
        producer_id, epoch, timeout_ms, number, count = _HEAD.unpack_from(data, len(VERSION))
        at = len(VERSION) + _HEAD.size
        partitions = set()
        for _ in range(max(count, 0)):
            (size,) = _I16.unpack_from(data, at)
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (indexes,) = _I32.unpack_from(data, at)
            partitions |= {(topic, index) for index in struct.unpack_from(f">{indexes}i", data, at + 4)}
            at += 4 + 4 * indexes
        updated_ms, started_ms = _TIMES.unpack_from(data, at)
        if at + _TIMES.size != len(data):
            raise RecordFormatError(f"{len(data) - at - _TIMES.size} bytes follow a transaction")
        state = State(number)
    except (struct.error, ValueError) as error:
        raise RecordFormatError(f"a transaction of {len(data)} bytes: {error}") from None
    return Transaction(producer_id, epoch, timeout_ms, state, frozenset(partitions), started_ms, updated_ms)
