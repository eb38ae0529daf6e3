"""Carry-over lists: written once, read back, and told apart."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from keylane.errors import PeerError, UsageError
from keylane.spark.structured.acknowledged import list_of, made_of
from keylane.spark.structured.carry_lists import KEPT, CarryList, Lists, absolute
from keylane.spark.structured.carry_over import TaskReport
from keylane.spark.structured.plans import Plan

if TYPE_CHECKING:
    from pathlib import Path

T0 = ("t", 0)
LIST = CarryList(7, "q", 5, {T0: {105: (2, 1_000), 133: (0, 0)}, ("u", 3): {1: (1, 5)}}, frozenset({("t", 0, 9)}))


def test_a_list_comes_back_as_it_was(tmp_path: Path) -> None:
    for folder in (str(tmp_path / "a"), (tmp_path / "b").as_uri()):
        lists = Lists(folder)
        assert lists.newest() is None
        assert lists.write_once(LIST) == LIST
        assert Lists(folder).read(7) == LIST


def test_the_first_write_wins(tmp_path: Path) -> None:
    """Of many at once, too: all are told the one that counts."""
    found: list[CarryList] = []

    def write(number: int) -> None:
        made = CarryList(3, "q", 2, {T0: {number: (1, 0)}})
        found.append(Lists(str(tmp_path)).write_once(made))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write(8)  # and of one that comes later
    assert len(found) == 9
    assert {one.to_json() for one in found} == {Lists(str(tmp_path)).read(3).to_json()}  # type: ignore[union-attr]
    assert [one.name for one in tmp_path.iterdir()] == ["3.json"]


def test_what_a_list_says() -> None:
    assert LIST.records() == [("t", 0, 105), ("t", 0, 133), ("u", 3, 1)]
    assert LIST.counts() == {T0: 2, ("u", 3): 1}
    assert (LIST.next_due_ms(), CarryList(1, "q", 1).next_due_ms()) == (0, None)
    assert LIST.has("t", 0, 105)
    assert LIST.has("t", 0, 9)
    assert not LIST.has("t", 1, 105)


def test_old_lists_are_deleted(tmp_path: Path) -> None:
    lists = Lists(str(tmp_path))
    for batch in (0, 1, KEPT + 1):
        lists.write_once(CarryList(batch, "q", batch))
    lists.prune(KEPT + 1)
    assert lists.read(0) is None
    assert [lists.newest(before=KEPT), lists.newest()] == [lists.read(1), lists.read(KEPT + 1)]


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "4.json").write_text('{"batch": 4')
    with pytest.raises(PeerError, match=r"4\.json is no carry-over list"):
        Lists(str(tmp_path)).read(4)


def test_a_batch_finds_its_own_list_or_that_of_its_plan(tmp_path: Path) -> None:
    lists = Lists(str(tmp_path))
    plan = Plan("q", 5, {T0: 0}, {T0: 9})
    assert list_of(lists, plan, 7) is None
    lists.write_once(LIST)
    assert list_of(lists, plan, 7) == LIST
    assert list_of(lists, plan, 8) == LIST  # a batch without new records has the plan of the one before
    assert list_of(lists, Plan("q", 6, {T0: 9}, {T0: 10}), 8) is None


@pytest.mark.parametrize(("id_", "seq", "batch"), [("other", 5, 7), ("q", 4, 7), ("other", 6, 8)])
def test_a_list_of_another_query_is_refused(tmp_path: Path, id_: str, seq: int, batch: int) -> None:
    lists = Lists(str(tmp_path))
    lists.write_once(LIST)
    with pytest.raises(PeerError, match="of another query or checkpoint"):
        list_of(lists, Plan(id_, seq, {T0: 0}, {T0: 9}), batch)


def test_a_list_is_made_of_what_tasks_reported() -> None:
    reports = [
        TaskReport(7, 0, {("t", 0, 5): (1, 10)}, frozenset({("t", 0, 6)})),
        TaskReport(7, 1, {("t", 0, 8): (0, 0), ("t", 1, 5): (2, 20)}, frozenset()),
    ]
    made = made_of(Plan("q", 5, {}, {}), 7, reports)
    expected = {T0: {5: (1, 10), 8: (0, 0)}, ("t", 1): {5: (2, 20)}}
    assert made == CarryList(7, "q", 5, expected, frozenset({("t", 0, 6)}))


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("/a/../b", "/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("dbfs:/Volumes/main/a", "/Volumes/main/a"),
    ],
)
def test_a_folder_is_named_as_a_checkpoint_is(given: str, means: str) -> None:
    assert absolute(given) == means
    assert absolute(means) == means


def test_a_relative_folder_is_below_where_the_driver_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("scoring/carried") == str(tmp_path / "scoring" / "carried")


@pytest.mark.parametrize("folder", ["wasbs://c@account/a", "dbfs:/a", "s3a:/a"])
def test_a_folder_that_nothing_here_opens_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match=f"the folder '{folder}'"):
        absolute(folder)


def test_a_folder_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written and read back here"):
        Lists.checked(str(tmp_path / "file"))
    Lists.checked(str(tmp_path / "new"))
    assert [*(tmp_path / "new").iterdir()] == []
