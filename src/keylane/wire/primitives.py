"""Kafka's primitive types, written and read one after the other: of requests, answers, records, coordinators' keys.

Variable-length integers have seven bits a byte, the lowest first; signed ones (lengths and counts in records) are
zigzag, those of flexible requests and answers are not signed. What is read by hand is read by `FieldReader`: what kio's
classes are too slow for, and what they do not know.

Source: https://kafka.apache.org/protocol#protocol_types.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from uuid import UUID

from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

MAX_UNSIGNED_BITS = 35
"""Five bytes: a 32-bit number in groups of seven."""
MAX_SIGNED_BITS = 70
"""Ten bytes: a 64-bit number."""
MAX_ITEMS = 250_000
"""Items of all arrays of a request: so many objects at once are made and freed in some 50 ms. Apache Kafka takes a
million in each array."""


def unsigned_varint(value: int) -> bytes:
    """Of a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Of a number of 64 bits."""
    return unsigned_varint((value << 1) ^ (value >> 63))


def read_unsigned_varint(data: bytes, at: int, max_bits: int = MAX_UNSIGNED_BITS) -> tuple[int, int]:
    """The number at `at`, and where it ends. Raises `IndexError` where the data ends, `ValueError` for a longer one."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, max_bits, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a varint of more than {max_bits // 7} bytes")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The same for a signed number."""
    raw = data[at]
    if raw < 0x80:
        return (raw >> 1) ^ -(raw & 1), at + 1
    raw, at = read_unsigned_varint(data, at, MAX_SIGNED_BITS)
    return (raw >> 1) ^ -(raw & 1), at


# --- written ---

EMPTY_TAGS = b"\0"
_NULL_STRING = b"\xff\xff"

MAX_STRING_BYTES = 2**15 - 1
"""Of a string whose length is an int16; Java's clients take no longer one of a flexible version either."""
_CUT = "…"

int16, int32, int64 = _I16.pack, _I32.pack, _I64.pack


def error_text(text: str) -> str:
    """As much of it as an answer of any version holds: an error may name what is as long as a string can be."""
    data = text.encode()
    if len(data) <= MAX_STRING_BYTES:
        return text
    return data[: MAX_STRING_BYTES - len(_CUT.encode())].decode(errors="ignore") + _CUT


def string(value: str | None) -> bytes:
    """A (nullable) string with an int16 length."""
    if value is None:
        return _NULL_STRING
    data = value.encode()
    return int16(len(data)) + data


def compact_string(value: str | None) -> bytes:
    """A (nullable) string with a varint of its length plus one."""
    if value is None:
        return b"\0"
    data = value.encode()
    return unsigned_varint(len(data) + 1) + data


def array_length(count: int) -> bytes:
    """The length before an array's items."""
    return int32(count)


def compact_array_length(count: int) -> bytes:
    """The same in flexible versions."""
    return unsigned_varint(count + 1)


def tagged(fields: Mapping[int, bytes]) -> bytes:
    """Tagged fields (KIP-482), by tag, ascending."""
    parts = [unsigned_varint(len(fields))]
    for tag, data in fields.items():
        parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)
    return b"".join(parts)


# --- read ---


class TooManyItemsError(PeerError):
    """The arrays of a request have more items than are taken, or taken here."""


class ItemCount:
    """Counts the items of all arrays of one request."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int = MAX_ITEMS) -> None:
        self._left = self._most = most

    def add(self, count: int) -> None:
        """An array of so many follows. Raises `TooManyItemsError`."""
        self._left -= count
        if self._left < 0:
            raise TooManyItemsError(f"more than {self._most:,} items in the arrays of a request: send several")


class FieldError(ValueError):
    """The bytes hold no such field."""


class FieldReader:
    """Reads `data` from `at` on. Every method raises `FieldError`."""

    __slots__ = ("_count", "at", "data", "is_flexible")

    def __init__(self, data: bytes, at: int = 0, *, is_flexible: bool = False, count: ItemCount | None = None) -> None:
        """`is_flexible`: lengths are varints, and tagged fields end each entity (KIP-482). `count` is told of each
        array, and may refuse it."""
        self.data = data
        self.at = at
        self.is_flexible = is_flexible
        self._count = count

    def go_on(self, *, is_flexible: bool) -> None:
        """What follows is flexible, or not: a header says what comes behind it."""
        self.is_flexible = is_flexible

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        at = self.at
        self.at = at + form.size
        try:
            return form.unpack_from(self.data, at)
        except struct.error:
            raise self._too_short(form.size, at) from None

    def int16(self) -> int:
        return self.numbers(_I16)[0]

    def int32(self) -> int:
        return self.numbers(_I32)[0]

    def int64(self) -> int:
        return self.numbers(_I64)[0]

    def unsigned(self) -> int:
        """A varint."""
        at = self.at
        try:
            value, self.at = read_unsigned_varint(self.data, at)
        except IndexError:
            raise FieldError(f"it ends within a varint at byte {at}") from None
        except ValueError as error:
            raise FieldError(f"{error} at byte {at}") from None
        return value

    def nullable_string(self) -> str | None:
        size = self.unsigned() - 1 if self.is_flexible else self.int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise FieldError(f"text that is not UTF-8: {error}") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise FieldError(f"null where a string is due, before byte {self.at}")
        return text

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def sized_bytes(self) -> bytes:
        """Empty for null."""
        size = self.count()
        return b"" if size == -1 else self.take(size)

    def count(self) -> int:
        """Items of an array; -1 for null."""
        return self.unsigned() - 1 if self.is_flexible else self.int32()

    def items(self) -> range:
        """One for each item of an array that is not null."""
        count = self.count()
        if not 0 <= count <= len(self.data) - self.at:  # every item has a byte at least
            raise FieldError(f"an array of {count} items in {len(self.data) - self.at} bytes")
        if self._count is not None:
            self._count.add(count)
        return range(count)

    def skip_tags(self) -> None:
        if self.is_flexible:
            for _ in range(self.unsigned()):
                self.unsigned()
                self.take(self.unsigned())

    def tags(self) -> dict[int, bytes]:
        """Tagged fields, by tag; none where nothing is flexible."""
        count = self.unsigned() if self.is_flexible else 0
        return {self.unsigned(): self.take(self.unsigned()) for _ in range(count)}

    def finish(self) -> None:
        """Nothing but tagged fields may be left."""
        self.skip_tags()
        self.end()

    def end(self) -> None:
        """Nothing may be left."""
        if self.at != len(self.data):
            raise FieldError(f"{len(self.data) - self.at} bytes left over at byte {self.at}")

    def take(self, size: int) -> bytes:
        """The next bytes."""
        at = self.at
        end = at + size
        if size < 0 or end > len(self.data):
            raise self._too_short(size, at)
        self.at = end
        return self.data[at:end]

    def _too_short(self, size: int, at: int) -> FieldError:
        return FieldError(f"{size} bytes are due at byte {at} of {len(self.data)}")
