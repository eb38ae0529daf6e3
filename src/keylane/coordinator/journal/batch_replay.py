"""From the journal's batches back into the image: what a start does with what came after the last snapshot.

Only batches that the coordinator wrote come here, so their records have no headers, and no compression but those that
it writes; anything else is refused as damage. Groups and topics repeat a lot, so key prefixes are decoded once; commits
of one partition, which are most of many tails, rarely come here (`single_commit_replay`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from keylane.coordinator.formats import (
    OFFSET_KEY_VERSION,
    OFFSET_VALUE_VERSION,
    OffsetKey,
    RecordFormatError,
    TopicCommit,
    decode_key,
    decode_offset_key_prefix,
    decode_offset_value,
    decode_run,
    run_limit,
)
from keylane.coordinator.offsets.transactional import Waiting
from keylane.wire.batches import (
    CODEC_MASK,
    CONTROL_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    OFFSETS_CODECS,
    TRANSACTIONAL_MASK,
    BatchError,
    decompress,
    read_header,
)
from keylane.wire.control import is_commit
from keylane.wire.primitives import read_varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keylane.coordinator.journal.image import Image

MAX_CACHED_PREFIXES = 100_000
"""Decoded key prefixes that are kept: some 20 MB while a start replays."""

_ATTRIBUTES = CRC_START + 1
"""Where a batch has the byte with all attributes that there are: compression, transactional, control."""
SHORT_RUN = 4
"""Records of one topic from which on it pays to read them as columns."""

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PLAIN_VALUE = struct.Struct(">hqihq")
"""An offset value of version 3 with empty metadata: 24 bytes, as only those are."""
_OFFSET_KEY = OFFSET_KEY_VERSION.to_bytes(2, "big")
_OFFSET_VALUE = OFFSET_VALUE_VERSION.to_bytes(2, "big")


def records_of(batch: bytes, at: int = HEADER_SIZE, skip: int = 0) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of each record of a batch of ours, from the one at `at`, which `skip` come before.

    Raises `RecordFormatError` for a batch that is not ours.
    """
    batch = _unpacked(batch)
    base_offset, count = _base_and_count(batch)
    try:
        for _ in range(count - skip):
            # Lengths and deltas below 64 take one byte, zigzag: twice their value. Others take the long way.
            size = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                size, at = read_varint(batch, at - 1)
            end = at + size
            at += 2  # the record's attributes and its timestamp delta, which are 0
            delta = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                delta, at = read_varint(batch, at - 1)
            size = batch[at] >> 1
            at += 1
            if batch[at - 1] >= 0x80:
                size, at = read_varint(batch, at - 1)
            key = batch[at : at + size]
            at += size
            size, at = (batch[at] >> 1, at + 1) if batch[at] < 0x80 and batch[at] != 1 else read_varint(batch, at)
            yield base_offset + delta, key, None if size < 0 else batch[at : at + size]
            at += max(size, 0)
            if at + 1 != end or batch[at] != 0:
                raise RecordFormatError(f"a record of another form in the batch at offset {base_offset}")
            at = end
    except IndexError:
        raise RecordFormatError(f"the records of the batch at offset {base_offset} end too early") from None


def _unpacked(batch: bytes) -> bytes:
    """The same batch without compression (its header's checksum and length are not mended)."""
    attributes = int.from_bytes(batch[CRC_START : _ATTRIBUTES + 1], "big") & ~TRANSACTIONAL_MASK
    if not attributes:
        return batch
    (base_offset,) = _I64.unpack_from(batch)
    if attributes not in OFFSETS_CODECS:
        raise RecordFormatError(f"a batch with attributes {attributes} at offset {base_offset}")
    try:
        body = decompress(attributes, batch[HEADER_SIZE:])
    except BatchError as error:
        raise RecordFormatError(f"the batch at offset {base_offset}: {error}") from error
    return b"".join((batch[:CRC_START], b"\0\0", batch[_ATTRIBUTES + 1 : HEADER_SIZE], body))


def _begins_with_run(plain: bytes) -> bool:
    """Whether its first records are commits of many partitions of a topic, which are read as columns. Raises
    `RecordFormatError`."""
    base_offset, count = _base_and_count(plain)
    try:
        run = decode_run(plain, HEADER_SIZE, count) if count >= SHORT_RUN else None
    except IndexError:
        raise RecordFormatError(f"the records of the batch at offset {base_offset} end too early") from None
    return run is not None and len(run.partitions) >= SHORT_RUN


def _base_and_count(batch: bytes) -> tuple[int, int]:
    fields = HEADER.unpack_from(batch)
    return fields[0], fields[12]


def _not_ours(error: Exception) -> RecordFormatError:
    if isinstance(error, RecordFormatError):
        return error
    return RecordFormatError(f"a batch of another form ({type(error).__name__}: {error})")


