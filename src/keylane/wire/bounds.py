"""A look at a request's lengths and counts before it is decoded: none may promise more than the request holds.

kio makes room for as many items as an array's count says before it reads the first one, and a count of 2^31 ends the
process, whoever sent it; and it gives None for a null array where Kafka allows none. So every request that kio decodes
passes here first. The idea: of each schema a chain of small
functions is made, each of which takes a position and returns the one behind its field; fields of a fixed size are
passed at once, and an item that takes at least n bytes cannot be there more often than the bytes that are left allow.
The items of all arrays are counted on the way: a request with many takes long to decode, and one with more than
`MAX_ITEMS` is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from keylane.errors import PeerError
from keylane.wire.fields import Field, fields_of
from keylane.wire.primitives import ItemCount

Pass = Callable[[bytes, int, ItemCount], int]
"""(frame, position, items) -> the position behind. Raises `BoundsError`, `TooManyItemsError`, `IndexError` or
`struct.error`."""

_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
"""Bytes, by kio's names of Kafka's types."""
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from


class BoundsError(PeerError):
    """A length or count that the request cannot hold."""


def bounds_checker(entity_type: Any) -> Pass:
    """What looks at the body of a request of this class of kio's."""
    return _entity(entity_type)[0]


def _entity(entity_type: Any) -> tuple[Pass, int, bool]:
    """How to pass an entity, how many bytes it takes at least, and whether it always takes so many."""
    steps: list[Pass] = []
    smallest = fixed = 0
    is_fixed = True
    for field in fields_of(entity_type):
        if field.is_tagged:
            assert not field.is_sequence, f"{entity_type} has an array as a tagged field"
            continue
        size = _SIZES.get(field.kafka_type or "") if not field.is_sequence else None
        if size is not None:
            fixed += size
            smallest += size
            continue
        if fixed:
            steps.append(_fixed(fixed))
            fixed = 0
        step, least = _variable(field, is_flexible=entity_type.__flexible__)
        steps.append(step)
        smallest += least
        is_fixed = False
    if fixed:
        steps.append(_fixed(fixed))
    if entity_type.__flexible__:
        steps.append(_tags)
        smallest, is_fixed = smallest + 1, False
    return _chain(steps), smallest, is_fixed


def _variable(field: Field, *, is_flexible: bool) -> tuple[Pass, int]:
    """How to pass a field without a fixed size, and how many bytes it takes at least."""
    if field.entity is not None and not field.is_sequence:
        item, smallest, _ = _entity(field.entity)
        return (_nullable(item), 1) if field.is_nullable else (item, smallest)
    if not field.is_sequence:
        assert field.kafka_type in ("string", "bytes", "records"), field
        if is_flexible:
            return _compact_bytes, 1
        return (_string, 2) if field.kafka_type == "string" else (_bytes, 4)
    if field.entity is not None:
        item, smallest, is_fixed = _entity(field.entity)
    else:
        size = _SIZES.get(field.kafka_type or "")
        is_fixed = size is not None
        item, smallest = (
            (_fixed(size), size)
            if size is not None
            else _variable(field._replace(is_sequence=False), is_flexible=is_flexible)
        )
    may_be_null = field.is_nullable
    step = _array(item, smallest, is_fixed=is_fixed, is_flexible=is_flexible, may_be_null=may_be_null)
    return step, 1 if is_flexible else 4


def _chain(steps: list[Pass]) -> Pass:
    if len(steps) == 1:
        return steps[0]

    def run(frame: bytes, at: int, items: ItemCount) -> int:
        for step in steps:
            at = step(frame, at, items)
        return at

    return run


def _array(item: Pass, smallest: int, *, is_fixed: bool, is_flexible: bool, may_be_null: bool) -> Pass:
    def run(frame: bytes, at: int, items: ItemCount) -> int:
        if is_flexible:
            count, at = _unsigned(frame, at)
            count -= 1
        else:
            count = _INT32(frame, at)[0]
            at += 4
        if count <= 0:
            if count < 0 and not may_be_null:
                raise BoundsError("null where an array is due")
            return at
        if count * smallest > len(frame) - at:
            raise BoundsError(f"an array of {count} items, and {len(frame) - at} bytes are left")
        items.add(count)
        if is_fixed:
            return at + count * smallest
        for _ in range(count):
            at = item(frame, at, items)
        return at

    return run


def _nullable(item: Pass) -> Pass:
    """An entity behind a byte that is negative where there is none."""

    def run(frame: bytes, at: int, items: ItemCount) -> int:
        return at + 1 if frame[at] >= 0x80 else item(frame, at + 1, items)

    return run


def _fixed(size: int) -> Pass:
    def run(frame: bytes, at: int, _: ItemCount) -> int:
        at += size
        if at > len(frame):
            raise BoundsError(f"{at - len(frame)} bytes are missing")
        return at

    return run


def _string(frame: bytes, at: int, _: ItemCount) -> int:
    return _behind(frame, at + 2, _INT16(frame, at)[0])


def _bytes(frame: bytes, at: int, _: ItemCount) -> int:
    return _behind(frame, at + 4, _INT32(frame, at)[0])


def _compact_bytes(frame: bytes, at: int, _: ItemCount) -> int:
    size, at = _unsigned(frame, at)
    return _behind(frame, at, size - 1)


def _tags(frame: bytes, at: int, items: ItemCount) -> int:
    if frame[at] == 0:
        return at + 1
    count, at = _unsigned(frame, at)
    items.add(count)
    for _ in range(count):
        _, at = _unsigned(frame, at)
        size, at = _unsigned(frame, at)
        at = _behind(frame, at, size)
    return at


def _behind(frame: bytes, at: int, size: int) -> int:
    if size < 0:  # null
        return at
    if at + size > len(frame):
        raise BoundsError(f"a length of {size}, and {len(frame) - at} bytes are left")
    return at + size


def _unsigned(frame: bytes, at: int) -> tuple[int, int]:
    byte = frame[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = frame[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 28:
            raise BoundsError("a varint of more than five bytes")
