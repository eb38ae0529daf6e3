"""From the journal's batches back into the image: what a start does with what came after the last snapshot.

Only batches that the coordinator wrote come here, so their records have no headers, and no compression but those that
it writes; anything else is refused as damage. Groups, topics and partitions repeat a lot: key prefixes are decoded
once, and of a commit of one partition everything but its last bytes is looked up.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from keylane.coordinator.records import (
    NO_TIMESTAMP,
    OFFSET_KEY_VERSION,
    OFFSET_VALUE_VERSION,
    OffsetKey,
    RecordFormatError,
    decode_key,
    decode_offset_value,
)
from keylane.wire.batches import (
    COMPRESSED_BY_US,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    BatchError,
    decompress,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.coordinator.image import Image

MAX_CACHED_PREFIXES = 100_000
"""Decoded key prefixes that are kept: some 20 MB while a start replays."""

_CODEC_AT = CRC_START + 1
"""The byte of the attributes that holds the compression."""
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PLAIN_VALUE = struct.Struct(">hqihq")
"""An offset value of version 3 with empty metadata: 24 bytes, as only those are."""
_PLAIN_TAIL = struct.Struct(">qihqb")
"""What differs between two commits of one partition: its value from the offset on, and the end of its record."""
_OFFSET_KEY = OFFSET_KEY_VERSION.to_bytes(2, "big")
_OFFSET_VALUE = OFFSET_VALUE_VERSION.to_bytes(2, "big")


def records_of(batch: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of each record of a batch of ours. Raises `RecordFormatError` for one that is not."""
    fields = HEADER.unpack_from(batch)
    base_offset, attributes, count = fields[0], fields[5], fields[12]
    if attributes:
        batch = batch[:HEADER_SIZE] + _unpacked(attributes, batch[HEADER_SIZE:], base_offset)
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
            delta = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                delta, at = _varint(batch, at - 1)
            size = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                size, at = _varint(batch, at - 1)
            key = batch[at : at + size]
            at += size
            size, at = (batch[at] >> 1, at + 1) if batch[at] < 0x80 and batch[at] != 1 else _varint(batch, at)
            yield base_offset + delta, key, None if size < 0 else batch[at : at + size]
            at += max(size, 0)
            if at + 1 != end or batch[at] != 0:
                raise RecordFormatError(f"a record of another form in the batch at offset {base_offset}")
            at = end
    except IndexError:
        raise RecordFormatError(f"the records of the batch at offset {base_offset} end too early") from None


def _unpacked(attributes: int, body: bytes, base_offset: int) -> bytes:
    if attributes not in COMPRESSED_BY_US:
        raise RecordFormatError(f"a batch with attributes {attributes} at offset {base_offset}")
    try:
        return decompress(attributes, body)
    except BatchError as error:
        raise RecordFormatError(f"the batch at offset {base_offset}: {error}") from error


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
    """Applies batches, in the journal's order, to an image."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._store = image.store
        self._prefixes: dict[bytes, tuple[str, str]] = {}
        self._plain: dict[bytes, tuple[str, str, int]] = {}
        """By all but the last bytes of the record: group, topic and partition of commits of one partition."""

    def replay(self, partition: int, batch: bytes) -> None:
        """Raises `RecordFormatError` for a batch that the coordinator did not write."""
        known = None if batch[_CODEC_AT] else self._plain.get(batch[HEADER_SIZE : -_PLAIN_TAIL.size])
        if known is not None:
            offset, leader_epoch, _, timestamp, _ = _PLAIN_TAIL.unpack_from(batch, len(batch) - _PLAIN_TAIL.size)
            (log_offset,) = _I64.unpack_from(batch)
            self._store.put(*known, (offset, leader_epoch, "", timestamp, NO_TIMESTAMP), log_offset)
        else:
            self._replay_each(partition, batch)

    def _replay_each(self, partition: int, batch: bytes) -> None:
        put, unpack_key, unpack_value = self._store.put, _I32.unpack, _PLAIN_VALUE.unpack
        others: list[tuple[int, bytes, bytes | None]] = []
        known = None
        count = 0
        for log_offset, key, value in records_of(batch):
            count += 1
            if value is None or not key.startswith(_OFFSET_KEY):
                self._replay_other(log_offset, key, value)
                others.append((log_offset, key, value))
                continue
            names = self._prefixes.get(key[:-4]) or self._names_of(key)
            (index,) = unpack_key(key[-4:])
            if len(value) == _PLAIN_VALUE.size and value.startswith(_OFFSET_VALUE):
                # The usual value, without metadata, by hand; all others by the book.
                _, offset, leader_epoch, _, timestamp = unpack_value(value)
                put(*names, index, (offset, leader_epoch, "", timestamp, NO_TIMESTAMP), log_offset)
                known = (*names, index)
            else:
                put(*names, index, decode_offset_value(value), log_offset)
        if others:
            self._image.note(partition, read_header(batch).max_timestamp, others, batch)
        if known is not None and count == 1 and not batch[_CODEC_AT]:
            self._learn(batch, known)

    def _learn(self, batch: bytes, known: tuple[str, str, int]) -> None:
        if len(self._plain) >= MAX_CACHED_PREFIXES:
            self._plain.clear()
        self._plain[batch[HEADER_SIZE : -_PLAIN_TAIL.size]] = known

    def _names_of(self, key: bytes) -> tuple[str, str]:
        """Group and topic of an offset key."""
        found = decode_key(key)
        assert isinstance(found, OffsetKey)
        if len(self._prefixes) >= MAX_CACHED_PREFIXES:
            self._prefixes.clear()
        names = self._prefixes[key[:-4]] = found[:2]
        return names

    def _replay_other(self, log_offset: int, key: bytes, value: bytes | None) -> None:
        """A tombstone, a group, or what old or newer software wrote."""
        found = decode_key(key)
        if isinstance(found, OffsetKey):
            if value is None:
                self._store.remove(*found)
            else:
                self._store.put(*found, decode_offset_value(value), log_offset)
