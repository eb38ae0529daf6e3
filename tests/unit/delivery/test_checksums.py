"""A log beside what a store has kept of it: which records the store has not."""

from __future__ import annotations

import pytest

from keylane.delivery.checksums import Kept, checksum, compare
from keylane.delivery.stores import Position
from keylane.offsets import OffsetMap

OLD, NEW = 1_000, 2_000
"""What is added to an offset to make the checksum of its record."""


def log(old: int, new: int) -> list[tuple[int, int]]:
    """So many records of the log that the store knows, and so many others behind them."""
    return [(at, at + OLD) for at in range(old)] + [(at, at + NEW) for at in range(old, old + new)]


def kept(
    places: range | list[int], below: int = 0, position: int | None = None, committed: OffsetMap | None = None
) -> Kept:
    return Kept({at: at + OLD for at in places}, below, None if position is None else Position(position), committed)


def test_a_log_that_is_as_it_was_lacks_nothing() -> None:
    found = compare(log(100, 0), 0, 100, kept([49, *range(50, 100)], 50, 100, OffsetMap(100)))
    assert (found.same_below, found.missing, found.stale) == (None, [], [])


def test_of_a_restored_log_the_new_records_are_missing() -> None:
    """They have places of which the store has others."""
    found = compare(log(60, 40), 0, 100, kept(range(100), 0, 100, OffsetMap(60)))
    assert (found.same_below, found.missing, found.unsure) == (60, list(range(60, 100)), 0)
    assert found.stale == list(range(60, 100))


def test_of_purged_places_a_sample_tells_which_log_it_is() -> None:
    found = compare(log(60, 40), 0, 100, kept([9, 59, 99], 100, 100, OffsetMap(60)))
    assert (found.same_below, found.missing, found.stale) == (60, list(range(60, 100)), [99])
    assert found.unsure == 39, "between the last sample that is the same and the first that is not"


def test_the_groups_commit_tells_more_exactly_where_the_log_is_another_one() -> None:
    """What is purged below does not run again, but where a sample says that the group is wrong about this log."""
    one = kept([99], 100, 100, OffsetMap(60))
    one.same_below = 60
    found = compare(log(60, 40), 0, 100, one)
    assert (found.same_below, found.missing, found.stale) == (60, list(range(60, 100)), [99])
    one.below = 50
    assert compare(log(60, 40), 0, 100, one).missing == list(range(50, 100)), "not all of it was processed"
    one.same_below = 100
    found = compare(log(60, 40), 0, 100, one)
    assert (found.same_below, found.missing) == (0, list(range(100)))


def test_where_a_later_leader_began_the_log_is_another_one_though_no_sample_says_so() -> None:
    """The log has a control record where the store has its sample."""
    gap = [one for one in log(60, 40) if one[0] != 79]
    one = kept([79], 80, 80, OffsetMap(100))
    one.same_below, one.is_cut = 60, True
    found = compare(gap, 0, 100, one)
    assert (found.same_below, found.missing, found.unsure) == (60, [at for at in range(60, 100) if at != 79], 0)
    one.places = {79: 79 + OLD}
    found = compare(log(100, 0), 0, 100, one)
    assert (found.same_below, found.missing) == (None, list(range(80, 100))), "a sample says that the epochs are wrong"


def test_a_log_that_is_shorter_is_another_one() -> None:
    found = compare(log(50, 10), 0, 60, kept([49, 99], 100, 100, OffsetMap(50)))
    assert (found.same_below, found.missing, found.stale) == (50, list(range(50, 60)), [99])


def test_new_records_that_ran_before_the_run_ended_are_there() -> None:
    """Others of the new log were processed beside the one at which the difference was seen."""
    places = {at: at + OLD for at in range(80)} | {85: 85 + NEW}
    found = compare(log(60, 40), 0, 100, Kept(places, 0, Position(60), OffsetMap(60)))
    assert found.same_below == 60
    assert found.missing == [at for at in range(60, 100) if at != 85]
    assert found.stale == list(range(60, 80))


def test_what_a_restored_store_has_lost_is_missing() -> None:
    found = compare(log(100, 0), 0, 100, kept(range(30), 0, 30, OffsetMap(100)))
    assert (found.same_below, found.missing) == (None, list(range(30, 100)))


def test_what_a_restored_store_has_lost_is_missing_of_a_log_that_is_another_one_too() -> None:
    """Beside it, a record was processed that proves the log, and not that the store has all before it."""
    found = compare(log(60, 40), 0, 100, kept([*range(30), 50, 99], 0, 30, OffsetMap(60)))
    assert (found.same_below, found.missing, found.stale) == (51, [*range(30, 50), *range(51, 100)], [99])


def test_what_an_emptied_store_has_lost_is_missing_as_far_as_the_log_has_it() -> None:
    found = compare([], 40, 100, kept([], committed=OffsetMap(60, [70], 80)))
    assert found.missing == [*range(40, 70), *range(71, 81)]


def test_of_a_group_that_has_read_what_retention_took_an_emptied_store_lacks_that_too() -> None:
    one = kept([], committed=OffsetMap(60))
    assert compare([], 60, 60, one).gone == 0, "somebody may have set it there"
    one.leader_epoch = 3
    assert compare([], 60, 60, one).gone == 60


def test_what_neither_a_restored_store_nor_the_log_has_is_gone() -> None:
    found = compare([], 40, 100, kept([*range(30), 35], 0, 30, OffsetMap(60)))
    assert (found.missing, found.gone) == ([*range(40, 60)], 9)
    found = compare([], 60, 100, kept(range(30), 0, 30, OffsetMap(60)))
    assert (found.same_below, found.missing, found.gone) == (None, [], 30)


def test_places_of_before_there_were_checksums_say_nothing() -> None:
    places: dict[int, int | None] = dict.fromkeys(range(100))
    assert compare(log(0, 100), 0, 100, Kept(places, 0, None, OffsetMap(100))).same_below is None


@pytest.mark.parametrize(
    "other", [(b"k", b"w", 1), (b"j", b"v", 1), (b"k", b"v", 2), (None, b"v", 1), (b"k", None, 1), (b"kv", b"", 1)]
)
def test_each_field_counts(other: tuple[bytes | None, bytes | None, int]) -> None:
    assert checksum(b"k", b"v", 1) != checksum(*other)
    assert checksum(None, None, 1) != checksum(b"", b"", 1) != checksum(None, b"", 1) != checksum(b"", None, 1)
    assert 0 <= checksum(b"k", b"v", -1) < 2**63
