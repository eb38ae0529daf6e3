"""Columns in rows: what is written is what `struct` writes and reads."""

from __future__ import annotations

import struct
from array import array

from hypothesis import given
from hypothesis import strategies as st

from keylane.wire.columns import as_array, is_run, read_column, write_rows

NUMBERS = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**16 - 1))


@given(st.lists(NUMBERS, max_size=300), st.binary(max_size=8), st.binary(max_size=8))
def test_rows_are_those_of_struct(numbers: list[tuple[int, int, int]], before: bytes, behind: bytes) -> None:
    layout = f">{len(before)}siqH{len(behind)}s"
    row = struct.pack(layout, before, 0, 0, 0, behind)
    columns = [array(code, [one[at] for one in numbers]) for at, code in enumerate("iqH")]
    places = (len(before), len(before) + 4, len(before) + 12)
    rows = write_rows(row, len(numbers), dict(zip(places, columns, strict=True)))
    assert rows == b"".join(struct.pack(layout, before, *one, behind) for one in numbers)
    data = b"ahead" + rows + b"more"
    for place, column in zip(places, columns, strict=True):
        assert read_column(data, 5 + place, len(row), len(numbers), column.typecode) == column


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_an_array_of_the_type_is_taken_as_it_is(numbers: list[int]) -> None:
    same = array("i", numbers)
    assert as_array("i", same) is same
    assert as_array("q", same) == as_array("q", numbers) == array("q", numbers)


@given(st.integers(-2, 20_000), st.integers(1, 30), st.integers(-1, 40), st.integers(-3, 3))
def test_numbers_that_follow_each_other(first: int, count: int, at: int, change: int) -> None:
    numbers = list(range(first, first + count))
    if 0 <= at < count:
        numbers[at] += change
    expected = numbers[0] >= 0 and numbers == list(range(numbers[0], numbers[0] + count))
    assert is_run(array("i", numbers)) is expected


def test_the_highest_numbers_are_no_overflow() -> None:
    assert is_run(array("i", [2**31 - 2, 2**31 - 1]))
    assert not is_run(array("i", [2**31 - 1, 0]))
