"""Shards: what may run, and what comes out when something completes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import InternalError
from keylane.flow.admission import RUN, ByKey, ByPartition, Ready, Shards, joined, shards_for
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.flow.admission import Payload


def records(*keys: bytes | None, first: int = 0) -> list[Payload]:
    return [PlainMessage("t", 0, first + i, key) for i, key in enumerate(keys)]


def offsets(some: Sequence[Payload]) -> list[int]:
    return [one.offset() for one in some]


def admit(shards: Shards, some: Sequence[Payload]) -> list[int]:
    numbers, ready = shards.admit(offsets(some), some)
    assert list(numbers) == offsets(ready)
    return offsets(ready)


def release(shards: Shards, *some: Payload) -> list[int]:
    return offsets(shards.release(offsets(some), some))


def drain(shards: Shards, ready: Sequence[Payload]) -> list[int]:
    """Complete what is ready, first come first served, until nothing comes out; the order of completion."""
    done, queue = [], list(ready)
    while queue:
        one = queue.pop(0)
        done.append(one.offset())
        queue += shards.release([one.offset()], [one])
    return done


def test_key_lets_one_record_of_a_key_out_and_the_next_after_it() -> None:
    shards = ByKey()
    a0, b1, a2, a3 = records(b"a", b"b", b"a", b"a")
    assert admit(shards, [a0, b1, a2]) == [0, 1]
    assert admit(shards, [a3]) == []
    assert release(shards, b1) == []
    assert release(shards, a0) == [2]
    assert release(shards, a2) == [3]
    assert release(shards, a3) == []
    assert shards.count == 0


def test_a_key_that_is_through_starts_afresh() -> None:
    shards = ByKey()
    first, second = records(b"a", b"a")
    assert admit(shards, [first]) == [0]
    assert release(shards, first) == []
    assert admit(shards, [second]) == [1]


def test_records_without_a_key_run_freely_under_key() -> None:
    shards = ByKey()
    some = records(None, None, b"", b"", None)
    assert admit(shards, some) == [0, 1, 2, 4]  # an empty key is a key
    assert release(shards, some[0]) == []
    assert release(shards, some[2]) == [3]


def test_partition_lets_one_record_out() -> None:
    shards = ByPartition()
    assert admit(shards, records(b"a", b"b", None)) == [0]
    assert admit(shards, records(b"c", first=3)) == []
    assert shards.count == 1


@pytest.mark.parametrize("shards", [ByKey(), ByPartition()])
def test_what_was_handed_over_together_leaves_together_or_stays_in_its_place(shards: Shards) -> None:
    some = records(*[b"a"] * 6)
    assert admit(shards, some) == [0]
    assert offsets(shards.behind(0, 3, 10)) == [1, 2, 3]
    assert offsets(shards.behind(0, 3, 2)) == [1, 2], "within the limit"
    shards.passed([0])
    assert offsets(shards.behind(1, 9, 10)) == [2, 3, 4, 5], "1 failed: the others wait for it again"
    shards.passed([1])
    assert release(shards, some[2]) == [3]
    assert drain(shards, some[3:4]) == [3, 4, 5]
    assert shards.count == 0


@pytest.mark.parametrize(
    ("ordering", "ready", "done"),
    [("key", [0, 1], [0, 1, 2, 3]), ("partition", [0], [0, 1, 2, 3]), ("unordered", [0, 1, 2, 3], [0, 1, 2, 3])],
)
def test_each_ordering_in_a_whole(ordering: Any, ready: list[int], done: list[int]) -> None:
    shards = shards_for(ordering)
    some = records(b"a", b"b", b"a", b"b")
    _, out = shards.admit(offsets(some), some)
    assert offsets(out) == ready
    assert drain(shards, out) == done


def test_unordered_lets_all_out_at_once() -> None:
    shards = shards_for("unordered")
    some = records(b"a", b"a", b"a", None)
    assert admit(shards, some) == [0, 1, 2, 3], "records of one key are out at once"
    assert admit(shards, records(b"a", first=4)) == [4], "while nothing of them is released"
    assert release(shards, some[2]) == []
    assert shards.count == 0


@pytest.mark.parametrize("shards", [ByKey(), ByPartition()])
def test_releasing_what_is_not_out_is_a_defect(shards: Shards) -> None:
    with pytest.raises(InternalError, match="number 0 was released"):
        release(shards, *records(b"a"))


def test_what_is_ready_comes_in_the_order_of_its_turn_a_run_at_a_time() -> None:
    ready = Ready()
    ready.put(range(10, 14), records(*[None] * 4, first=10))
    ready.put([3, 5], records(None, None, None, first=3)[::2])
    ready.put((1,), records(None, first=1), first=True)
    taken = []
    while ready.count:
        left = list(ready.numbers)
        numbers, some = ready.pop(3)
        assert list(numbers) == offsets(some) == left[: len(numbers)]
        taken.append(list(numbers))
    assert taken == [[1], [10, 11, 12], [13], [3, 5]]


def test_a_long_feed_is_many_runs_that_stay_in_order() -> None:
    ready = Ready()
    ready.put(range(3 * RUN + 1), records(*[None] * (3 * RUN + 1)))
    ready.put(range(-RUN - 1, 0), records(*[None] * (RUN + 1), first=-RUN - 1), first=True)
    taken: list[int] = []
    while ready.count:
        taken += ready.pop(1_000)[0]
    assert taken == list(range(-RUN - 1, 3 * RUN + 1))


def test_what_calls_had_is_the_ranges_that_it_makes_up() -> None:
    runs = [(run, list(run)) for run in (range(4, 6), range(8, 9), range(4), range(20, 22))]
    found = joined(runs)
    assert [numbers for numbers, _ in found] == [range(6), range(8, 9), range(20, 22)]
    assert all(list(numbers) == payloads for numbers, payloads in found)
    assert runs[2][1] == [0, 1, 2, 3], "the calls have theirs still"