class Replayer:
    """Applies batches, in the journal's order, to an image."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._store = image.store
        self._prefixes: dict[bytes, tuple[str, str]] = {}

    def replay(self, partition: int, batch: bytes) -> None:
        """A batch of this offsets partition. Raises `RecordFormatError` for one that the coordinator did not write, and
        nothing else: others may write to a replicated log."""
        try:
            self._replay(partition, batch)
        except Exception as error:
            raise _not_ours(error) from error

    def _replay(self, partition: int, batch: bytes) -> None:
        if partition < 0:
            self._image.note(partition, read_header(batch).max_timestamp, records_of(batch), batch)
            return
        if batch[_ATTRIBUTES] & ~CODEC_MASK:
            self._replay_transactional(partition, batch)
            return
        plain = _unpacked(batch)
        at, done = self._replay_runs(plain)
        self._replay_each(partition, batch, plain, at, done)

    def replay_newest(self, partition: int, batches: Iterable[bytes]) -> None:
        """Some that follow each other, as `replay` would one by one, in a quarter of the time where commits are of few
        partitions: of each the last one alone goes into the table. Raises `RecordFormatError`, and nothing else."""
        try:
            self._replay_newest(partition, batches)
        except Exception as error:
            raise _not_ours(error) from error

    def _replay_newest(self, partition: int, batches: Iterable[bytes]) -> None:
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        for batch in batches:
            plain = b"" if batch[_ATTRIBUTES] & ~CODEC_MASK else _unpacked(batch)
            if not plain or _begins_with_run(plain):
                self._put_newest(newest)
                self._replay(partition, batch)
                continue
            others: list[tuple[int, bytes, bytes | None]] = []
            for log_offset, key, value in records_of(plain):
                if key.startswith(_OFFSET_KEY):
                    newest[key] = log_offset, value
                else:
                    self._put_newest(newest)
                    self._replay_other(log_offset, key, value)
                    others.append((log_offset, key, value))
            if others:
                self._image.note(partition, read_header(batch).max_timestamp, others, batch)
        self._put_newest(newest)

    def _put_newest(self, newest: dict[bytes, tuple[int, bytes | None]]) -> None:
        for key, (log_offset, value) in newest.items():
            if value is None:
                self._replay_other(log_offset, key, value)
            else:
                self._put(key, value, log_offset)
        newest.clear()

    def _replay_runs(self, batch: bytes) -> tuple[int, int]:
        """Commits of many partitions, a column at a time; where the first record is that is left, and its number."""
        base_offset, count = _base_and_count(batch)
        at, done = HEADER_SIZE, 0
        try:
            while count - done >= SHORT_RUN:
                run = decode_run(batch, at, count - done)
                if run is None or len(run.partitions) < SHORT_RUN <= run_limit(run.delta):
                    break
                group, topic = self._prefixes.get(run.group_and_topic) or self._names_of(run.group_and_topic)
                commit = TopicCommit(topic, run.partitions, run.offsets, run.leader_epochs, None)
                self._store.apply(group, [commit], base_offset + run.delta, run.timestamp_ms)
                at = run.end
                done += len(run.partitions)
        except IndexError:
            raise RecordFormatError(f"the records of the batch at offset {base_offset} end too early") from None
        return at, done

    def _replay_each(self, partition: int, batch: bytes, plain: bytes, at: int, done: int) -> None:
        others: list[tuple[int, bytes, bytes | None]] = []
        for log_offset, key, value in records_of(plain, at, done):
            if value is None or not key.startswith(_OFFSET_KEY):
                self._replay_other(log_offset, key, value)
                others.append((log_offset, key, value))
                continue
            self._put(key, value, log_offset)
        if others:
            self._image.note(partition, read_header(batch).max_timestamp, others, batch)

    def _put(self, key: bytes, value: bytes, log_offset: int) -> None:
        """One committed offset."""
        names = self._prefixes.get(key[:-4]) or self._names_of(key[:-4])
        (index,) = _I32.unpack(key[-4:])
        if len(value) == _PLAIN_VALUE.size and value.startswith(_OFFSET_VALUE):
            # The usual value, without metadata, by hand; all others by the book.
            _, offset, leader_epoch, _, timestamp = _PLAIN_VALUE.unpack(value)
            self._store.put_plain(*names, index, offset, leader_epoch, timestamp, log_offset)
        else:
            self._store.put(*names, index, decode_offset_value(value), log_offset)

    def _replay_transactional(self, partition: int, batch: bytes) -> None:
        """Offsets of an open transaction, or its end."""
        header = read_header(batch)
        owner = (partition, header.producer_id)
        if not header.is_control:
            for log_offset, key, value in records_of(batch):
                name = decode_key(key)
                if value is None or not isinstance(name, OffsetKey):
                    raise RecordFormatError(f"a transactional record at offset {log_offset} that commits no offset")
                self._image.transactional.put(owner, name, Waiting(log_offset, decode_offset_value(value)))
            return
        try:
            committed = is_commit(batch) if header.attributes == TRANSACTIONAL_MASK | CONTROL_MASK else None
        except BatchError as error:
            raise RecordFormatError(str(error)) from error
        if committed is None:
            raise RecordFormatError(f"a batch with attributes {header.attributes} at offset {header.base_offset}")
        self._image.transactional.end(owner, self._store, committed=committed)

    def _names_of(self, prefix: bytes) -> tuple[str, str]:
        """Group and topic of an offset key without its partition. Raises `RecordFormatError`."""
        names = decode_offset_key_prefix(prefix)
        if len(self._prefixes) >= MAX_CACHED_PREFIXES:
            self._prefixes.clear()
        self._prefixes[prefix] = names
        return names

    def _replay_other(self, log_offset: int, key: bytes, value: bytes | None) -> None:
        """A tombstone, a group, or what old or newer software wrote."""
        name = decode_key(key)
        if isinstance(name, OffsetKey):
            if value is None:
                self._store.remove(*name)
                self._image.transactional.remove(*name)
            else:
                self._store.put(*name, decode_offset_value(value), log_offset)
