"""`acknowledged` without Spark: when it leaves the group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keylane.errors import UsageError
from keylane.options import DeadLetter
from keylane.spark.structured.acknowledged import Acknowledged, _Closer
from keylane.spark.structured.carry_over import CarryOver


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
