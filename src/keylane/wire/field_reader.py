"""`FieldReader`: Kafka's fields, read one after the other, of requests, answers and coordinators' records.

What is read by hand is read by this one: what kio's classes are too slow for, and what they do not know.
"""

from __future__ import annotations

import struct

from keylane.wire.varints import read_unsigned_varint

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class FieldError(ValueError):
    """The bytes hold no such field."""


class FieldReader:
    """Reads `data` from `at` on. Every method raises `FieldError`."""

    __slots__ = ("at", "data", "is_flexible")

    def __init__(self, data: bytes, at: int = 0, *, is_flexible: bool = False) -> None:
        """`is_flexible`: lengths are varints, and tagged fields end each entity (KIP-482)."""
        self.data = data
        self.at = at
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
            return self._bytes(size).decode()
        except UnicodeDecodeError as error:
            raise FieldError(f"text that is not UTF-8: {error}") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise FieldError(f"null where a string is due, before byte {self.at}")
        return text

    def sized_bytes(self) -> bytes:
        """Empty for null."""
        size = self.count()
        return b"" if size == -1 else self._bytes(size)

    def count(self) -> int:
        """Items of an array; -1 for null."""
        return self.unsigned() - 1 if self.is_flexible else self.int32()

    def items(self) -> range:
        """One for each item of an array that is not null."""
        count = self.count()
        if not 0 <= count <= len(self.data) - self.at:  # every item has a byte at least
            raise FieldError(f"an array of {count} items in {len(self.data) - self.at} bytes")
        return range(count)

    def skip_tags(self) -> None:
        if self.is_flexible:
            for _ in range(self.unsigned()):
                self.unsigned()
                self._bytes(self.unsigned())

    def finish(self) -> None:
        """Nothing but tagged fields may be left."""
        self.skip_tags()
        if self.at != len(self.data):
            raise FieldError(f"{len(self.data) - self.at} bytes left over at byte {self.at}")

    def _bytes(self, size: int) -> bytes:
        at = self.at
        end = at + size
        if size < 0 or end > len(self.data):
            raise self._too_short(size, at)
        self.at = end
        return self.data[at:end]

    def _too_short(self, size: int, at: int) -> FieldError:
        return FieldError(f"{size} bytes are due at byte {at} of {len(self.data)}")
