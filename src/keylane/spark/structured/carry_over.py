"""`CarryOver`: records that leave their batch and are planned into the next one (docs/adr/0040).

The idea: each task judges its own rows against what the last batch carried, and tells the driver what it could not
finish; the driver (`acknowledged`) makes one list of it before the sink commits. A task that is told the list of its
own batch leaves out exactly what is on it, and may carry nothing else.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from keylane.errors import HandlerError, InternalError, UsageError
from keylane.flow.outcomes import Later
from keylane.flow.retries import backoff_s, delay_s
from keylane.foreign_errors import is_final
from keylane.spark.structured.carry_lists import CarryList, Lists, absolute
from keylane.spark.structured.dead_letters import DeadLetters
from keylane.spark.structured.told_lists import TellsAtStart, heard
from keylane.telling import with_named_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Row, SparkSession

    from keylane.flow.outcomes import Outcome
    from keylane.options import DeadLetter, Retries
    from keylane.spark.structured.rows import TaskRow

BATCH_ID = "streaming.sql.batchId"
"""The local property under which Spark tells tasks the number of their batch."""

NEEDED = ("topic", "partition", "offset")
OF_DEAD_LETTERS = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}
"""The columns of a source that make the record as it was, with their types."""


@dataclass(frozen=True)
class TaskReport:
    """What one task could not finish."""

    batch: int
    partition: int
    """Spark's. Of its tasks the last one counts, in whichever stage it ran: Spark runs a task again, under another
    stage too, when its output was lost, and its rows are then the ones kept."""
    carried: Mapping[tuple[str, int, int], tuple[int, int]]
    dead: frozenset[tuple[str, int, int]]
    went_by: int | None = None
    """The batch of the list that says what is carried into this one."""


class _Reports(AccumulatorParam[list[TaskReport]]):
    def zero(self, value: list[TaskReport]) -> list[TaskReport]:  # noqa: ARG002 - Spark's
        return []

    def addInPlace(self, value1: list[TaskReport], value2: list[TaskReport]) -> list[TaskReport]:  # noqa: N802
        value1 += value2
        return value1


@with_named_options()
class CarryOver:
    """What `parallel_map` and `acknowledged` of one query share; the source's option carryOver has the same folder.

    - `folder`: where the lists are kept; of this query alone, beside its checkpoint. The driver alone uses it: a path
      on its machine, or s3a://, abfss://, gs://, hdfs://, dbfs:/, as Arrow opens it. The attribute has it absolute.
    - `deadline_ms`: how long each task of a batch calls the function before what is left is carried; from its first
      call, so that the start of a Python worker, the reading and the resource do not count.
    - `dead_letter`: where a record goes after its last attempt, with the client settings `kafka`. Without it, a record
      that failed for the last time fails the query.
    """

    def __init__(
        self,
        folder: str,
        *,
        deadline_ms: int = 60_000,
        dead_letter: DeadLetter | None = None,
        kafka: Mapping[str, str] | None = None,
    ) -> None:
        if not folder:
            raise UsageError("CarryOver(''): give a folder of this query's own")
        if not isinstance(deadline_ms, int) or deadline_ms < 1:
            raise UsageError(f"deadline_ms={deadline_ms!r}: give a whole number of at least 1")
        if dead_letter is not None and not (kafka or {}).get("bootstrap.servers"):
            raise UsageError("dead_letter needs kafka={'bootstrap.servers': …}: where its topic is")
        self.folder = absolute(folder)
        if not self.folder.startswith("/"):  # said here: Arrow may know the scheme, and not where it leads
            Lists.checked(self.folder)
        self.deadline_ms = deadline_ms
        self.dead_letter = dead_letter
        self.kafka = dict(kafka or {})
        self.id = uuid4().hex
        """Names it to tasks."""
        self._reports: Accumulator[list[TaskReport]] | None = None
        self._context: SparkContext | None = None

    # --- the driver's ---

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises `UsageError` when `parallel_map`'s frame (names and types) lacks what carried records are known by, or
        what dead letters are made of."""
        if missing := [name for name in NEEDED if name not in columns]:
            raise UsageError(
                f"carry_over: the frame has no column {', '.join(missing)}; keep the source's up to parallel_map"
            )
        if self.dead_letter is None:
            return
        if other := [f"{name} ({kind})" for name, kind in OF_DEAD_LETTERS.items() if columns.get(name) != kind]:
            raise UsageError(
                f"dead_letter: the frame has no column {', '.join(other)}, and a dead letter is the record as it was; "
                "give the source .option('includeHeaders', 'true') and keep its columns up to parallel_map"
            )

    def begin(self, spark: SparkSession) -> None:
        """Called when the step is applied: tasks of this driver report here, and are told what is carried.

        Raises `UsageError` when the folder keeps nothing, and through Spark Connect.
        """
        context = getattr(spark, "sparkContext", None)
        if context is None:
            raise UsageError("carry_over needs a Spark session in this process; it does not work through Spark Connect")
        Lists.checked(self.folder)
        if self._context is not context:
            self._reports, self._context = context.accumulator([], _Reports()), context
            spark.streams.addListener(TellsAtStart(context, self.folder, self.id))

    def collected(self, batch: int, went_by: int | None = None) -> list[TaskReport]:
        """What the tasks of a batch have reported, the last report of each partition; older batches are forgotten.

        Raises `UsageError` when parallel_map has not this CarryOver, and `InternalError` when a task went by another
        list than that of the batch `went_by`.
        """
        if self._reports is None:
            raise UsageError(
                f"carry_over of acknowledged ({self.folder!r}) is not parallel_map's: give both the same CarryOver"
            )
        reports = [one for one in self._reports.value if one.batch == batch]
        self._reports.value = []
        if other := [one.went_by for one in reports if one.went_by != went_by]:
            raise InternalError(f"batch {batch}: tasks went by the list of batch {other[0]}, and not of {went_by}")
        return list({one.partition: one for one in reports}.values())

    # --- a task's ---

    def task(self, retries: Retries) -> TaskCarry:
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if context is None or batch is None:
            raise UsageError("carry_over works in streaming queries: end the query in writeStream and acknowledged")
        frozen, last = heard(context, self.id, int(batch))
        return TaskCarry(self, retries, int(batch), context.partitionId(), frozen=frozen, last=last)

    def report(self, report: TaskReport) -> None:
        """What the driver has with `collected`, once the task is through."""
        assert self._reports is not None
        self._reports.add([report])

    def __getstate__(self) -> dict[str, Any]:
        """What travels with a task."""
        return self.__dict__ | {"_context": None}


