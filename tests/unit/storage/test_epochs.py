"""What a log knows of its leader epochs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.storage.epochs import UNDEFINED, EpochHistory

HISTORY = EpochHistory(((3, 10), (5, 20), (9, 40)))


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    assert HISTORY.end_of(9, 50) == (9, 50)
    assert HISTORY.end_of(5, 50) == (5, 40)
    assert HISTORY.end_of(6, 50) == (5, 40), "the largest that is not above it"
    assert HISTORY.end_of(3, 50) == (3, 20)
    assert HISTORY.end_of(2, 50) == (2, 10), "its records are gone"
    assert HISTORY.end_of(10, 50) == UNDEFINED


def test_an_epoch_without_a_record_leaves_no_trace() -> None:
    assert HISTORY.begin(12, 40) == EpochHistory(((3, 10), (5, 20), (12, 40)))
    assert HISTORY.begin(9, 60) is HISTORY


def test_what_is_gone_is_forgotten() -> None:
    assert HISTORY.starting_at(25) == EpochHistory(((5, 25), (9, 40)))
    assert HISTORY.starting_at(0) == EpochHistory(((3, 0), (5, 20), (9, 40)))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=12), st.integers(0, 60))
def test_every_offset_lies_in_its_epoch(steps: list[tuple[int, int]], start: int) -> None:
    """Against a list that says of each record which epoch it is of."""
    history, written = EpochHistory(), list[int]()
    for rise, count in steps:
        history = history.begin(history.latest + rise, len(written))
        written += [history.latest] * count
    assert [history.epoch_at(offset) for offset in range(len(written))] == written
    start = min(start, len(written))
    kept = history.starting_at(start)
    for epoch in set(written[start:]):
        last = max(offset for offset, one in enumerate(written) if one == epoch)
        assert kept.end_of(epoch, len(written)) == (epoch, last + 1)
