"""A strip says of each offset of a map no more and no less than the map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.ui.strips import CELLS, strip


@pytest.mark.parametrize(
    ("base", "highest", "incomplete", "cells", "drawn"),
    [
        (5, 4, [], 96, ""),
        (10, 19, [(10, 11), (15, 15)], 96, "0099909999"),
        (0, 999, [(0, 499)], 10, "0000099999"),
        (0, 9, [(0, 0)], 2, "79"),
        (0, 2**40 - 1, [(0, 2**39 - 1)], 4, "0099"),
        (0, 999, [(0, 998)], 1, "1"),
        (0, 999, [(0, 0)], 1, "8"),
    ],
)
def test_a_cell_is_a_share_of_the_map(
    base: int, highest: int, incomplete: list[tuple[int, int]], cells: int, drawn: str
) -> None:
    assert strip(base, highest, incomplete, cells) == drawn


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.integers(0, 1_000), st.integers(1, CELLS))
def test_full_and_empty_cells_are_just_that(complete: list[bool], base: int, cells: int) -> None:
    complete[-1] = True  # the highest that is complete
    runs = [(base + at, base + at) for at, is_so in enumerate(complete) if not is_so]
    drawn = strip(base, base + len(complete) - 1, runs, cells)
    count = min(cells, len(complete))
    assert len(drawn) == count
    for cell, digit in enumerate(drawn):
        part = complete[cell * len(complete) // count : (cell + 1) * len(complete) // count]
        assert (digit == "9", digit == "0") == (all(part), not any(part))
        if digit not in "09":
            assert abs(int(digit) - 0.5 - 8 * sum(part) / len(part)) <= 1
