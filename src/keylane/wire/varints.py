"""Kafka's variable-length integers: seven bits a byte, the lowest first; signed ones (in records) as zigzag.

Lengths and counts in records are signed, those of flexible requests and answers are not.
"""

from __future__ import annotations

MAX_UNSIGNED_BITS = 35
"""Five bytes: a 32-bit number in groups of seven."""
MAX_SIGNED_BITS = 70
"""Ten bytes: a 64-bit number."""


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
