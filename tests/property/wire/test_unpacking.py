"""Snappy and LZ4 against the libraries that Arrow brings, and the memory that hostile ones take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.wire.packing import lz4, snappy, unlz4, unsnappy

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 10_000_000
pieces = st.lists(
    st.binary(max_size=40) | st.builds(lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 900)),
    max_size=12,
).map(b"".join)


def packed(codec: str, data: bytes) -> bytes:
    return bytes(pa.compress(data, codec=codec, asbytes=True))


@given(pieces)
def test_what_was_packed_is_unpacked(data: bytes) -> None:
    assert unsnappy(packed("snappy", data), LIMIT) == data
    assert unlz4(packed("lz4", data), LIMIT) == data


@given(pieces.map(lambda data: data * 9), st.none() | st.integers(1, 17))
def test_what_we_pack_is_unpacked_by_others(data: bytes, level: int | None) -> None:
    """Of several blocks, too; Snappy in a Java stream, which Arrow does not know."""
    assert unsnappy(snappy(data), LIMIT) == data
    assert unlz4(lz4(data, level), LIMIT) == data
    assert not data or pa.decompress(lz4(data, level), len(data), codec="lz4", asbytes=True) == data


@given(pieces, pieces)
def test_blocks_of_a_java_stream(first: bytes, second: bytes) -> None:
    stream = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    for data in (first, second):
        block = packed("snappy", data)
        stream += len(block).to_bytes(4, "big") + block
    assert unsnappy(stream, LIMIT) == first + second


@given(pieces, st.data())
def test_damage_is_an_error_or_other_bytes_within_the_limit(data: bytes, choice: st.DataObject) -> None:
    for codec, unpack in (("snappy", unsnappy), ("lz4", unlz4)):
        whole = bytearray(packed(codec, data))
        whole[choice.draw(st.integers(0, len(whole) - 1))] = choice.draw(st.integers(0, 255))
        cut = bytes(whole[: choice.draw(st.integers(0, len(whole)))])
        try:
            assert len(unpack(cut, 20_000)) <= 20_000
        except ValueError:
            continue


UNPACKERS = pytest.mark.parametrize(("codec", "unpack"), [("snappy", unsnappy), ("lz4", unlz4)])


@UNPACKERS
def test_a_small_batch_that_unpacks_to_more_than_the_limit_is_refused(
    codec: str, unpack: Callable[[bytes, int], bytes]
) -> None:
    data = packed(codec, bytes(100_000))
    assert unpack(data, 100_000) == bytes(100_000)
    for limit in (99_999, 1_000, 0):
        with pytest.raises(ValueError, match=f"more than {limit} bytes"):
            unpack(data, limit)


@UNPACKERS
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: str, unpack: Callable[[bytes, int], bytes]) -> None:
    limit, mebibyte = 8 * 2**20, 2**20
    bomb = packed(codec, bytes(128 * mebibyte))
    before = reset_peak()
    with pytest.raises(ValueError, match=f"more than {limit} bytes"):
        unpack(bomb, limit)
    assert peak() - before < limit + 8 * mebibyte


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
    assert unsnappy(stream, 1_200) == bytes(1_200)
    with pytest.raises(ValueError, match="more than"):
        unsnappy(stream, 1_199)
    with pytest.raises(ValueError, match="cut short"):
        unsnappy(stream[:-1], 1_200)
