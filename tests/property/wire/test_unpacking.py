"""Snappy and LZ4 against the libraries that Arrow brings."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.wire.unpack import unlz4, unsnappy

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
        except (ValueError, IndexError):
            continue


@pytest.mark.parametrize(("codec", "unpack"), [("snappy", unsnappy), ("lz4", unlz4)])
def test_a_small_batch_that_unpacks_to_more_than_the_limit_is_refused(codec: str, unpack: object) -> None:
    assert callable(unpack)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        unpack(packed(codec, bytes(100_000)), 1_000)
