"""An offset map as a strip of a few cells: what of each is complete. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CELLS = 96
"""Of the longest strip."""


def strip(base: int, highest_completed: int, incomplete: Iterable[Sequence[int]], cells: int = CELLS) -> str:
    """A digit for each cell from `base` to the highest completed offset: 0 where nothing is complete, 9 where all is,
    1 to 8 between. `incomplete` are runs, by their first and last offsets. Empty where nothing above the base is
    complete."""
    span = highest_completed + 1 - base
    if span <= 0:
        return ""
    count = min(cells, span)
    missing = [0] * count
    for first, last in ((run[0] - base, run[-1] - base) for run in incomplete):
        for cell in range(_cell(first, span, count), _cell(last, span, count) + 1):
            start, end = _bounds(cell, span, count)
            missing[cell] += min(last + 1, end) - max(first, start)
    return "".join(_digit(missing[cell], *_bounds(cell, span, count)) for cell in range(count))


def _bounds(cell: int, span: int, count: int) -> tuple[int, int]:
    """The first of its offsets, less the base, and the first behind it."""
    return cell * span // count, (cell + 1) * span // count


def _cell(offset: int, span: int, count: int) -> int:
    """The cell that an offset, less the base, is in."""
    return ((offset + 1) * count - 1) // span


def _digit(missing: int, start: int, end: int) -> str:
    size = end - start
    if missing == 0:
        return "9"
    return "0" if missing == size else str(1 + 8 * (size - missing) // size)
