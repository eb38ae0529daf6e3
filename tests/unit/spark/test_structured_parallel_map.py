"""A task of `parallel_map` without Spark: its order, its failures, and what a batch's deadline does."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from keylane.errors import Fatal, HandlerError
from keylane.flow.failures import Failures
from keylane.options import Batch, DeadLetter, Processes, Retries
from keylane.spark.structured import row_engine, row_task
from keylane.spark.structured.carry_over import CarryOver, TaskCarry, TaskReport
from keylane.spark.structured.dead_letters import DeadLetters
from keylane.spark.structured.parallel_map import RowMap
from keylane.spark.structured.row_task import BATCH_ROWS, MapTask, RowRun
from kit.row_bench import with_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.records import FailedAttempt

ROW = StructType(
    [StructField("topic", StringType()), StructField("partition", LongType()), StructField("offset", LongType())]
)
HANG_S = 120.0
RETURNS = StructType([StructField("answer", LongType())])


class Carry(CarryOver):
    """As in batch 7 of a query; what its one task reports is kept here."""

    def __init__(self, deadline_ms: int = 3_000) -> None:
        super().__init__("/lists", deadline_ms=deadline_ms)
        self.reported: list[TaskReport] = []
        reports: Any = SimpleNamespace(add=self.reported.extend)
        self._reports = reports

    def task(self, retries: Retries) -> TaskCarry:
        return TaskCarry(self, retries, 7, 4, None, None)


class Timer:
    """Instead of `threading.Timer`: the test says when its time has come."""

    made: Timer
    ident = None

    def __init__(self, seconds: float, come: Callable[[], None]) -> None:
        Timer.made, self.seconds, self.come, self.starts = self, seconds, come, 0

    def start(self) -> None:
        self.starts += 1

    def cancel(self) -> None:
        """Its time never comes by itself."""


def task(
    function: Callable[..., Any], **options: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    step = RowMap(function, RETURNS, **options)
    made = MapTask(step, ROW, RETURNS, is_of_stream=True)
    return lambda batches: made(with_keys(step, batch, ROW) for batch in batches)


def test_the_deadline_begins_with_the_first_call_and_carries_what_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("threading.Timer", Timer)
    others = asyncio.Semaphore(0)

    async def function(row: Any) -> Any:
        assert Timer.made.starts == 1
        if row.offset == 2:
            for _ in range(4):
                await others.acquire()
            Timer.made.come()
            await asyncio.Event().wait()
        others.release()
        return (row.offset,)

    def batches() -> Iterator[pa.RecordBatch]:
        assert (Timer.made.seconds, Timer.made.starts) == (3, 0), "reading does not count"
        yield pa.RecordBatch.from_pydict({"topic": ["t"] * 5, "partition": [0] * 5, "offset": list(range(5))})

    carry = Carry()
    emitted = [
        row["answer"]
        for batch in task(function, max_concurrency=8, carry_over=carry)(batches())
        for row in batch.to_pylist()
    ]
    assert sorted(emitted) == [0, 1, 3, 4]
    (report,) = carry.reported
    assert {name: attempts for name, (attempts, _) in report.carried.items()} == {("t", 0, 2): 1}


@pytest.mark.parametrize("options", [{}, {"workers": Processes(1)}, {"batch": Batch(4)}])
def test_what_is_not_due_leaves_the_batch_with_what_follows_of_its_key(options: dict[str, Any]) -> None:
    """And nothing of the key is due before it."""
    soon_ms = int(time.time() * 1000) + 3_600_000
    due_ms = {2: soon_ms, 4: soon_ms + 1_000, 5: soon_ms + 2_000, 7: soon_ms}

    def function(row: Any) -> Any:
        return [(one.offset,) for one in row] if isinstance(row, list) else (row.offset,)

    offsets = list(range(10))
    of_batch = {"topic": ["t"] * 10, "partition": [one % 2 for one in offsets], "offset": offsets}
    carry = Carry()
    run = task(
        function, ordering="partition", not_before=lambda row: due_ms.get(row.offset), carry_over=carry, **options
    )
    emitted = [row["answer"] for made in run(iter([pa.RecordBatch.from_pydict(of_batch)])) for row in made.to_pylist()]
    assert sorted(emitted) == [0, 1, 3]
    (report,) = carry.reported
    later_s = {name[2]: round((due - soon_ms) / 1000) for name, (_, due) in report.carried.items()}
    assert later_s == {2: 0, 4: 1, 6: 1, 8: 1, 5: 2, 7: 2, 9: 2}
    assert {attempts for attempts, _ in report.carried.values()} == {0}


@pytest.mark.parametrize("workers", [None, Processes(1)])
def test_the_row_that_fails_a_call_for_many_is_carried_and_the_others_are_not(workers: Any) -> None:
    """Else they would meet it in the next batch again, and be given up with it."""

    def function(rows: list[Any]) -> list[Any]:
        if any(row.offset == 3 for row in rows):
            raise ValueError("one of them")
        return [(row.offset,) for row in rows]

    carry = Carry()
    of_batch = {"topic": ["t"] * 6, "partition": [0, 1] * 3, "offset": list(range(6))}
    later = Retries(max_attempts=5, delay_ms=3_600_000, max_delay_ms=3_600_000)
    run = task(function, ordering="partition", batch=Batch(6), carry_over=carry, retries=later, workers=workers)
    emitted = [row["answer"] for made in run(iter([pa.RecordBatch.from_pydict(of_batch)])) for row in made.to_pylist()]
    assert sorted(emitted) == [0, 1, 2, 4]
    (report,) = carry.reported
    assert {name[2]: attempts for name, (attempts, _) in report.carried.items()} == {3: 1, 5: 0}


def test_on_failure_hears_of_rows_that_are_carried_and_of_dead_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, str]] = []

    def function(row: Any) -> Any:
        raise Fatal("never") if row.offset == 1 else ValueError("not yet")

    def note(failed: FailedAttempt) -> None:
        told.append((failed.record.offset, failed.attempt, failed.outcome))

    batch = pa.RecordBatch.from_pydict({"topic": ["t"] * 2, "partition": [0] * 2, "offset": [0, 1]})
    carry = Carry()
    with pytest.raises(HandlerError):
        list(task(function, carry_over=carry, on_failure=note)(iter([batch])))
    assert sorted(told) == [(0, 1, "carried_over"), (1, 1, "halted")]
    told.clear()
    monkeypatch.setattr(DeadLetters, "bury", lambda *_: None)
    carry.dead_letter, carry.kafka = DeadLetter("dead"), {"bootstrap.servers": "nowhere:1"}
    assert list(task(function, carry_over=carry, on_failure=note)(iter([batch]))) == []
    assert sorted(told) == [(0, 1, "carried_over"), (1, 1, "dead_lettered")]


def test_on_failure_hears_of_a_row_with_a_value_that_is_not_of_its_column() -> None:
    told: list[FailedAttempt] = []
    batch = pa.RecordBatch.from_pydict({"topic": ["t"], "partition": [0], "offset": [0]})
    run = task(lambda _: ("no number",), on_failure=told.append, outcome=True)
    assert [row["answer"] for made in run(iter([batch])) for row in made.to_pylist()] == [None]
    assert [(type(one.error), one.outcome) for one in told] == [(Fatal, "returned")]


def test_a_process_that_computes_at_the_deadline_is_killed_and_its_row_is_carried(tmp_path: Path) -> None:
    place, began = str(tmp_path / "pid"), time.monotonic()

    def function(row: Any) -> Any:
        if row.offset == 1:
            Path(place).write_text(str(os.getpid()))
            while time.monotonic() < began + HANG_S:
                pass
        return (row.offset,)

    carry = Carry(deadline_ms=1_000)
    run = task(function, ordering="partition", workers=Processes(1), carry_over=carry)
    batch = pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "partition": [0] * 3, "offset": [0, 1, 2]})
    emitted = [row["answer"] for made in run(iter([batch])) for row in made.to_pylist()]
    assert time.monotonic() - began < HANG_S / 2
    assert emitted == [0]
    (report,) = carry.reported
    assert {name[2]: attempts for name, (attempts, _) in report.carried.items()} == {1: 1, 2: 0}
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(place).read_text()), 0)


def test_dead_letters_are_acknowledged_before_what_follows_them_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Any] = []
    letters: Any = SimpleNamespace(bury=waiting.append, acknowledged=waiting.clear, delivered=1)
    monkeypatch.setattr(RowRun, "dead_letters", nullcontext(letters))

    def function(row: Any) -> Any:
        if row.offset == 0:
            raise Fatal("never")
        return (row.offset,)

    offsets = list(range(3 * BATCH_ROWS))
    of_batch = {"topic": ["t"] * len(offsets), "partition": [0] * len(offsets), "offset": offsets}
    given = 0
    for made in task(function, ordering="partition")(iter([pa.RecordBatch.from_pydict(of_batch)])):
        assert waiting == []
        given += made.num_rows
    assert given == len(offsets) - 1


def test_an_attempt_that_took_too_long_is_an_outcome_that_says_so() -> None:
    async def function(row: Any, context: Any) -> Any:
        assert context.deadline is not None
        await asyncio.Event().wait()

    run = task(
        function, max_concurrency=8, retries=Retries(max_attempts=2, delay_ms=0), handler_timeout_ms=10, outcome=True
    )
    batch = pa.RecordBatch.from_pydict({"topic": ["t"], "partition": [0], "offset": [0]})
    (found,) = [row for made in run(iter([batch])) for row in made.to_pylist()]
    assert (found["answer"], found["attempts"]) == (None, 2)
    assert found["error"] == "HandlerTimeoutError: the handler took longer than 10 ms"


def test_what_is_fatal_is_not_tried_again() -> None:
    def function(row: Any) -> Any:
        raise Fatal("never")

    run = task(function, max_concurrency=1, retries=Retries(max_attempts=3, delay_ms=0), outcome=True)
    batch = pa.RecordBatch.from_pydict({"topic": ["t"], "partition": [0], "offset": [0]})
    (found,) = [row for made in run(iter([batch])) for row in made.to_pylist()]
    assert (found["attempts"], found["error"]) == (1, "Fatal: never")


def test_rows_run_in_the_order_that_is_asked_for() -> None:
    ran: list[tuple[int, int]] = []

    def function(row: Any) -> Any:
        ran.append((row.partition, row.offset))
        return (row.offset,)

    run = task(function, max_concurrency=1, ordering="partition", order_by=("partition", "offset"))
    batches = [
        pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "partition": [1, 0, 1], "offset": [3, 9, 2]}),
        pa.RecordBatch.from_pydict({"topic": ["t"], "partition": [0], "offset": [1]}),
    ]
    assert sum(made.num_rows for made in run(iter(batches))) == 4
    assert sorted(ran, key=lambda one: one[0]) == [(0, 1), (0, 9), (1, 2), (1, 3)]


@pytest.mark.parametrize("outcome", [True, False])
def test_tasks_tell_of_the_first_failure_of_a_kind_once_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outcome: bool
) -> None:
    failures = Failures(outlives=True)
    for module in (row_task, row_engine):
        monkeypatch.setattr(module, "FAILURES", failures)

    def function(row: Any) -> Any:
        raise ValueError(row.topic * 2)

    for _ in range(2):
        run = task(function, max_concurrency=2, retries=Retries(max_attempts=2, delay_ms=0), outcome=outcome)
        batch = pa.RecordBatch.from_pydict({"topic": ["word"], "partition": [0], "offset": [0]})
        with suppress(HandlerError):
            list(run(iter([batch])))
    (text,) = [one.getMessage() for one in caplog.records if one.name == "keylane.failures"]
    assert text.startswith("ValueError in function (test_structured_parallel_map.py:")
    assert "the first one, at word-0@0, attempt 1" in text
    assert "wordword" not in text
    (kind,) = failures.kinds
    assert kind.count == 4, "each attempt of each task"
