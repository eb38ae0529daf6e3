"""From the journal's batches back into memory: what a start does.

Only batches that the coordinator wrote come here, so they are uncompressed and their records have no headers; anything
else is refused as damage. Key prefixes repeat a lot, so each (group, topic) is decoded once.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from keylane.coordinator.records import (
    OFFSET_KEY_VERSION,
    OFFSET_VALUE_VERSION,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    RecordFormatError,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from keylane.wire.batches import HEADER_SIZE, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.coordinator.offsets import OffsetStore

MAX_CACHED_PREFIXES = 100_000
"""Decoded key prefixes that are kept: some 20 MB while a start replays."""

_I32 = struct.Struct(">i")
_VALUE = struct.Struct(">hqih")
_TIMESTAMP = struct.Struct(">q")
_OFFSET_KEY = OFFSET_KEY_VERSION.to_bytes(2, "big")


def records_of(batch: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of a batch of ours. Raises `RecordFormatError` for one that is not."""
    header = read_header(batch)
    if header.attributes:
        raise RecordFormatError(f"a batch with attributes {header.attributes} at offset {header.base_offset}")
    at = HEADER_SIZE
    try:
        for _ in range(header.record_count):
            size, at = _varint(batch, at)
            end = at + size
            at += 1  # the record's attributes
            _, at = _varint(batch, at)  # timestamp delta
            _, at = _varint(batch, at)  # offset delta
            size, at = _varint(batch, at)
            key = batch[at : at + size]
            size, at = _varint(batch, at + size)
            yield key, None if size < 0 else batch[at : at + size]
            at += max(size, 0)
            if at + 1 != end or batch[at] != 0:
                raise RecordFormatError(f"a record of another form in the batch at offset {header.base_offset}")
            at = end
    except IndexError:
        raise RecordFormatError(f"the records of the batch at offset {header.base_offset} end too early") from None


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
        for key, value in records_of(batch):
            if key.startswith(_OFFSET_KEY):
                self._replay_offset(key, value)
                continue
            found = decode_key(key)
            if isinstance(found, OffsetKey):
                self._put(found, value)
            elif isinstance(found, GroupKey):
                if value is None:
                    self._groups.pop(found.group, None)
                else:
                    self._groups[found.group] = value

    def groups(self) -> Iterator[tuple[str, GroupValue]]:
        """Every group that has metadata, with its last."""
        for group, value in self._groups.items():
            yield group, decode_group_value(value)

    def _replay_offset(self, key: bytes, value: bytes | None) -> None:
        prefix = key[:-4]
        names = self._prefixes.get(prefix)
        if names is None:
            found = decode_key(key)
            assert isinstance(found, OffsetKey)
            if len(self._prefixes) >= MAX_CACHED_PREFIXES:
                self._prefixes.clear()
            names = self._prefixes[prefix] = found[:2]
        self._put(OffsetKey(*names, *_I32.unpack_from(key, len(prefix))), value)

    def _put(self, key: OffsetKey, value: bytes | None) -> None:
        if value is None:
            self._store.remove(*key)
            return
        # The usual value, by hand; all others by the book.
        if len(value) >= 24:
            version, offset, leader_epoch, size = _VALUE.unpack_from(value)
            if version == OFFSET_VALUE_VERSION and size == 0 and len(value) == 24:
                self._store.put(*key, OffsetValue(offset, leader_epoch, "", _TIMESTAMP.unpack_from(value, 16)[0]))
                return
        self._store.put(*key, decode_offset_value(value))
