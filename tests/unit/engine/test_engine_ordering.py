"""Shards: what may run, and what comes out when something completes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keylane.engine.ordering import ByKey, ByPartition, Shards, Unordered, shards_for
from keylane.engine.work import Work, works_of
from keylane.errors import InternalError
from keylane.records import PlainMessage


class Owner:
    topic, partition = "t", 0


def works(*keys: bytes | None, first: int = 0) -> list[Work]:
    owner = cast("Any", Owner())
    messages = [PlainMessage("t", 0, first + i, key) for i, key in enumerate(keys)]
    return works_of(owner, range(first, first + len(keys)), messages, with_keys=True)


def offsets(some: Any) -> list[int]:
    return [work.offset for work in some]


def drain(shards: Shards, ready: Any) -> list[int]:
    """Complete what is ready, first come first served, until nothing comes out; the order of completion."""
    done, queue = [], list(ready)
    while queue:
        work = queue.pop(0)
        done.append(work.offset)
        queue += shards.release([work])
    return done


def test_key_lets_one_record_of_a_key_out_and_the_next_after_it() -> None:
    shards = ByKey()
    a0, b1, a2, a3 = works(b"a", b"b", b"a", b"a")
    assert offsets(shards.admit([a0, b1, a2])) == [0, 1]
    assert shards.admit([a3]) == []
    assert shards.release([b1]) == []
    assert shards.release([a0]) == [a2]
    assert shards.release([a2]) == [a3]
    assert shards.release([a3]) == []
    assert shards.count == 0


def test_a_key_that_is_through_starts_afresh() -> None:
    shards = ByKey()
    first, second = works(b"a", b"a")
    assert shards.admit([first]) == [first]
    assert shards.release([first]) == []
    assert shards.admit([second]) == [second]


def test_records_without_a_key_run_freely_under_key() -> None:
    shards = ByKey()
    some = works(None, None, b"", b"", None)
    assert offsets(shards.admit(some)) == [0, 1, 2, 4]  # an empty key is a key
    assert shards.release([some[0]]) == []
    assert shards.release([some[2]]) == [some[3]]


def test_partition_lets_one_record_out() -> None:
    shards = ByPartition()
    assert offsets(shards.admit(works(b"a", b"b", None))) == [0]
    assert shards.admit(works(b"c", first=3)) == ()
    assert shards.count == 1


@pytest.mark.parametrize(
    ("ordering", "ready", "done"),
    [("key", [0, 1], [0, 1, 2, 3]), ("partition", [0], [0, 1, 2, 3]), ("unordered", [0, 1, 2, 3], [0, 1, 2, 3])],
)
def test_each_ordering_in_a_whole(ordering: Any, ready: list[int], done: list[int]) -> None:
    shards = shards_for(ordering)
    out = shards.admit(works(b"a", b"b", b"a", b"b"))
    assert offsets(out) == ready
    assert drain(shards, out) == done


def test_unordered_has_no_shards() -> None:
    assert isinstance(shards_for("unordered"), Unordered)
    assert shards_for("unordered").count == 0


@pytest.mark.parametrize("shards", [ByKey(), ByPartition()])
def test_releasing_what_is_not_out_is_a_defect(shards: Shards) -> None:
    with pytest.raises(InternalError, match="t-0@0 was released"):
        shards.release(works(b"a"))
