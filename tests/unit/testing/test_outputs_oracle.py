"""The oracle itself: it must find what is wrong, and accept what at-least-once delivery allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.offsets import OffsetMap
from kit import kills
from kit.outputs import Covered, Outputs, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.kafka.admin import Admin
    from keylane.options import Ordering


def at(offset: int, partition: int = 0) -> Source:
    return ("t", partition, offset)


def outputs(*offsets: int) -> Outputs:
    """Records 0 to 5 of one partition, with keys a b a b a b, and these outputs."""
    return Outputs({at(n): b"ab"[n % 2 : n % 2 + 1] for n in range(6)}, [at(n) for n in offsets])


def test_lost_repeated_and_foreign() -> None:
    seen = outputs(0, 1, 1, 2, 4, 9)
    assert seen.lost == {at(3), at(5)}
    assert seen.repeated == {at(1)}
    assert seen.foreign == {at(9)}


@pytest.mark.parametrize(
    ("ordering", "offsets", "wrong"),
    [
        ("key", (0, 1, 2, 3, 4, 5), []),
        ("key", (1, 0, 3, 5, 2, 4), []),  # each key rises
        ("key", (0, 4, 2), [2]),
        ("key", (0, 2, 0, 2, 4), []),  # a run after a crash begins again
        ("key", (0, 4, 0, 2), [2]),  # it may not show that a record was passed over
        ("partition", (0, 1, 2, 3, 4, 5), []),
        ("partition", (1, 0, 2), [0]),
        ("partition", (0, 1, 2, 1, 2, 3), []),
        ("unordered", (5, 3, 1, 0, 2, 4), []),
    ],
)
def test_order(ordering: Ordering, offsets: tuple[int, ...], wrong: list[int]) -> None:
    assert outputs(*offsets).out_of_order(ordering) == [at(n) for n in wrong]


def test_null_keys_have_no_order() -> None:
    seen = Outputs({at(0): None, at(1): None}, [at(1), at(0)])
    assert seen.out_of_order("key") == []


def test_covered_is_what_offset_and_map_say() -> None:
    known = Covered({("t", 0): OffsetMap(10, [10, 12], 13)})
    assert [n for n in range(20) if at(n) in known] == [*range(10), 11, 13]
    assert at(0, partition=1) not in known


class Ends:
    """Of the output topic, when a kill is noted."""

    def log_ends(self, names: Iterable[tuple[str, int]], *, read_committed: bool) -> dict[tuple[str, int], int | None]:
        assert not read_committed
        return dict.fromkeys(names, 2)


def test_what_ran_after_a_kill_though_it_was_committed_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = [(0, 0, at(0)), (0, 1, at(1)), (0, 2, at(5)), (0, 3, at(1))]
    monkeypatch.setattr(kills, "covered", lambda *_: Covered({("t", 0): OffsetMap(2, [], 1)}))
    monkeypatch.setattr(kills, "outputs_of", lambda *_: iter(ran))
    admin: Admin = Ends()  # type: ignore[assignment]
    noted = kills.Kills(admin, "servers", "group", "out", 1)
    assert noted.ran_again() == []
    noted.note("executor")
    assert noted.ran_again() == [("executor", at(1))], "the last one: record 5 was open, the others ran before"
    assert len(noted) == 1
