"""Keys and values of `__transaction_state`, in Apache Kafka's own formats: keys of version 0, values of 0 and 1.

Version 1 is flexible. Its tagged fields are those of transactions V2 (KIP-890); one that has its default is left out.

Source: `TransactionLogKey.json` and `TransactionLogValue.json` of Apache Kafka's transaction coordinator.
"""

from __future__ import annotations

import struct
from itertools import groupby

from keylane.coordinator.formats import RecordFormatError, encode_string
from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import CLASSIC, NO_PRODUCER_ID, Transaction
from keylane.wire.primitives import (
    EMPTY_TAGS,
    FieldError,
    FieldReader,
    array_length,
    compact_array_length,
    compact_string,
    int16,
    int64,
    tagged,
)

KEY_VERSION = b"\0\0"
FLEXIBLE_VERSION = 1
_HEAD = struct.Struct(">qhib")
"""Producer id, epoch, timeout, state."""
_TIMES = struct.Struct(">qq")
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION = range(3)
"""Tags."""


def encode_transaction_key(transactional_id: str) -> bytes:
    """Raises `ValueError` for an id of more than 32,767 bytes."""
    return KEY_VERSION + encode_string(transactional_id)


def decode_transaction_key(key: bytes) -> str:
    """Raises `RecordFormatError`."""
    reader = FieldReader(key)
    try:
        _read_version(reader, newest=0)
        transactional_id = reader.string()
        reader.finish()
    except FieldError as error:
        raise RecordFormatError(f"a transactional id's key of {len(key)} bytes: {error}") from None
    return transactional_id


def encode_transaction(value: Transaction, version: int) -> bytes:
    """Version 0 leaves out what has a tag."""
    is_flexible = version >= FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else encode_string
    write_length = compact_array_length if is_flexible else array_length
    end = EMPTY_TAGS if is_flexible else b""
    topics = [
        (topic, [index for _, index in rows])
        for topic, rows in groupby(sorted(value.partitions), key=lambda one: one[0])
    ]
    head = _HEAD.pack(value.producer_id, value.epoch, value.timeout_ms, value.state.value)
    # An empty transaction has null for its partitions, as Kafka writes it.
    parts = [int16(version), head, write_length(-1 if value.state is State.EMPTY else len(topics))]
    for topic, indexes in topics:
        numbers = struct.pack(f">{len(indexes)}i", *indexes)
        parts += (write_string(topic), write_length(len(indexes)), numbers, end)
    parts.append(_TIMES.pack(value.updated_ms, value.started_ms))
    if is_flexible:
        parts.append(_tags(value))
    return b"".join(parts)


def _tags(value: Transaction) -> bytes:
    fields = {}
    if value.previous_producer_id != NO_PRODUCER_ID:
        fields[_PREVIOUS_PRODUCER_ID] = int64(value.previous_producer_id)
    if value.next_producer_id != NO_PRODUCER_ID:
        fields[_NEXT_PRODUCER_ID] = int64(value.next_producer_id)
    if value.client_version != CLASSIC:
        fields[_CLIENT_VERSION] = int16(value.client_version)
    return tagged(fields)


def decode_transaction(data: bytes) -> Transaction:
    """Raises `RecordFormatError`."""
    reader = FieldReader(data)
    try:
        is_flexible = _read_version(reader, newest=FLEXIBLE_VERSION) >= FLEXIBLE_VERSION
        reader.go_on(is_flexible=is_flexible)
        producer_id, epoch, timeout_ms, number = reader.numbers(_HEAD)
        state = State(number)
        partitions = set()
        for _ in range(max(reader.count(), 0)):
            topic = reader.string()
            partitions |= {(topic, reader.int32()) for _ in reader.items()}
            reader.skip_tags()
        updated_ms, started_ms = reader.numbers(_TIMES)
        fields = {tag: FieldReader(field) for tag, field in reader.tags().items()}
        previous = fields[_PREVIOUS_PRODUCER_ID].int64() if _PREVIOUS_PRODUCER_ID in fields else NO_PRODUCER_ID
        following = fields[_NEXT_PRODUCER_ID].int64() if _NEXT_PRODUCER_ID in fields else NO_PRODUCER_ID
        client_version = fields[_CLIENT_VERSION].int16() if _CLIENT_VERSION in fields else CLASSIC
        reader.end()
    except ValueError as error:
        raise RecordFormatError(f"a transaction of {len(data)} bytes: {error}") from None
    return Transaction(
        producer_id,
        epoch,
        timeout_ms,
        state,
        frozenset(partitions),
        started_ms,
        updated_ms,
        previous_producer_id=previous,
        next_producer_id=following,
        client_version=client_version,
    )


def _read_version(reader: FieldReader, newest: int) -> int:
    version = reader.int16()
    if not 0 <= version <= newest:
        raise FieldError(f"version {version}: {newest} is the newest that is read")
    return version
