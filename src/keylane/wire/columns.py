"""Columns of integers in rows of one size, read and written without an object for each number.

A thousand partitions in a request, an answer or a record batch are a thousand rows that differ in a few numbers. Byte
*k* of a number in all rows is one extended slice, so a column of 64-bit numbers is eight copies in C, whatever the
number of rows; one copy where its numbers are aligned. Rows are big-endian, arrays have the machine's order.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW_ROWS = 4
"""Below this it takes less to go row by row."""

_NUMBERS = array("i", range(10_000))
_IS_LITTLE = sys.byteorder == "little"


def read_column(data: bytes, at: int, row_size: int, count: int, typecode: str) -> array[int]:
    """The numbers at `at`, `at + row_size`, …: as many as `count`. All of them must be within `data`."""
    column = array(typecode)
    width = column.itemsize
    end = at + count * row_size
    raw = bytearray(width * count)
    for byte in range(width):
        raw[width - 1 - byte if _IS_LITTLE else byte :: width] = data[at + byte : end : row_size]
    column.frombytes(raw)
    return column


def write_rows(row: bytes, count: int, columns: Mapping[int, array[int]]) -> bytes:
    """`count` times `row`, with numbers of their own at the places in a row that `columns` has."""
    if not count:
        return b""
    rows = bytearray(row * count)
    view: Any = memoryview(rows)
    for at, column in columns.items():
        width = column.itemsize
        if at % width == len(row) % width == 0:
            words = column[:]
            if _IS_LITTLE:
                words.byteswap()
            view.cast(column.typecode)[at // width :: len(row) // width] = words
            continue
        raw = column.tobytes()
        for byte in range(width):
            rows[at + byte :: len(row)] = raw[width - 1 - byte if _IS_LITTLE else byte :: width]
    return bytes(rows)


def is_run(column: array[int]) -> bool:
    """Whether these numbers (32 bits, one at least) follow each other, from 0 or a higher one on."""
    first, count = column[0], len(column)
    if first < 0 or column[-1] != first + count - 1:
        return False
    return column == (
        _NUMBERS[first : first + count] if first + count <= len(_NUMBERS) else array("i", range(first, first + count))
    )


def as_array(typecode: str, values: Sequence[int]) -> array[int]:
    """The same numbers; no copy of what is such an array already."""
    return values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)
