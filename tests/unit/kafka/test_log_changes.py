"""From where on a log has other records than somebody has read, by what its leader says of the epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.kafka import log_changes
from keylane.kafka.log_changes import Reached, changes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "h:1"}


def changed(monkeypatch: pytest.MonkeyPatch, reached: Reached, *ends: int, records: tuple[int, ...] = ()) -> int | None:
    """What is found; `ends` are the leader's answers, one after the other, and `records` what can be read."""
    answers = list(ends)

    def epoch_ends(
        _: object, epochs: Mapping[tuple[str, int], int], __: Callable[[], bool]
    ) -> tuple[dict[tuple[str, int], int], str]:
        return {name: answers.pop(0) for name in epochs}, ""

    def has_record(_: object, __: object, start: int, stop: int) -> bool:
        return any(start <= one < stop for one in records)

    monkeypatch.setattr(log_changes, "epoch_ends", epoch_ends)
    monkeypatch.setattr(log_changes, "_has_record", has_record)
    found = changes_of(KAFKA, {T0: reached}, lambda: False)
    assert not answers, "all were asked for"
    return found[T0]


def test_nothing_has_changed_up_to_the_end_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, Reached(10, 3, 0, 20), 20) == 20
    assert changed(monkeypatch, Reached(20, 3, 0, 20), 20) is None
    assert changed(monkeypatch, Reached(20, 3, 0, 25, has_map=True), 20) == 20, "the map speaks of what is behind it"


def test_a_record_between_the_end_of_the_epoch_and_what_was_read_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert changed(monkeypatch, Reached(10, 3, 0, 20), 6, 6, records=(8,)) == 6
    assert changed(monkeypatch, Reached(10, 3, 0, 20), 6, 6, records=(11,)) == 10, "ends of transactions are none"
    assert changed(monkeypatch, Reached(30, 3, 0, 20), 6, 6) == 6, "what was read is no more"


def test_a_log_that_never_had_the_epoch_has_other_records_from_its_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, Reached(10, 3, 4, 20), -1, -1, records=(4, 5)) == 4


def test_a_leader_that_is_new_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, Reached(10, 3, 0, 10), 6, 10, records=(8,)) is None
