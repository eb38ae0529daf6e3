"""Rows through the engine, without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import Throttled
from keylane.flow import core
from keylane.flow.admission import HandOver
from keylane.flow.workers.threads import ThreadWorkers
from keylane.options import Flow, Retries, is_coroutine_function, takes_context
from keylane.spark.structured import row_engine
from keylane.spark.structured.row_engine import RowEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from keylane.spark.structured.rows import TaskRow

NO_WAIT = Retries(max_attempts=3, delay_ms=0, max_delay_ms=0)


def engine(handler: Callable[..., Any], ordering: Any = "unordered", held: Any = None, **more: Any) -> RowEngine:
    """An engine whose rows have what the handler returns."""
    takes = takes_context(handler)

    def call(row: TaskRow, context: Any) -> TaskRow:
        row.values = [handler(row.row, context) if takes else handler(row.row)]
        return row

    async def call_async(row: TaskRow, context: Any) -> TaskRow:
        row.values = [await (handler(row.row, context) if takes else handler(row.row))]
        return row

    flow = Flow(
        handler=call_async if is_coroutine_function(handler) else call,
        ordering=ordering,
        max_concurrency=8,
        retries=NO_WAIT,
        **more,
    )
    return RowEngine(flow, lambda *_: None, lambda _, number: f"row {number}", held)


def returned(rows: Iterable[list[TaskRow]]) -> list[Any]:
    """What the handler returned for each, as it came."""
    return [row.values[0] for some in rows for row in some if row.values]


def test_every_row_comes_back_from_threads_and_coroutines() -> None:
    async def doubled(value: Any) -> int:
        await asyncio.sleep(0)
        return int(value) * 2

    for handler in (lambda value: value * 2, doubled):
        with engine(handler) as running:
            feeds = ([(number, None) for number in range(start, start + 50)] for start in range(0, 5_000, 50))
            assert sorted(returned(running.run(feeds))) == [2 * number for number in range(5_000)]
            assert running.pending == {}


def test_rows_of_a_key_run_one_after_another_in_order() -> None:
    seen: dict[bytes, list[int]] = {}
    now: set[bytes] = set()

    async def handler(value: Any) -> None:
        key = b"%d" % (value % 3)
        assert key not in now
        now.add(key)
        await asyncio.sleep(0)
        now.discard(key)
        seen.setdefault(key, []).append(value)

    with engine(handler, "key") as running:
        list(running.run(iter([[(number, b"%d" % (number % 3)) for number in range(90)]])))
    assert seen == {b"%d" % key: list(range(key, 90, 3)) for key in range(3)}


def test_failed_attempts_are_repeated() -> None:
    def handler(value: Any, context: Any) -> int:
        if context.attempt < 3:
            raise ValueError("not yet")
        return int(context.attempt)

    with engine(handler) as running:
        assert returned(running.run(iter([[("a", None)]]))) == [3]


def test_throttled_rows_use_up_no_attempt() -> None:
    throttled: Counter[int] = Counter()

    def ask(row: int) -> int:
        throttled[row] += 1
        if throttled[row] <= 4:  # more often than there are attempts
            raise Throttled(1)
        return row

    with engine(ask) as running:
        assert sorted(returned(running.run(iter([[(number, None) for number in range(10)]])))) == list(range(10))
        assert (running.counters["throttled"], running.counters["failed"]) == (40, 0)


def test_no_more_rows_are_made_before_the_first_call() -> None:
    seen: list[str] = []

    def feeds() -> Iterator[list[tuple[int, None]]]:
        for start in (0, 50):
            seen.append("rows are made")
            yield [(number, None) for number in range(start, start + 50)]

    with engine(lambda _: seen.append("a call")) as running:
        assert len(returned(running.run(feeds()))) == 100
    assert seen[:2] == ["rows are made", "a call"]


def test_no_more_rows_are_made_before_as_many_calls_have_begun_as_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_engine, "FIRST_CALLS_S", 60.0)
    began: list[Any] = []
    rows_came = threading.Event()

    def feeds() -> Iterator[list[tuple[int, None]]]:
        yield [(number, None) for number in range(50)]
        assert len(began) == 8
        rows_came.set()
        yield [(50, None)]

    def handler(value: Any) -> Any:
        began.append(value)
        assert rows_came.wait(60)
        return value

    with engine(handler) as running:
        assert sorted(returned(running.run(feeds()))) == list(range(51))


def test_more_rows_are_made_when_few_keys_let_few_calls_begin() -> None:
    rows_came = threading.Event()

    def feeds() -> Iterator[list[tuple[int, bytes]]]:
        yield [(number, b"one key") for number in range(50)]
        rows_came.set()
        yield [(50, b"another")]

    def handler(value: Any) -> Any:
        assert rows_came.wait(60)
        return value

    with engine(handler, "key") as running:
        assert sorted(returned(running.run(feeds()))) == list(range(51))


def test_what_is_pending_when_it_is_stopped_is_named() -> None:
    began = threading.Event()

    async def handler(value: Any) -> Any:
        if value == "stuck":
            began.set()
            await asyncio.sleep(3600)
        return value

    with engine(handler) as running:
        running.feed([("quick", None), ("stuck", None)])
        assert began.wait(30)
        running.stop()
        taken: list[TaskRow] = []
        while (found := running.pop_results(wait=True)) is not None:
            taken += found
        assert returned([taken]) == ["quick"]
        assert [row.row for row in running.pending.values()] == ["stuck"]


def test_a_resource_is_made_once_and_left() -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def resource() -> Iterator[str]:
        events.append("made")
        yield "client"
        events.append("left")

    with engine(lambda value, context: (value, context.resource), resource=resource) as running:
        found = returned(running.run(iter([[(number, None) for number in range(20)]])))
    assert sorted(found) == [(number, "client") for number in range(20)]
    assert events == ["made", "left"]


def test_a_resource_that_cannot_be_made_fails() -> None:
    def resource() -> Any:
        raise OSError("no service")

    with (
        engine(lambda _: None, resource=resource) as running,
        pytest.raises(Exception, match="no service"),
    ):
        list(running.run(iter([[("a", None)]])))


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with engine(lambda value: value) as running:
        list(running.run(iter([[("a", None)]])))
    assert [one for one in set(threading.enumerate()) - before if one.is_alive()] == []


@pytest.mark.parametrize("not_before", [None, lambda _: None])
def test_quick_rows_of_which_some_are_held_go_to_a_worker_several_at_a_time(
    monkeypatch: pytest.MonkeyPatch, not_before: Any
) -> None:
    """Unless each has a time of its own. How quick the machine is now does not count here."""
    monkeypatch.setattr(HandOver, "_at_a_time", lambda *_: 10)
    monkeypatch.setattr(core, "RECALL_S", math.inf)
    sizes: list[int] = []
    submit = ThreadWorkers.submit

    def noted(self: ThreadWorkers, units: Any) -> None:
        sizes.extend(map(len, units))
        submit(self, units)

    def held(row: TaskRow, kept: Any) -> Any:
        row.carried = row.row % 10 == 0
        return row if row.carried else None

    monkeypatch.setattr(ThreadWorkers, "submit", noted)
    with engine(lambda number: number, held=held, not_before=not_before) as rows:
        found = [*rows.run([(number, None) for number in range(at, at + 100)] for at in range(0, 5_000, 100))]
    assert [row.carried for some in found for row in some].count(True) == 500
    assert sum(sizes) == 5_000
    assert (max(sizes) > 1) == (not_before is None)