@dataclass
class TaskCarry:
    """One task's judgement. Thread safety: `held` and `judged` are the workers', the rest the task's thread's."""

    carry_over: CarryOver
    retries: Retries
    batch: int
    partition: int
    """Spark's, of the task."""
    frozen: CarryList | None
    last: CarryList | None
    on_first_call: Callable[[], None] = lambda: None
    """Called once, by a worker: the time of the deadline begins."""
    _blocked: dict[bytes, int] = field(default_factory=dict)
    """Keys of which a record is carried, with the time when the last of them is due: those behind it are carried, too,
    and are not due before."""
    _started: set[tuple[str, int, int]] = field(default_factory=set)
    _throttled: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """When those are due that a service has throttled, in milliseconds since the epoch."""
    _carried: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    _dead: list[TaskRow] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_frozen(self) -> bool:
        """Whether the batch has its list already, so that nothing else may be carried."""
        return self.frozen is not None

    @property
    def buried(self) -> int:
        """Records that went to the dead-letter topic."""
        return len(self._dead)

    @property
    def deadline_s(self) -> float | None:
        """How long from the first call to the deadline; None when everything must be finished."""
        return None if self.is_frozen else self.carry_over.deadline_ms / 1000

    def wanted(self, rows: list[tuple[Row, bytes | None]]) -> list[tuple[Row, bytes | None]]:
        """Without what the batch's list leaves out."""
        if self.frozen is None:
            return rows
        return [(row, key) for row, key in rows if not self.frozen.has(*_name(row))]

    def held(self, fed: TaskRow, kept: Outcome = None) -> Outcome:
        """The row itself, if its record must not be tried now: it is not due, or waits for an earlier one of its key.
        `kept` is what `not_before` says of it, which holds else: a `Later`, a `Failure`, or None."""
        if self.is_frozen:
            return kept
        name, key = _name(fed.row), fed.key()
        attempts, due_ms = self._before(name)
        now_ms = time.time() * 1000
        if isinstance(kept, Later):
            due_ms = max(due_ms, int(now_ms + kept.delay_s * 1000))
        with self._lock:
            blocked = key is not None and key in self._blocked
            may_start = not blocked and due_ms <= now_ms
            is_first = may_start and not self._started
            if may_start:
                self._started.add(name)
            else:
                self._started.discard(name)  # one that was in a batch behind another one that failed
                if key is not None:
                    due_ms = self._blocked[key] = max(due_ms, self._blocked.get(key, 0))
                self._carried[name] = attempts, due_ms
        if is_first:
            self.on_first_call()
        if may_start:
            return kept
        fed.carried = True
        return fed

    def judge(self, row: TaskRow) -> None:
        """A failure leaves the batch, unless it was the last attempt."""
        if row.error is None or self.is_frozen:
            return
        attempts = row.attempts = self._before(_name(row.row))[0] + 1
        if not self.retries.allow(attempts) or self._is_last(row.error):
            return
        row.carried = True
        self._put_off(row, attempts)

    def _is_last(self, error: BaseException) -> bool:
        return is_final(error) or self.retries.forbid(error)

    def throttled(self, row: Row, delay_ms: int) -> None:
        """Its service asks for a slower pace, and it waits: it has not been tried, and is not due before that."""
        with self._lock:
            self._started.discard(_name(row))
            self._throttled[_name(row)] = int(time.time() * 1000) + delay_ms

    def takes(self, row: TaskRow) -> bool:
        """Whether the row leaves the batch: it is carried, or dead. Raises `HandlerError` when it may not."""
        name = _name(row.row)
        if row.carried:
            if self.is_frozen:
                raise InternalError(f"{name}: carried in a batch whose list is written")
            if name in self._carried or self._leaves(row, name):
                return True
        if row.error is None:
            return False
        if self.is_frozen:
            topic, partition, offset = name
            raise HandlerError(
                f"{topic}-{partition}@{offset} failed in a replay of batch {self.batch}, whose carry-over list is "
                f"written ({type(row.error).__name__}: {row.error}): start the query again"
            ) from row.error
        if self.carry_over.dead_letter is None:
            return False  # fails the batch
        self._dead.append(row)
        return True

    def report(self) -> None:
        """At the end of the task: dead letters are acknowledged, then the driver is told."""
        if self.is_frozen:
            return
        if self.carry_over.dead_letter is not None:
            with DeadLetters(self.carry_over.dead_letter.topic, self.carry_over.kafka) as letters:
                for row in self._dead:
                    letters.bury(row)
        dead = frozenset(_name(one.row) for one in self._dead)
        went_by = None if self.last is None else self.last.batch
        report = TaskReport(self.batch, self.partition, dict(self._carried), dead, went_by)
        self.carry_over.report(report)

    def _leaves(self, row: TaskRow, name: tuple[str, int, int]) -> bool:
        """Of a record that was not tried, or did not end in time: False when that was its last attempt."""
        attempts, due_ms = self._before(name)
        if name not in self._started:
            blocked_ms = 0 if (key := row.key()) is None else self._blocked.get(key, 0)
            self._carried[name] = (attempts, max(due_ms, blocked_ms, self._throttled.get(name, 0)))
            return True
        row.attempts = attempts + 1
        if self.retries.allow(row.attempts):
            self._put_off(row, row.attempts)
            return True
        row.error = TimeoutError(f"not ended within deadline_ms={self.carry_over.deadline_ms}")
        return False

    def _put_off(self, row: TaskRow, attempts: int) -> None:
        """A record that was tried: it, and what follows of its key, is due after the delay of the retries."""
        error = row.error
        if error is None:  # it had begun at the deadline
            wait_s = backoff_s(self.retries, attempts, random.random)
        else:
            wait_s = delay_s(self.retries, attempts, error, row.row, random.random)
        due_ms = int(1000 * (time.time() + wait_s))
        with self._lock:
            self._carried[_name(row.row)] = (attempts, due_ms)
            if (key := row.key()) is not None:
                self._blocked[key] = due_ms

    def _before(self, name: tuple[str, int, int]) -> tuple[int, int]:
        """Attempts so far, and when the record is due."""
        topic, partition, offset = name
        return (0, 0) if self.last is None else self.last.carried.get((topic, partition), {}).get(offset, (0, 0))


def _name(row: Any) -> tuple[str, int, int]:
    return (row["topic"], row["partition"], row["offset"])
