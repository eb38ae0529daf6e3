"""Variable-length integers against kio's readers, and what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers

from keylane.wire.primitives import read_unsigned_varint, read_varint, unsigned_varint, varint

if TYPE_CHECKING:
    from collections.abc import Callable


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_unsigned(number: int, before: bytes) -> None:
    data = unsigned_varint(number)
    assert readers.read_unsigned_varint(data, 0) == (number, len(data))
    assert read_unsigned_varint(before + data + b"more", len(before)) == (number, len(before) + len(data))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_signed(number: int, before: bytes) -> None:
    data = varint(number)
    assert readers.read_signed_varlong(data, 0) == (number, len(data))
    assert read_varint(before + data + b"more", len(before)) == (number, len(before) + len(data))


@pytest.mark.parametrize(("read", "most"), [(read_unsigned_varint, 5), (read_varint, 10)])
def test_too_long_and_cut_off(read: Callable[[bytes, int], tuple[int, int]], most: int) -> None:
    with pytest.raises(ValueError, match=f"more than {most} bytes"):
        read(b"\xff" * most + b"\1", 0)
    with pytest.raises(IndexError):
        read(b"\xff" * (most - 1), 0)
