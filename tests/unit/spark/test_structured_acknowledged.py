"""`acknowledged` without Spark: the order of its steps, and when it leaves the group."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import PeerError, UsageError
from keylane.options import DeadLetter
from keylane.spark.structured import acknowledged
from keylane.spark.structured.acknowledged import Acknowledged, _Closer, list_of
from keylane.spark.structured.carry_lists import CarryList, Lists
from keylane.spark.structured.carry_over import CarryOver, TaskReport
from keylane.spark.structured.plans import Plan

if TYPE_CHECKING:
    from pathlib import Path

T0 = ("t", 0)
PLAN = Plan("query", 1, {T0: 0}, {T0: 10})


class Query:
    """A query's batch 4, of which record 3 is carried; the steps of its driver are noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.lists = Lists(str(folder))
        self.sink_fails = False
        carry_over = CarryOver(str(folder))
        monkeypatch.setattr(carry_over, "collected", self._collected)
        self.told: list[str] = []
        context = SimpleNamespace(
            getLocalProperty=lambda _: "query", setLocalProperty=lambda _, text: self.told.append(text)
        )
        spark = SimpleNamespace(sparkContext=context)
        self.running = SimpleNamespace(session=spark, plan=PLAN)
        monkeypatch.setattr(acknowledged, "running_batch", lambda _: self.running)
        self.run = Acknowledged(self._write, carry_over)
        member: Any = SimpleNamespace(check=lambda: None, commit=self._commit)
        self.run._member = member
        self.frame: Any = SimpleNamespace(persist=lambda: self.frame, unpersist=lambda: None)
        monkeypatch.setattr(acknowledged, "fill", lambda _: self.steps.append("rows"))

    def _collected(self, batch: int) -> list[TaskReport]:
        return [TaskReport(batch, 1, 0, {(*T0, 3): (1, 5)}, frozenset())]

    def _write(self, frame: Any, batch: int) -> None:
        found = self.lists.read(batch)
        self.steps.append(("sink", found and found.records()))
        if self.sink_fails:
            raise OSError("no room")

    def _commit(self, offsets: Any) -> None:
        self.steps.append(("group", [(one.name, one.offset) for one in offsets]))


def test_rows_are_made_then_the_list_is_written_then_the_sink_and_then_the_group_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, monkeypatch)
    written = [("sink", [(*T0, 3)]), ("group", [(T0, 3)])]
    query.run(query.frame, 4)
    assert query.steps == ["rows", *written]
    query.steps.clear()
    query.run(query.frame, 4)
    assert query.steps == written, "a replay has its list already"


def test_what_the_sink_does_not_have_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path, monkeypatch)
    query.sink_fails = True
    with pytest.raises(OSError, match="no room"):
        query.run(query.frame, 4)
    assert query.steps == ["rows", ("sink", [(*T0, 3)])]


def test_tasks_are_told_what_no_restart_asks_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the sink: what is before the batch, but for what is carried into it."""
    query = Query(tmp_path, monkeypatch)
    query.run(query.frame, 4)
    query.running.plan = Plan("query", 2, {T0: 10, ("t", 1): 7}, {T0: 20, ("t", 1): 9}, redo=4)
    query.run(query.frame, 5)
    assert [json.loads(text) for text in query.told] == [
        {"query": "query", "below": {"t": {"0": 0}}},
        {"query": "query", "below": {"t": {"0": 3, "1": 7}}},
    ]
    query.running.plan = Plan("query", 3, {T0: 20}, {T0: 30}, redo=3)
    with pytest.raises(PeerError, match="the list of batch 3 is gone"):
        query.run(query.frame, 6)


def test_lists_of_another_query_are_refused(tmp_path: Path) -> None:
    lists = Lists(str(tmp_path))
    lists.write_once(CarryList(3, "another", 1))
    for batch in (3, 4):
        with pytest.raises(PeerError, match="the list of batch 3 is of another query or checkpoint"):
            list_of(lists, PLAN, batch)


def test_it_leaves_the_group_when_its_own_run_of_the_query_ends() -> None:
    """Spark may tell of a run's end when the next run, from the same checkpoint, has begun."""
    left: list[str] = []
    owner = Acknowledged(lambda _frame, _batch: None, None)
    member: Any = SimpleNamespace(close=lambda: left.append("left"))
    owner._member = member
    session = SimpleNamespace(streams=SimpleNamespace(removeListener=lambda _: left.append("unheard")))
    running: Any = SimpleNamespace(run_id="second", session=session)
    closer = _Closer(owner, running)
    closer.onQueryTerminated(SimpleNamespace(id="query", runId="first"))
    assert (left, owner._member) == ([], member)
    closer.onQueryTerminated(SimpleNamespace(id="query", runId="second"))
    assert (left, owner._member) == (["left", "unheard"], None)


def test_the_source_must_have_the_folder_of_the_carry_over_before_the_group_is_joined() -> None:
    asked: list[str] = []

    def options() -> dict[str, str]:
        asked.append("options")
        return {"carryOver": "/others", "kafka.group.id": "g"}

    owner = Acknowledged(lambda _frame, _batch: None, CarryOver("/lists"))
    running: Any = SimpleNamespace(options=options, plan=SimpleNamespace(next={}))
    with pytest.raises(UsageError, match="carryOver is '/others', and the CarryOver has '/lists'"):
        owner._join(running)
    assert (asked, owner._member) == (["options"], None)


@pytest.mark.parametrize(
    "subscription", [{"subscribe": "in,dead"}, {"subscribePattern": "in|de.d"}, {"assign": '{"dead":[0]}'}]
)
def test_a_dead_letter_topic_that_the_query_reads_is_refused_before_the_group_is_joined(
    subscription: dict[str, str],
) -> None:
    servers = {"kafka.bootstrap.servers": "b:1,a:1", "kafka.group.id": "g", "carryOver": "/lists"}
    running: Any = SimpleNamespace(options=lambda: servers | subscription, plan=SimpleNamespace(next={}))
    carry_over = CarryOver("/lists", dead_letter=DeadLetter("dead"), kafka={"bootstrap.servers": "a:1"})
    owner = Acknowledged(lambda _frame, _batch: None, carry_over)
    with pytest.raises(UsageError, match="the dead-letter topic 'dead' is one that the query reads itself"):
        owner._join(running)
    assert owner._member is None
