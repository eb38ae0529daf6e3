"""What is written is read, and what is no field is named."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from keylane.wire import primitives
from keylane.wire.primitives import FieldError, FieldReader, unsigned_varint

if TYPE_CHECKING:
    from collections.abc import Callable


def test_plain_fields_are_read_one_after_the_other() -> None:
    parts = [
        primitives.int16(-2),
        primitives.int32(3),
        struct.pack(">q", -4),
        primitives.string("ä"),
        primitives.string(None),
    ]
    parts += [primitives.array_length(2), b"ab", struct.pack(">i", 3), b"xyz", struct.pack(">i", -1), b"\0\1\0\2"]
    reader = FieldReader(b"head" + b"".join(parts), 4)
    assert (reader.int16(), reader.int32(), reader.int64()) == (-2, 3, -4)
    assert (reader.string(), reader.nullable_string()) == ("ä", None)
    assert [reader.numbers(struct.Struct("B")) for _ in reader.items()] == [(97,), (98,)]
    assert (reader.sized_bytes(), reader.sized_bytes()) == (b"xyz", b"")
    assert reader.numbers(struct.Struct(">hh")) == (1, 2)
    reader.finish()


def test_flexible_fields_have_varints_and_tags() -> None:
    long = "n" * 200
    parts = [primitives.compact_string(long), primitives.compact_string(None), primitives.compact_array_length(1), b"x"]
    tags = unsigned_varint(1) + unsigned_varint(7) + unsigned_varint(2) + b"??"
    reader = FieldReader(b"".join(parts) + tags, is_flexible=True)
    assert (reader.string(), reader.nullable_string()) == (long, None)
    assert [reader.numbers(struct.Struct("B")) for _ in reader.items()] == [(120,)]
    reader.finish()


@pytest.mark.parametrize(
    ("data", "read", "text"),
    [
        (b"\0", FieldReader.int16, "2 bytes are due at byte 0 of 1"),
        (b"\0\3ab", FieldReader.string, "3 bytes are due at byte 2 of 4"),
        (b"\xff\xfeab", FieldReader.nullable_string, "-2 bytes are due at byte 2 of 4"),
        (b"\xff\xff", FieldReader.string, "null where a string is due, before byte 2"),
        (b"\0\2\xff\xff", FieldReader.string, "text that is not UTF-8: "),
        (b"\x80", FieldReader.unsigned, "it ends within a varint at byte 0"),
        (b"\x80" * 6, FieldReader.unsigned, "a varint of more than 5 bytes at byte 0"),
        (b"\0\0\0\2a", FieldReader.items, "an array of 2 items in 1 bytes"),
        (b"\xff\xff\xff\xff", FieldReader.items, "an array of -1 items in 0 bytes"),
        (b"\xff\xff\xff\xfe", FieldReader.sized_bytes, "-2 bytes are due at byte 4 of 4"),
        (b"ab", FieldReader.finish, "2 bytes left over at byte 0"),
    ],
)
def test_what_is_no_field_is_named(data: bytes, read: Callable[[FieldReader], object], text: str) -> None:
    with pytest.raises(FieldError, match=text):
        read(FieldReader(data))


def test_tags_do_not_end_behind_the_data() -> None:
    with pytest.raises(FieldError, match="9 bytes are due at byte 3 of 4"):
        FieldReader(b"\1\0\x09a", is_flexible=True).skip_tags()
