"""The ledger's checks find what they are for, and count the overlaps of members that were given up apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from keylane.offsets import OffsetMap
from keylane.records import PlainMessage, Record
from kit.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [b"a", b"a", b"b"]
RECORDS = [(("t", 0, offset), key) for offset, key in enumerate(KEYS)]


def written(path: Path, story: str) -> Ledger:
    """A ledger of `story`: words like `A+0` (A began 0), `A-0` (was done with it), `A!` (was given up), `A?` (woke);
    `A+0'` is in another thread."""
    with ThreadPoolExecutor(1) as other:
        for word in story.split():
            ledger = Ledger(path / "ledger", word[0])
            if word[1] in "!?":
                (ledger.died if word[1] == "!" else ledger.woke)(word[0])
            else:
                offset = int(word[2])
                record = Record(PlainMessage("t", 0, offset, KEYS[offset]))
                note = ledger.began if word[1] == "+" else ledger.done
                other.submit(note, record).result() if word.endswith("'") else note(record)
            ledger.close()
    return Ledger(path / "ledger")


@pytest.mark.parametrize(
    ("story", "disorders", "fenced"),
    [
        ("A+0 A-0 A+1 B+2 A-1 B-2", 0, 0),
        ("A+0 B+1 A-0 B-1", 2, 0),  # overlap, and before its turn
        ("A+0 A! B+0 B-0 B+1 B-1", 0, 0),  # killed: it never ends
        ("A+0 A! B+0 A-0 B-0", 0, 1),  # frozen: it ends beside its successor
        ("A+0 A! A-0 B+0 B-0", 0, 0),  # it ends before
        ("A+0 A! B+2 A-0 B-2", 0, 0),  # another key
        ("A+0 A! B+0 C+0 A-0", 1, 1),  # a true overlap beside it
    ],
)
def test_what_the_checks_find(tmp_path: Path, story: str, disorders: int, fenced: int) -> None:
    ledger = written(tmp_path, story)
    assert len(ledger.disorders("key", RECORDS)) == disorders
    assert ledger.overlaps_of_fenced("key") == fenced
    ledger.close()


@pytest.mark.parametrize(
    ("story", "late", "disorders"),
    [
        ("A! B+0 A? A+0 A-0 B-0", {3}, 0),  # it was about to begin when it was frozen
        ("A+2 A! B+0 A? A+0' A-0' A-2 B-0", {4}, 0),  # in a thread that was idle then
        ("A+2 A! B+0 A? A-2 A+0 B-0 A-0", set(), 1),  # this thread looked at the clock again, after its handler
        ("A! B+0 A? A+0 A-0 A+0 A-0 B-0", {3}, 1),  # and this one after its first
        ("A! B+0 A? A+2 A-2 A+2 A+0' B-0 A-0", set(), 1),  # one of its threads has begun anew, so all looked
        ("A! A? A+0 A-0 B+0 B-0", set(), 0),  # nobody had begun meanwhile
        ("A! B+2 A? A+0 A-0 B-2", set(), 0),  # not with this key
        ("A! B+0 B-0 B+1 A+0 A-0 B-1", set(), 1),  # it was not frozen
    ],
)
def test_what_a_member_was_about_to_begin_is_counted_apart(
    tmp_path: Path, story: str, late: set[int], disorders: int
) -> None:
    ledger = written(tmp_path, story)
    assert ledger.late("key") == late
    assert len(ledger.disorders("key", RECORDS)) == disorders
    ledger.close()


def test_what_was_done_is_counted_on_from_the_last_look(tmp_path: Path) -> None:
    ledger = written(tmp_path, "A+0 A-0 A+1")
    assert ledger.done_times() == {("t", 0, 0): 1}
    written(tmp_path, "A-1 A! B+0 B-0").close()
    with ledger.path.open("a") as file:
        file.write("done B 1 t 0")  # a line that is being written
        file.flush()
        assert ledger.done_times() == {("t", 0, 0): 2, ("t", 0, 1): 1}
        file.write(" 2 -\n")
    assert ledger.done_times() == {("t", 0, 0): 2, ("t", 0, 1): 1, ("t", 0, 2): 1}
    ledger.close()


@pytest.mark.parametrize(
    ("story", "looked", "again"),
    [
        ("A+0 A-0 A! B+0", 3, ["B"]),
        ("A+0 A-0 A! B+0", 4, []),  # it had begun before the look
        ("A+0 A-0 A! B+1", 3, []),  # not covered
        ("A+2 A-2 A! B+2", 3, ["B"]),  # by the map
        ("A! B+0 A? A+0", 1, ["B"]),  # that A was about to begin is counted apart
    ],
)
def test_what_ran_again_though_it_was_acknowledged(tmp_path: Path, story: str, looked: int, again: list[str]) -> None:
    ledger = written(tmp_path, story)
    looks = [(looked, {("t", 0): OffsetMap(1, [1], 2)}), (looked, {("t", 0): OffsetMap(0)})]
    assert [entry.member for entry in ledger.run_again(looks, "key")] == again
    ledger.close()
