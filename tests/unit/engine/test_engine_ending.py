"""When a run that should read only so far has read so far."""

from __future__ import annotations

from keylane.consumer.ending import ASK_EVERY_S, SETTLE_S, Ending

T0 = ("t", 0)


def is_reached_by(ending: Ending, offset: int, now: float) -> bool:
    assert ending.ask({}, now) == [T0]
    ending.committed({T0: offset}, now)
    return ending.is_reached({})


def test_what_the_group_has_committed_ends_a_run_before_it_has_partitions() -> None:
    assert is_reached_by(Ending({T0: 5}), 5, 0.0)


def test_beside_a_store_it_does_once_an_assignment_has_passed() -> None:
    """Which may find that the store has not seen what the group has committed."""
    ending = Ending({T0: 5}, has_store=True)
    assert not is_reached_by(ending, 5, 0.0)
    ending.assigned()
    assert is_reached_by(ending, 5, ASK_EVERY_S)


def test_a_member_that_gets_none_believes_it_after_a_while() -> None:
    ending = Ending({T0: 5}, has_store=True)
    assert not is_reached_by(ending, 5, 0.0)
    assert is_reached_by(ending, 5, SETTLE_S)
