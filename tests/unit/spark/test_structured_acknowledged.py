"""`acknowledged` without Spark: the order of its steps, and when it leaves the group."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import PeerError, UsageError
from keylane.options import DeadLetter
from keylane.spark.structured import acknowledged
from keylane.spark.structured.acknowledged import Acknowledged, list_of
from keylane.spark.structured.carry_lists import CarryList, Lists
from keylane.spark.structured.carry_over import CarryOver, TaskReport
from keylane.spark.structured.plans import Plan

if TYPE_CHECKING:
    from pathlib import Path

T0 = ("t", 0)
PLAN = Plan("query", 1, {T0: 0}, {T0: 10})
SOURCE = {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "subscribe": "t"}


class Session:
    """Of the driver: what its tasks are told, and who listens to its queries."""

    def __init__(self) -> None:
        self.told: dict[str, list[str]] = {}
        self.listeners: list[Any] = []
        self.sparkContext = SimpleNamespace(getLocalProperty=lambda _: "query", setLocalProperty=self._tell)
        self.streams = SimpleNamespace(addListener=self.listeners.append, removeListener=self.listeners.remove)

    def _tell(self, name: str, text: str) -> None:
        self.told.setdefault(name, []).append(text)


class Query:
    """A query's batch 4, of which record 3 is carried; the steps of its driver are noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, run_id: str = "run") -> None:
        self.steps: list[Any] = []
        self.lists = Lists(str(folder))
        self.sink_fails = False
        carry_over = CarryOver(str(folder))
        monkeypatch.setattr(carry_over, "collected", self._collected)
        self.session = Session()
        options = SOURCE | {"carryOver": str(folder)}
        self.running = SimpleNamespace(
            session=self.session,
            plan=PLAN,
            run_id=run_id,
            options=lambda: options,
            steps_with_carry_over=lambda: 1,
        )
        monkeypatch.setattr(acknowledged, "running_batch", lambda _: self.running)
        self.run = Acknowledged(self._write, carry_over)
        member = SimpleNamespace(
            own=lambda _: None,
            check=lambda: None,
            commit=self._commit,
            close=lambda: self.steps.append("left"),
        )
        monkeypatch.setattr("keylane.kafka.sole_member.SoleMember", lambda *_: member)
        self.frame: Any = SimpleNamespace(persist=lambda: self.frame, unpersist=lambda: None)
        monkeypatch.setattr(acknowledged, "fill", lambda _: self.steps.append("rows"))

    def _collected(self, batch: int, went_by: int | None = None) -> list[TaskReport]:
        """Tasks of a batch that has its list report nothing."""
        return [] if self.lists.read(batch) else [TaskReport(batch, 0, {(*T0, 3): (1, 5)}, frozenset(), went_by)]

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
    assert [json.loads(text) for text in query.session.told["keylane.settled"]] == [
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


def test_it_leaves_the_group_when_its_own_run_of_the_query_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may tell of a run's end when the next run, from the same checkpoint, has begun."""
    query = Query(tmp_path, monkeypatch, "second")
    query.run(query.frame, 4)
    (listener,) = query.session.listeners
    query.steps.clear()
    listener.onQueryTerminated(SimpleNamespace(id="query", runId="first"))
    assert (query.steps, query.session.listeners) == ([], [listener])
    listener.onQueryTerminated(SimpleNamespace(id="query", runId="second"))
    assert (query.steps, query.session.listeners) == (["left"], [])


def refuse_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(*_: object) -> None:
        raise AssertionError("the group is joined")

    monkeypatch.setattr("keylane.kafka.sole_member.SoleMember", join)


def test_the_source_must_have_the_folder_of_the_carry_over_before_the_group_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, monkeypatch)
    query.running.options = lambda: SOURCE | {"carryOver": "/others"}
    refuse_to_join(monkeypatch)
    with pytest.raises(UsageError, match=f"carryOver is '/others', and the CarryOver has '{tmp_path}'"):
        query.run(query.frame, 4)


@pytest.mark.parametrize(
    "subscription", [{"subscribe": "in,dead"}, {"subscribePattern": "in|de.d"}, {"assign": '{"dead":[0]}'}]
)
def test_a_dead_letter_topic_that_the_query_reads_is_refused_before_the_group_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subscription: dict[str, str]
) -> None:
    query = Query(tmp_path, monkeypatch)
    servers = {"kafka.bootstrap.servers": "b:1,a:1", "kafka.group.id": "g", "carryOver": "/lists"}
    query.running.options = lambda: servers | subscription
    refuse_to_join(monkeypatch)
    carry_over = CarryOver("/lists", dead_letter=DeadLetter("dead"), kafka={"bootstrap.servers": "a:1"})
    run = Acknowledged(lambda _frame, _batch: None, carry_over)
    with pytest.raises(UsageError, match="the dead-letter topic 'dead' is one that the query reads itself"):
        run(query.frame, 4)
