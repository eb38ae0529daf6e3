"""Requests that end, list and describe transactions, and that write and read one partition: as bodies, both ways.

For what clients' libraries do not offer: a transaction is ended by another process than the one that began it. Versions
that Apache Kafka 2.5 to 4.x and `keylane broker` have; none of them raises the epoch at a transaction's end, as EndTxn
5 does (KIP-890).

Source: https://kafka.apache.org/protocol.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.primitives import (
    EMPTY_TAGS,
    FieldReader,
    array_length,
    compact_array_length,
    compact_string,
    int16,
    int32,
    int64,
    string,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR = (0, 7), (1, 4), (2, 2), (3, 4), (10, 1)
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = (22, 4), (24, 2), (26, 2)
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = (65, 0), (66, 0)
LIST_GROUPS = (16, 5)
"""Key and version of each API."""

FLEXIBLE = frozenset({INIT_PRODUCER_ID, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, LIST_GROUPS})

EARLIEST, LATEST = -2, -1
ONGOING = "Ongoing"
"""The state of a transaction that is open."""

_TRANSACTIONS = b"\x01"
_COMMITTED = b"\x01"
_UNCOMMITTED = b"\x00"
_TIMEOUT_MS = int32(10_000)


class ProducerState(NamedTuple):
    """Of a transactional id."""

    error: int
    id: str
    state: str
    timeout_ms: int
    started_ms: int
    producer_id: int
    epoch: int


class Brokers(NamedTuple):
    """Of a cluster, and who leads the one partition."""

    addresses: dict[int, tuple[str, int]]
    """Host and port by node."""
    error: int
    """Of the topic."""
    partitions: int
    leader: int
    """Of its partition 0; -1: there is none."""
    leaders: Mapping[int, int]
    """Of each partition."""


class Fetched(NamedTuple):
    error: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    """Producer id and first offset."""
    records: bytes


def find_coordinator(transactional_id: str) -> bytes:
    return string(transactional_id) + _TRANSACTIONS


def read_coordinator(body: bytes) -> tuple[int, tuple[str, int]]:
    """Error, and host and port."""
    reader = FieldReader(body)
    reader.int32()
    error, _message, _node = reader.int16(), reader.nullable_string(), reader.int32()
    return error, (reader.string(), reader.int32())


def init_producer_id(transactional_id: str, timeout_ms: int, producer_id: int, epoch: int) -> bytes:
    return compact_string(transactional_id) + int32(timeout_ms) + int64(producer_id) + int16(epoch) + EMPTY_TAGS


def read_init_producer_id(reader: FieldReader) -> tuple[int, int, int]:
    """Error, producer id, epoch."""
    reader.int32()
    return reader.int16(), reader.int64(), reader.int16()


def add_partition(transactional_id: str, producer_id: int, epoch: int, topic: str) -> bytes:
    """Partition 0 of a topic."""
    head = string(transactional_id) + int64(producer_id) + int16(epoch)
    return head + array_length(1) + string(topic) + array_length(1) + int32(0)


def read_add_partition(reader: FieldReader) -> int:
    reader.int32()
    errors = []
    for _ in reader.items():
        reader.string()
        errors += [(reader.int32(), reader.int16())[1] for _ in reader.items()]
    return errors[0]


def end_transaction(transactional_id: str, producer_id: int, epoch: int, *, committed: bool) -> bytes:
    return string(transactional_id) + int64(producer_id) + int16(epoch) + bytes((committed,))


def read_end_transaction(reader: FieldReader) -> int:
    reader.int32()
    return reader.int16()


def describe_transactions(ids: Sequence[str]) -> bytes:
    return compact_array_length(len(ids)) + b"".join(map(compact_string, ids)) + EMPTY_TAGS


def read_described(reader: FieldReader) -> list[ProducerState]:
    reader.int32()
    return [_read_state(reader) for _ in reader.items()]


def _read_state(reader: FieldReader) -> ProducerState:
    state = ProducerState(
        reader.int16(), reader.string(), reader.string(), reader.int32(), reader.int64(), reader.int64(), reader.int16()
    )
    for _ in reader.items():
        reader.string()
        for _ in reader.items():
            reader.int32()
        reader.skip_tags()
    reader.skip_tags()
    return state


def list_transactions(state: str) -> bytes:
    """Those in this state."""
    return compact_array_length(1) + compact_string(state) + compact_array_length(0) + EMPTY_TAGS


def read_listed(reader: FieldReader) -> tuple[int, list[str]]:
    """Error, and transactional ids."""
    reader.int32()
    error = reader.int16()
    for _ in reader.items():
        reader.string()
    ids = []
    for _ in reader.items():
        ids.append(reader.string())
        reader.int64()
        reader.string()
        reader.skip_tags()
    return error, ids


def metadata(topic: str) -> bytes:
    """Of one topic, which is not made by the asking."""
    return array_length(1) + string(topic) + b"\0"


def read_metadata(reader: FieldReader) -> Brokers:
    reader.int32()
    addresses = {}
    for _ in reader.items():
        node = reader.int32()
        addresses[node] = (reader.string(), reader.int32())
        reader.nullable_string()
    reader.nullable_string()
    reader.int32()
    error, leaders = 0, {}
    for _ in reader.items():
        error = reader.int16()
        reader.string()
        reader.numbers(_BOOLEAN)
        for _ in reader.items():
            reader.int16()
            number, leaders_node = reader.int32(), reader.int32()
            leaders[number] = leaders_node
            for _ in range(2):
                for _ in reader.items():
                    reader.int32()
    return Brokers(addresses, error, len(leaders), leaders.get(0, -1), leaders)


_BOOLEAN = struct.Struct(">?")


def produce(transactional_id: str, topic: str, batch: bytes) -> bytes:
    """To partition 0, acknowledged by all replicas in sync."""
    head = string(transactional_id) + int16(-1) + _TIMEOUT_MS
    return head + array_length(1) + string(topic) + array_length(1) + int32(0) + int32(len(batch)) + batch


def read_produced(reader: FieldReader) -> int:
    errors = []
    for _ in reader.items():
        reader.string()
        for _ in reader.items():
            reader.int32()
            errors.append(reader.int16())
            for _ in range(3):
                reader.int64()
    return errors[0]


def list_offset(topic: str, at: int) -> bytes:
    """The first or the last offset of partition 0 (EARLIEST, LATEST), of all records."""
    rows = array_length(1) + int32(0) + int64(at)
    return int32(-1) + _UNCOMMITTED + array_length(1) + string(topic) + rows


def read_offset(reader: FieldReader) -> tuple[int, int]:
    """Error, offset."""
    reader.int32()
    found = (0, 0)
    for _ in reader.items():
        reader.string()
        for _ in reader.items():
            reader.int32()
            error, _time, offset = reader.int16(), reader.int64(), reader.int64()
            found = (error, offset)
    return found


def fetch(topic: str, offset: int, most_bytes: int) -> bytes:
    """What is committed of partition 0 from an offset on, at once."""
    head = int32(-1) + int32(0) + int32(0) + int32(most_bytes) + _COMMITTED
    return head + array_length(1) + string(topic) + array_length(1) + int32(0) + int64(offset) + int32(most_bytes)


def read_fetched(reader: FieldReader) -> Fetched:
    reader.int32()
    found = Fetched(0, 0, 0, [], b"")
    for _ in reader.items():
        reader.string()
        for _ in reader.items():
            reader.int32()
            error, end, stable = reader.int16(), reader.int64(), reader.int64()
            aborted = [(reader.int64(), reader.int64()) for _ in range(max(0, reader.count()))]
            found = Fetched(error, end, stable, aborted, reader.sized_bytes())
    return found
