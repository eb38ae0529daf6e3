"""Requests that append to one partition of a topic and read it, as bodies: for a log of our own in another's cluster.

Produce and Fetch of versions that every broker has and whose answers name no other broker; the answers to Metadata,
Fetch, ListOffsets and InitProducerId are read by `keylane.wire.transactions`.

Source: https://kafka.apache.org/protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.primitives import array_length, int16, int32, int64, string

if TYPE_CHECKING:
    from keylane.wire.primitives import FieldReader

PRODUCE, FETCH, LIST_OFFSETS = (0, 7), (1, 4), (2, 2)
"""Key and version of each API."""

_NO_TRANSACTION = string(None)
_ALL_REPLICAS = int16(-1)
_NO_REPLICA = int32(-1)
_UNCOMMITTED = b"\0"


class Produced(NamedTuple):
    error: int
    base_offset: int
    """-1 with an error."""


def produce(topic: str, partition: int, batch: bytes, timeout_ms: int) -> bytes:
    """One batch of no transaction, acknowledged by all replicas in sync."""
    head = _NO_TRANSACTION + _ALL_REPLICAS + int32(timeout_ms) + array_length(1) + string(topic)
    return head + array_length(1) + int32(partition) + int32(len(batch)) + batch


def read_produced(reader: FieldReader) -> Produced:
    found = Produced(0, -1)
    for _ in reader.items():
        reader.string()
        for _ in reader.items():
            reader.int32()
            found = Produced(reader.int16(), reader.int64())
            reader.int64()
            reader.int64()
    return found


def fetch(topic: str, partition: int, offset: int, max_wait_ms: int, most_bytes: int) -> bytes:
    """All that there is from an offset on, up to the high watermark; one byte at least, or what there is after
    `max_wait_ms`."""
    head = _NO_REPLICA + int32(max_wait_ms) + int32(1) + int32(most_bytes) + _UNCOMMITTED
    rows = array_length(1) + int32(partition) + int64(offset) + int32(most_bytes)
    return head + array_length(1) + string(topic) + rows


def list_offset(topic: str, partition: int, at: int) -> bytes:
    """The first or the last offset (EARLIEST, LATEST)."""
    rows = array_length(1) + int32(partition) + int64(at)
    return _NO_REPLICA + _UNCOMMITTED + array_length(1) + string(topic) + rows
