"""From the journal's batches back into memory: what a start does.

Only batches that the coordinator wrote come here, so they are uncompressed and their records have no headers; anything
else is refused as damage. Key prefixes repeat a lot, so each (group, topic) is decoded once.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from keylane.coordinator.records import (
    NO_TIMESTAMP,
    OFFSET_KEY_VERSION,
    OFFSET_VALUE_VERSION,
    GroupKey,
    GroupValue,
    OffsetKey,
    RecordFormatError,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from keylane.wire.batches import HEADER, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.coordinator.offsets import OffsetStore

MAX_CACHED_PREFIXES = 100_000
"""Decoded key prefixes that are kept: some 20 MB while a start replays."""

_I32 = struct.Struct(">i")
_PLAIN_VALUE = struct.Struct(">hqihq")
"""An offset value of version 3 with empty metadata: 24 bytes, as only those are."""
_OFFSET_KEY = OFFSET_KEY_VERSION.to_bytes(2, "big")
_OFFSET_VALUE = OFFSET_VALUE_VERSION.to_bytes(2, "big")


def records_of(batch: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of a batch of ours. Raises `RecordFormatError` for one that is not."""
    fields = HEADER.unpack_from(batch)
    base_offset, attributes, count = fields[0], fields[5], fields[12]
    if attributes:
        raise RecordFormatError(f"a batch with attributes {attributes} at offset {base_offset}")
    at = HEADER_SIZE
    try:
        for _ in range(count):
            # Lengths and deltas below 64 take one byte, zigzag: twice their value. Others take the long way.
            size = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                size, at = _varint(batch, at - 1)
            end = at + size
            at += 2  # the record's attributes and its timestamp delta, which are 0
            while batch[at] >= 0x80:  # the offset delta: records follow each other
                at += 1
            at += 1
            size = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                size, at = _varint(batch, at - 1)
            key = batch[at : at + size]
            at += size
            size, at = (batch[at] >> 1, at + 1) if batch[at] < 0x80 and batch[at] != 1 else _varint(batch, at)
            yield key, None if size < 0 else batch[at : at + size]
            at += max(size, 0)
            if at + 1 != end or batch[at] != 0:
                raise RecordFormatError(f"a record of another form in the batch at offset {base_offset}")
            at = end
    except IndexError:
        raise RecordFormatError(f"the records of the batch at offset {base_offset} end too early") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    raw = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


class Replayer:
    """Applies batches, in the journal's order, to a store; and keeps the last metadata of each group."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self._groups: dict[str, bytes] = {}
        self._prefixes: dict[bytes, tuple[str, str]] = {}

    def replay(self, _partition: int, batch: bytes) -> None:
        """Raises `RecordFormatError` for a batch that the coordinator did not write."""
        put, unpack_key, unpack_value = self._store.put, _I32.unpack, _PLAIN_VALUE.unpack
        for key, value in records_of(batch):
            if not key.startswith(_OFFSET_KEY):
                self._replay_other(key, value)
                continue
            names = self._prefixes.get(key[:-4]) or self._names_of(key)
            (partition,) = unpack_key(key[-4:])
            if value is None:
                self._store.remove(*names, partition)
            elif len(value) == _PLAIN_VALUE.size and value.startswith(_OFFSET_VALUE):
                # The usual value, without metadata, by hand; all others by the book.
                _, offset, leader_epoch, _, timestamp = unpack_value(value)
                put(*names, partition, (offset, leader_epoch, "", timestamp, NO_TIMESTAMP))
            else:
                put(*names, partition, decode_offset_value(value))

    def groups(self) -> Iterator[tuple[str, GroupValue]]:
        """Every group that has metadata, with its last."""
        for group, value in self._groups.items():
            yield group, decode_group_value(value)

    def _names_of(self, key: bytes) -> tuple[str, str]:
        """Group and topic of an offset key."""
        found = decode_key(key)
        assert isinstance(found, OffsetKey)
        if len(self._prefixes) >= MAX_CACHED_PREFIXES:
            self._prefixes.clear()
        names = self._prefixes[key[:-4]] = found[:2]
        return names

    def _replay_other(self, key: bytes, value: bytes | None) -> None:
        found = decode_key(key)
        if isinstance(found, GroupKey):
            if value is None:
                self._groups.pop(found.group, None)
            else:
                self._groups[found.group] = value
        elif isinstance(found, OffsetKey):  # of type 0, which old software wrote
            if value is None:
                self._store.remove(*found)
            else:
                self._store.put(*found, decode_offset_value(value))
