"""Compressed batches against other libraries, and the memory that hostile ones take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import cramjam
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from keylane.wire.batches import CODECS, BatchError, compress, unpacked
from keylane.wire.packing import lz4, snappy

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 10_000_000
NUMBERS = {name: number for number, name in CODECS.items()}
PACKED = ("gzip", "snappy", "lz4", "zstd")
pieces = st.lists(
    st.binary(max_size=40) | st.builds(lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 900)),
    max_size=12,
).map(b"".join)


def packed(codec: str, data: bytes) -> bytes:
    """By another library than ours."""
    if codec == "lz4":  # Arrow's blocks depend on one another, and Java reads no such frames
        packer = cramjam.lz4.Compressor(block_linked=False)
        packer.compress(data)
        return bytes(packer.finish())
    return bytes(pa.compress(data, codec=codec, asbytes=True))


def unpack(codec: str, data: bytes, limit: int = LIMIT) -> bytes:
    return b"".join(unpacked(NUMBERS[codec], data, limit))


@given(pieces)
def test_what_was_packed_is_unpacked(data: bytes) -> None:
    for codec in PACKED:
        assert unpack(codec, packed(codec, data)) == data


@given(pieces, st.data())
def test_what_is_cut_short_is_refused(data: bytes, draw: st.DataObject) -> None:
    """Wherever, also where what is left unpacks to all records."""
    for codec in PACKED:
        whole = packed(codec, data)
        end = draw.draw(st.integers(0, len(whole) - 1) | st.integers(max(0, len(whole) - 5), len(whole) - 1))
        with pytest.raises(BatchError, match=f"{codec} records cannot be unpacked"):
            unpack(codec, whole[:end])


@given(pieces, pieces, st.booleans())
def test_zstd_frames_behind_one_another(first: bytes, second: bytes, has_checksum: bool) -> None:
    """Without their length, with a block that was flushed, and frames to be passed over in between."""
    frames = b"".join(zstandard_frames(first, second, has_checksum=has_checksum))
    assert unpack("zstd", frames) == first + second
    for cut in (1, 5):
        with pytest.raises(BatchError, match="zstd records cannot be unpacked: a frame is cut short"):
            unpack("zstd", frames[:-cut])


def zstandard_frames(first: bytes, second: bytes, *, has_checksum: bool) -> Iterator[bytes]:
    skipped = bytes.fromhex("542a4d18 03000000") + b"any"
    yield skipped
    for data in (first, second):
        packer = zstandard.ZstdCompressor(write_checksum=has_checksum).compressobj()
        yield packer.compress(data) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + packer.flush()
        yield skipped


@given(pieces.map(lambda data: data * 9), st.none() | st.integers(1, 17))
def test_what_we_pack_is_unpacked_by_others(data: bytes, level: int | None) -> None:
    """Of several blocks, too; Snappy in a Java stream, which Arrow does not know."""
    assert unpack("snappy", snappy(data)) == data
    assert unpack("lz4", lz4(data, level)) == data
    assert not data or pa.decompress(lz4(data, level), len(data), codec="lz4", asbytes=True) == data


@given(pieces, pieces)
def test_blocks_of_a_java_stream(first: bytes, second: bytes) -> None:
    stream = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    for data in (first, second):
        block = packed("snappy", data)
        stream += len(block).to_bytes(4, "big") + block
    assert unpack("snappy", stream) == first + second


@given(pieces, pieces)
def test_streams_behind_one_another(first: bytes, second: bytes) -> None:
    """As Java reads them, which also passes over what follows those of gzip."""
    for codec in ("gzip", "zstd"):
        assert unpack(codec, packed(codec, first) + packed(codec, second)) == first + second
    assert unpack("gzip", packed("gzip", first) + b"and more") == first


def test_blocks_that_depend_on_one_another_are_refused() -> None:
    with pytest.raises(BatchError, match="depend on one another"):
        unpack("lz4", bytes(pa.compress(bytes(200_000), codec="lz4", asbytes=True)))


@given(pieces, st.data())
def test_damage_is_an_error_or_other_bytes_within_the_limit(data: bytes, choice: st.DataObject) -> None:
    for codec in PACKED:
        whole = bytearray(packed(codec, data))
        whole[choice.draw(st.integers(0, len(whole) - 1))] = choice.draw(st.integers(0, 255))
        cut = bytes(whole[: choice.draw(st.integers(0, len(whole)))])
        try:
            assert len(unpack(codec, cut, 20_000)) <= 20_000
        except BatchError:
            continue


@pytest.mark.parametrize("codec", PACKED)
def test_a_small_batch_that_unpacks_to_more_than_the_limit_is_refused(codec: str) -> None:
    data = packed(codec, bytes(100_000))
    assert unpack(codec, data, 100_000) == bytes(100_000)
    for limit in (99_999, 1_000, 0):
        with pytest.raises(BatchError, match="more than"):
            unpack(codec, data, limit)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_whoever_keeps_no_piece_needs_no_memory_for_all(codec: str) -> None:
    mebibyte = 2**20
    bomb = compress(NUMBERS[codec], bytes(64 * mebibyte))
    before = reset_peak()
    assert sum(map(len, unpacked(NUMBERS[codec], bomb))) == 64 * mebibyte
    assert peak() - before < 16 * mebibyte


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: str) -> None:
    limit, mebibyte = 8 * 2**20, 2**20
    bomb = packed(codec, bytes(128 * mebibyte))
    before = reset_peak()
    with pytest.raises(BatchError, match="more than"):
        unpack(codec, bomb, limit)
    assert peak() - before < limit + 16 * mebibyte


def reset_peak() -> int:
    """The process' memory, from which on its peak counts (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    [found] = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found) * 1024


def test_of_a_stream_of_blocks_all_together_count() -> None:
    stream = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    block = packed("snappy", bytes(600))
    stream += 2 * (len(block).to_bytes(4, "big") + block)
    assert unpack("snappy", stream, 1_200) == bytes(1_200)
    with pytest.raises(BatchError, match="more than"):
        unpack("snappy", stream, 1_199)
    with pytest.raises(BatchError, match="cut short"):
        unpack("snappy", stream[:-1], 1_200)
