"""The lease: no handler starts once the coordinator was not heard of for two thirds of the session timeout."""

from __future__ import annotations

import asyncio
import logging
import threading
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import pytest

import keylane as kl
from keylane import Pipeline, RebalanceListener
from keylane.consumer.events import Lost
from keylane.consumer.intake import Intake, Lease
from keylane.consumer.returns import outcome_of, outcomes_of
from keylane.consumer.start import Start
from keylane.flow.items import Batch, Call, Item, Source
from keylane.flow.outcomes import NOT_RUN
from keylane.flow.workers.calls import Function
from keylane.flow.workers.made import make_workers
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage, Record
from kit.engines import SomeWorkers, make_core

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.start import TopicPartition

T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


def pipeline(handler: Callable[..., Any], **options: Any) -> Pipeline:
    return Pipeline(kafka=KAFKA, topics=["t"], handler=handler, **options)


def test_without_a_group_it_never_ends() -> None:
    lease = Lease()
    lease.renew(5.0)
    assert lease.until == inf


def test_it_lasts_two_thirds_of_the_session_from_the_first_answer_on_and_never_gets_shorter() -> None:
    lease = Lease(6.0)
    assert lease.holds(1e9), "before the first answer nothing is assigned"
    lease.renew(100.0)
    assert lease.until == pytest.approx(104.0)
    lease.renew(99.0)
    assert lease.until == pytest.approx(104.0), "an answer that was heard before another one"
    lease.renew(101.0)
    assert lease.holds(104.9)
    assert not lease.holds(105.1)


def test_its_end_and_its_renewal_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    lease = Lease(6.0)
    lease.renew(100.0)
    with caplog.at_level(logging.WARNING, "keylane"):
        for now in (101.0, 105.0, 106.0):
            lease.holds(now)
        lease.renew(106.0)
        lease.holds(107.0)
    assert [record.getMessage() for record in caplog.records] == [
        "no handler starts: the group's coordinator has not answered for 4.0 s",
        "handlers start again: the group's coordinator answers",
    ]


def test_the_core_dispatches_nothing_after_its_end_and_goes_on_when_it_is_renewed() -> None:
    lease = Lease(6.0)
    made = pipeline(print, ordering="unordered")
    core = make_core(made, SomeWorkers(10), lease=lease)
    lease.renew(100.0)
    core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 9)], 100.0)
    core.polled(("t", 0), 1, [PlainMessage("t", 0, offset) for offset in range(3)])
    assert not core.plan(104.5).dispatch
    lease.renew(104.5)
    assert len(core.plan(104.6).dispatch) == 3


@pytest.mark.parametrize("together", [None, kl.Batch(2)])
@pytest.mark.parametrize("is_async", [False, True])
def test_workers_give_back_what_would_start_after_its_end(together: kl.Batch | None, *, is_async: bool) -> None:
    ran: list[Any] = []

    async def in_task(what: Any) -> None:
        ran.append(what)
        await asyncio.sleep(0)

    made = pipeline(in_task if is_async else ran.append, batch=together)
    reports: list[Any] = []
    lease = Lease(1.0)
    lease.renew(monotonic() - 10.0)
    function = Function(made.handler, Record, outcome_of, outcomes_of)
    workers = make_workers(made, function, reports.append, "test", lease)
    source = Source(T0, cast("Any", None), "unordered", str)
    messages = [PlainMessage(*T0, offset) for offset in range(2)]
    calls = [Call(source, [one.offset_], [one], 0.0) for one in messages]
    batch = Batch([Item(source, one.offset_, one) for one in messages], 0.0)
    workers.start()
    workers.submit([batch] if together else calls)
    workers.close(10.0)
    assert not ran
    outcomes = [one.outcome for one in batch.items] if together else [one.outcomes.get(0) for one in calls]
    assert outcomes == [NOT_RUN, NOT_RUN]
    assert len(reports) == (1 if together else 2)


def test_whoever_is_told_of_a_loss_waits_until_nothing_of_it_starts() -> None:
    """The same thread hears the coordinator next, which would let handlers start."""
    told: list[list[TopicPartition]] = []

    class Listener(RebalanceListener):
        def on_lost(self, partitions: list[TopicPartition]) -> None:
            told.append(partitions)

    events: SimpleQueue[Any] = SimpleQueue()
    intake = Intake(cast("Any", None), events.put, revoke_timeout_s=10, name="test", listener=Listener())
    losing = threading.Thread(target=intake.on_lost, args=([("t", 0)],))
    losing.start()
    lost = events.get(timeout=10)
    assert isinstance(lost, Lost)
    losing.join(0.05)
    assert losing.is_alive()
    assert told == []
    lost.answer.put(None)
    losing.join(10)
    assert told == [[("t", 0)]]


def test_another_session_timeout_holds_from_the_next_answer_and_a_shorter_one_at_once() -> None:
    lease = Lease(45.0)
    lease.renew(100.0)
    lease.last(9.0)
    assert lease.until == pytest.approx(106.0), "two thirds of nine seconds since it was heard"
    lease.last(60.0)
    assert lease.until == pytest.approx(106.0)
    lease.renew(101.0)
    assert lease.until == pytest.approx(141.0)
    without_a_group = Lease()
    without_a_group.renew(1.0)
    assert without_a_group.holds(1e9)
