"""`KeptSteps`: a pipeline whose handler keeps results of calls by `context.step`, durably, before it goes on.

The idea: one thread drives the logs of all partitions (`keylane.delivery.steps`), each of which is opened by the first
step of its assignment: so handlers wait for it, and no poll does. Whoever loses a partition drops what is known of it,
since the next owner may have kept more. What a handler asks is `keylane.delivery.step_calls`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from keylane.delivery.checksums import checksum
from keylane.delivery.step_calls import with_steps
from keylane.delivery.steps.formats import OVERHEAD_BYTES, RecordIdentity
from keylane.delivery.steps.log import Lost, StepLog
from keylane.delivery.steps.table import StepTable
from keylane.errors import InternalError, PeerError, StepLostError
from keylane.foreign_errors import line_of
from keylane.pipeline import RebalanceListener
from keylane.telling import logger_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.consumer.start import Start, TopicPartition
    from keylane.coordinator.replicated.journal import PartitionLog
    from keylane.delivery.steps.formats import Step
    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

logger = logger_of("keylane.delivery")
T = TypeVar("T")

PIECE_BYTES = 500_000
"""Of an answer, in one batch."""
TRIM_EVERY_S = 5.0
CLOSE_S = 5.0
"""How long the end waits for what is being trimmed."""


class StepTopics(Protocol):
    """The topics in which steps are kept. Thread safety: any thread."""

    def prepare(self, topic: str, partition: int) -> None:
        """See that steps of this partition can be kept. Raises `UsageError` where they would be lost, and
        `PeerError`."""

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Of those that have one. Raises `PeerError`."""

    def max_batch_bytes(self, topic: str) -> int:
        """That go into one append for this topic, which is prepared."""

    def connect(self, name: TopicPartition, call: Callable[[Callable[[], None]], None]) -> PartitionLog:
        """The log of a partition; `call` runs its answers."""

    def begins(self, topics: Iterable[str]) -> Mapping[TopicPartition, int]:
        """Of partitions of these topics, which are prepared: below which offset its log has nothing of use, as far as
        it was marked. Raises `PeerError`."""

    def delete_below(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete what logs have below these offsets, or mark it as of no use. Raises `PeerError`."""


class KeptSteps:
    """The pipeline to run, and what has to be done beside it. Thread safety: `check` is the group's thread's."""

    def __init__(
        self,
        pipeline: Pipeline,
        topics: StepTopics,
        has_lease: Callable[[], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`has_lease`: whether the group was heard of lately, so that no other member has this one's partitions.
        `fail` ends the run; any thread may call it."""
        self._fail = fail
        self._answers = Answers()
        self.group = pipeline.group_id
        self._topics = topics
        self._has_lease = has_lease
        self._owner = f"{socket.gethostname()}/{os.getpid()}"
        self._assigned: dict[TopicPartition, PartitionSteps] = {}
        """Written by the group's thread, and at the end."""
        self._trimmed: dict[TopicPartition, int] = {}
        self._on_committed = pipeline.on_committed
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_closing = threading.Event()
        self._has_ended = threading.Event()
        """Whether nobody but who asks makes the calls any more, all of which are told that they are lost."""
        self._threads = [
            threading.Thread(target=self._serve, name="keylane-steps", daemon=True),
            threading.Thread(target=self._trim, name="keylane-steps-trim", daemon=True),
        ]
        self.pipeline = replace(
            pipeline,
            handler=with_steps(self, pipeline.handler),
            on_committed=self._committed,
            rebalance_listener=_Listener(self._give_up, pipeline.rebalance_listener),
        )
        for topic in pipeline.reads:
            if not topic.startswith("^"):
                topics.prepare(topic, 0)
        for thread in self._threads:
            thread.start()

    def check(self, starts: Sequence[Start]) -> Sequence[Start]:
        """Partitions were assigned, and nothing of them has begun. Raises `UsageError` and `PeerError`."""
        ids = self._topics.topic_ids({start.topic for start in starts})
        self._give_up((start.topic, start.partition) for start in starts)
        for start in starts:
            self._topics.prepare(start.topic, start.partition)
        begins = self._topics.begins({start.topic for start in starts})
        for start in starts:
            name = (start.topic, start.partition)
            self._assigned[name] = self._steps_at(start, ids.get(start.topic, ""), begins.get(name, 0))
        return starts

    def _steps_at(self, start: Start, topic_id: str, begin: int) -> PartitionSteps:
        name = (start.topic, start.partition)
        table = StepTable(topic_id, start.partition, start.offsets.is_complete)
        piece_bytes = min(PIECE_BYTES, self._topics.max_batch_bytes(start.topic) - OVERHEAD_BYTES)
        connect = partial(self._topics.connect, name, self._calls.put)
        log = StepLog(connect, table, self._owner, lambda: int(time.time() * 1000), piece_bytes, begin)
        return PartitionSteps(topic_id, log, self._put, self._answers)

    def close(self) -> None:
        """The run is over: nothing more is kept."""
        self._is_closing.set()
        self._give_up(list(self._assigned))
        self._calls.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _give_up(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            if (steps := self._assigned.pop(name, None)) is not None:
                self._put(steps.log.close)

    # --- what handlers ask ---

    def steps_of(self, record: Record) -> PartitionSteps | None:
        """Of the record's partition; None where it is not this member's any more."""
        return self._assigned.get((record.topic, record.partition))

    def may_call(self) -> bool:
        """Whether a call may begin without a look at the log."""
        return self._has_lease()

    # --- what is complete ---

    def _committed(self, record: Record) -> None:
        steps = self.steps_of(record)
        if steps is not None and steps.is_used:
            self._put(partial(steps.log.complete, [record.offset]))
        if self._on_committed is not None:
            self._on_committed(record)

    def _trim(self) -> None:
        while not self._is_closing.wait(TRIM_EVERY_S):
            offsets: Future[dict[TopicPartition, int]] = self._answers.begin()
            self._put(lambda offsets=offsets: self._answers.give(offsets, self._useless()))  # type: ignore[misc]
            try:
                self._topics.delete_below(offsets.result())
            except InternalError:  # which ends the run
                return
            except PeerError as error:
                logger.warning("steps of complete records are not deleted now: %s", error)

    def _useless(self) -> dict[TopicPartition, int]:
        """By partition, below which offset its log has nothing of use; those of which that has changed."""
        used = {name: steps for name, steps in self._assigned.copy().items() if steps.is_used}
        found = {name: offset for name, steps in used.items() if (offset := steps.log.trim()) > 0}
        changed = {name: offset for name, offset in found.items() if self._trimmed.get(name) != offset}
        self._trimmed |= changed
        return changed

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            self._make(call)
        self._has_ended.set()
        self._make_calls()

    def _make_calls(self) -> None:
        with suppress(Empty):
            while True:
                if (call := self._calls.get_nowait()) is not None:
                    self._make(call)

    def _make(self, call: Callable[[], None]) -> None:
        """What it raises ends the run: what a log says after that is anybody's guess, so nobody waits for it."""
        try:
            call()
        except Exception as error:
            failure = InternalError(f"steps of group {self.group!r} are not kept any more: {line_of(error)}")
            failure.__cause__ = error
            self._fail(failure)
            self._answers.end(failure)

    def _put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        if self._has_ended.is_set():
            self._make_calls()


class Answers:
    """Futures of all who wait for a log. Thread safety: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._failure: InternalError | None = None

    def begin(self) -> Future[Any]:
        """A future that nobody can cancel: what was asked is answered."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
            else:
                self._waiting.add(future)
        return future

    def give(self, future: Future[Any], value: Any) -> None:
        """A value, or an exception to raise; nothing to who was told of the end before."""
        with self._lock:
            if future not in self._waiting:
                return
            self._waiting.remove(future)
        if isinstance(value, StepLostError):
            future.set_exception(value)
        else:
            future.set_result(value)

    def end(self, failure: InternalError) -> None:
        """All who wait, and who ask from now on, are told this, which ends the run."""
        with self._lock:
            self._failure = failure
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            future.set_exception(failure)


class PartitionSteps:
    """A `StepPlace`: of one partition, in one assignment. Thread safety: any thread."""

    def __init__(
        self, topic_id: str, log: StepLog, put: Callable[[Callable[[], None]], None], answers: Answers
    ) -> None:
        """`put`: what is put there is called by the one thread that has the logs."""
        self._answers = answers
        self._topic_id = topic_id
        self.log = log
        self._put = put
        self.is_used = False
        self.running: dict[Step, asyncio.Task[Any]] = {}

    def identity_of(self, record: Record) -> RecordIdentity:
        proof = checksum(record.raw_key, record.raw_value, record.timestamp_ms)
        return RecordIdentity(self._topic_id, record.partition, record.offset, proof)

    def check(self, context: Context) -> None:
        """There is no transaction that a step would be late for."""

    def ask(self, step: Step) -> Future[bytes | None]:
        self.is_used = True
        return self._answered(step, self.log.open, lambda: self.log.answer(step))

    def keep(self, step: Step, answer: bytes) -> Future[bytes]:
        return self._answered(step, lambda told: self.log.keep(step, answer, told), lambda: answer)

    def forget(self, step: Step) -> Future[None]:
        return self._answered(step, lambda told: self.log.forget(step, told), _nothing)

    def confirm(self, step: Step) -> Future[None]:
        return self._answered(step, self.log.confirm, _nothing)

    def _answered(
        self, step: Step, ask: Callable[[Callable[[Lost | None], None]], None], answer: Callable[[], T]
    ) -> Future[T]:
        found: Future[T] = self._answers.begin()

        def told(lost: Lost | None) -> None:
            self._answers.give(found, answer() if lost is None else StepLostError(f"step {step.name!r}: {lost.reason}"))

        self._put(lambda: ask(told))
        return found


class _Listener(RebalanceListener):
    """Hears which partitions go, and passes all on to the user's."""

    def __init__(self, give_up: Callable[[Iterable[TopicPartition]], None], listener: RebalanceListener | None) -> None:
        self._give_up = give_up
        self._listener = listener or RebalanceListener()

    def on_metadata(self, partition: TopicPartition, offset: int, metadata: str) -> None:
        self._listener.on_metadata(partition, offset, metadata)

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._listener.on_assigned(partitions)

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._give_up(partitions)
        self._listener.on_revoked(partitions)

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self._give_up(partitions)
        self._listener.on_lost(partitions)


def _nothing() -> None:
    """What there is to say of what was done."""
