"""What others may have written, with checksums that hold: a chunk of a snapshot and a batch of the log are read or
refused, and nothing else is raised."""

from __future__ import annotations

import contextlib
import struct

from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from keylane.coordinator.formats import (
    OffsetKey,
    OffsetValue,
    RecordFormatError,
    Records,
    encode_batch,
    encode_offset_key,
    encode_offset_value,
    encode_record,
)
from keylane.coordinator.journal import snapshot_format
from keylane.coordinator.journal.batch_replay import Replayer
from keylane.coordinator.journal.headers import JournalDamagedError
from keylane.coordinator.journal.image import Image, Kept, Tombstones
from keylane.coordinator.journal.snapshot_format import Chunk
from keylane.coordinator.offsets.transactional import Waiting
from keylane.coordinator.replicated.batches import as_written, read
from keylane.wire.batches import CRC_START, BatchError

VALUE = OffsetValue(5, -1, "m", 1, -1)
PAYLOADS = [
    (snapshot_format.OFFSETS, snapshot_format.encode_one("g", ("t", 0, 5, -1, 1_000, 7))),
    (snapshot_format.KEPT, snapshot_format.encode_kept(0, b"key", Kept(5, 1_000, b"value"))),
    (snapshot_format.TRANSACTIONAL, snapshot_format.encode_waiting((0, 4), OffsetKey("g", "t", 0), Waiting(7, VALUE))),
    (snapshot_format.TOMBSTONES, snapshot_format.encode_tombstones(Tombstones(0, 1_000, b"batch"))),
    (snapshot_format.END, bytes(16)),
]
BYTES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), BYTES))


def changed(data: bytes, changes: list[tuple[int, int]], first: int = 0) -> bytes:
    """With other bytes in some places, from `first` on."""
    made = bytearray(data)
    for at, byte in changes:
        if first < len(made):
            made[first + at % (len(made) - first)] = byte
    return bytes(made)


@given(st.sampled_from(PAYLOADS), CHANGES, st.binary(max_size=30), st.integers(0, 30))
@example((snapshot_format.OFFSETS, b""), [], struct.pack(">HHII", 0, 0, 2**32 - 1, 0), 0)
@example((snapshot_format.KEPT, b""), [], struct.pack(">iqqII", 0, 0, 0, 1, 2**32 - 1), 0)
def test_a_chunk_is_loaded_or_refused_as_damage(
    payload: tuple[int, bytes], changes: list[tuple[int, int]], more: bytes, less: int
) -> None:
    kind, data = payload
    whole = changed(data, changes)
    chunk = Chunk("snapshot", 36, kind, 0, whole[: len(whole) - less] + more)
    with contextlib.suppress(JournalDamagedError):
        snapshot_format.load_chunk(chunk, Image())
    with contextlib.suppress(JournalDamagedError):
        snapshot_format.decode_ends(chunk)
    with contextlib.suppress(JournalDamagedError):
        snapshot_format.decode_entries(chunk)


def test_a_chunk_that_ends_within_a_record_is_refused() -> None:
    """A slice would be shorter, and what it holds another one."""
    for kind, data in PAYLOADS[:4]:
        for size in range(1, len(data)):
            try:
                snapshot_format.load_chunk(Chunk("snapshot", 36, kind, 0, data[:size]), Image())
            except JournalDamagedError:
                continue
            raise AssertionError((kind, size))


def batch_of(count: int) -> bytes:
    value = encode_offset_value(VALUE)
    records = [encode_record(number, encode_offset_key("g", "t", number), value) for number in range(count)]
    return b"".join(encode_batch(Records(b"".join(records), count, 1_000), 0))


def sealed(batch: bytes) -> bytes:
    """With the length and the checksum that its bytes have."""
    made = bytearray(batch)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">I", made, CRC_START - 4, crc32c(bytes(made[CRC_START:])))
    return bytes(made)


NO_SIZE = [(len(batch_of(0)) - CRC_START, 0)]
"""The first record of several has no bytes."""
NO_END = [(len(batch_of(0)) - CRC_START + at, 0xFF) for at in range(16)]
"""A number that goes on."""


@given(st.sampled_from([batch_of(1), batch_of(8)]), CHANGES, st.binary(max_size=20), st.integers(0, 20))
@example(batch_of(8), NO_SIZE, b"", 0)
@example(batch_of(1), NO_END, b"", 0)
def test_a_batch_of_the_log_is_replayed_or_refused(
    batch: bytes, changes: list[tuple[int, int]], more: bytes, less: int
) -> None:
    whole = changed(batch, changes, CRC_START)
    data = sealed(whole[: len(whole) - less] + more)
    with contextlib.suppress(BatchError, RecordFormatError):
        written = [one for _, found in read(data, 0) if (one := as_written(found)) is not None]
        Replayer(Image()).replay_newest(0, written)
        for one in written:
            Replayer(Image()).replay(0, one)
