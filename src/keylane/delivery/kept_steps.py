"""`KeptSteps`: a pipeline whose handler keeps results of calls by `context.step`, durably, before it goes on.

The idea: the handler asks what is kept of a step, and calls its function only where nothing is. One thread drives the
logs of all partitions (`keylane.delivery.steps`), each of which is opened by the first step of its assignment: so
handlers wait for it, and no poll does. Whoever loses a partition drops what is known of it, since the next owner may
have kept more.

A coroutine's call is a task of its own: a handler that is over its time leaves it running, and the record's next
attempt waits for the same one.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
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
from keylane.delivery.steps.formats import MAX_TEXT_BYTES, OVERHEAD_BYTES, RecordIdentity, Step
from keylane.delivery.steps.log import Lost, StepLog
from keylane.delivery.steps.table import StepTable
from keylane.errors import InternalError, PeerError, StepLostError, UsageError
from keylane.foreign_errors import line_of
from keylane.options import is_coroutine_function
from keylane.pipeline import RebalanceListener
from keylane.telling import kind_of, logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.consumer.start import Start, TopicPartition
    from keylane.coordinator.replicated.journal import PartitionLog
    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

logger = logger_of("keylane.delivery")
T = TypeVar("T")

PIECE_BYTES = 500_000
"""Of an answer, in one batch."""
TRIM_EVERY_S = 5.0
CLOSE_S = 5.0
"""How long the end waits for what is being trimmed."""

_BYTES, _TEXT, _JSON = b"b", b"s", b"j"


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

    def delete_below(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete what logs have below these offsets. Raises `PeerError`."""


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
        self._group = pipeline.group_id
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
            handler=self._with_steps(pipeline.handler),
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
            name = (start.topic, start.partition)
            self._assigned[name] = self._steps_at(start, ids.get(start.topic, ""))
        return starts

    def _steps_at(self, start: Start, topic_id: str) -> PartitionSteps:
        name = (start.topic, start.partition)
        table = StepTable(topic_id, start.partition, start.offsets.is_complete)
        piece_bytes = min(PIECE_BYTES, self._topics.max_batch_bytes(start.topic) - OVERHEAD_BYTES)
        connect = partial(self._topics.connect, name, self._calls.put)
        log = StepLog(connect, table, self._owner, lambda: int(time.time() * 1000), piece_bytes)
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

    # --- the handler ---

    def _with_steps(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(record: Record, context: Context) -> Any:
            context.keep_steps(RecordSteps(self, record))
            return handler(record, context)

        async def call_async(record: Record, context: Context) -> Any:
            context.keep_steps(AsyncRecordSteps(self, record))
            return await handler(record, context)

        return call_async if is_coroutine_function(handler) else call

    def steps_of(self, record: Record) -> PartitionSteps | None:
        """Of the record's partition; None where it is not this member's any more."""
        return self._assigned.get((record.topic, record.partition))

    def may_call(self) -> bool:
        """Whether a call may begin without a look at the log."""
        return self._has_lease()

    def idempotency_key(self, step: Step) -> str:
        parts = json.dumps([self._group, *step.record, step.name, step.key])
        return hashlib.sha256(parts.encode()).hexdigest()[:32]

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
            except StepLostError:  # which ends the run
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
            failure = InternalError(f"steps of group {self._group!r} are not kept any more: {line_of(error)}")
            failure.__cause__ = error
            self._answers.end(str(failure))
            self._fail(failure)

    def _put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        if self._has_ended.is_set():
            self._make_calls()


class Answers:
    """Futures of all who wait for a log. Thread safety: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._reason = ""

    def begin(self) -> Future[Any]:
        """A future that nobody can cancel: what was asked is answered."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._reason:
                future.set_exception(StepLostError(self._reason))
            else:
                self._waiting.add(future)
        return future

    def give(self, future: Future[Any], value: Any) -> None:
        """A value, or an exception to raise; nothing to who was told the reason before."""
        with self._lock:
            if future not in self._waiting:
                return
            self._waiting.remove(future)
        if isinstance(value, StepLostError):
            future.set_exception(value)
        else:
            future.set_result(value)

    def end(self, reason: str) -> None:
        """All who wait, and who ask from now on, are told the reason."""
        with self._lock:
            self._reason = reason
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            future.set_exception(StepLostError(reason))


class PartitionSteps:
    """What handlers ask about one partition, in one assignment. Thread safety: any thread."""

    def __init__(
        self, topic_id: str, log: StepLog, put: Callable[[Callable[[], None]], None], answers: Answers
    ) -> None:
        """`put`: what is put there is called by the one thread that has the logs."""
        self._answers = answers
        self.topic_id = topic_id
        self.log = log
        self._put = put
        self.is_used = False
        self.running: dict[Step, asyncio.Task[Any]] = {}
        """Of coroutines; the event loop's."""

    def ask(self, step: Step) -> Future[bytes | None]:
        """What is kept of it. Raises `StepLostError`."""
        self.is_used = True
        return self._answered(step, self.log.open, lambda: self.log.answer(step))

    def keep(self, step: Step, answer: bytes) -> Future[None]:
        """Raises `StepLostError` where nobody will ever be given the answer."""
        return self._answered(step, lambda told: self.log.keep(step, answer, told), _nothing)

    def forget(self, step: Step) -> Future[None]:
        """Raises `StepLostError`."""
        return self._answered(step, lambda told: self.log.forget(step, told), _nothing)

    def confirm(self, step: Step) -> Future[None]:
        """That this member is still the owner. Raises `StepLostError` where it is not."""
        return self._answered(step, self.log.confirm, _nothing)

    def _answered(
        self, step: Step, ask: Callable[[Callable[[Lost | None], None]], None], answer: Callable[[], T]
    ) -> Future[T]:
        found: Future[T] = self._answers.begin()

        def told(lost: Lost | None) -> None:
            self._answers.give(found, answer() if lost is None else StepLostError(f"step {step.name!r}: {lost.reason}"))

        self._put(lambda: ask(told))
        return found


class RecordSteps:
    """The steps of one attempt of a record, whose handler is a plain function."""

    def __init__(self, all_steps: KeptSteps, record: Record) -> None:
        self._all = all_steps
        self._record = record
        self._partition = all_steps.steps_of(record)
        self._used: set[Step] = set()

    def step(
        self,
        context: Context,  # noqa: ARG002 - of coroutines
        function: Callable[..., Any],
        args: tuple[Any, ...],
        name: str | None,
        key: str,
        keep_if: Callable[[Any], bool] | None,
    ) -> Any:
        """See `Context.step`."""
        if is_coroutine_function(function):
            raise UsageError(f"context.step: {function!r} is a coroutine function, and the handler is a plain one")
        step, partition = self._begin(function, name, key)
        found = partition.ask(step).result()
        if found is not None:
            return _decoded(found)
        if not self._all.may_call():
            partition.confirm(step).result()
        value = function(*args)
        if keep_if is not None and not keep_if(value):
            return value
        answer = _encoded(value, step)
        partition.keep(step, answer).result()
        return _decoded(answer)

    def forget(self, name: str, key: str) -> Any:
        """See `Context.forget`."""
        step = self._named(name, key)
        partition = self._owned(step)
        partition.ask(step).result()
        partition.forget(step).result()
        self._used.discard(step)

    def key(self, name: str, key: str) -> str:
        """See `Context.step_key`."""
        return self._all.idempotency_key(self._named(name, key))

    def _begin(self, function: Callable[..., Any], name: str | None, key: str) -> tuple[Step, PartitionSteps]:
        name = name or getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise UsageError(f"context.step: {function!r} has no name by which its answer can be kept: give name=")
        step = self._named(name, key)
        if step in self._used:
            what = f"a second step {name!r}" + (f" with key={key!r}" if key else "")
            raise UsageError(f"context.step: {what} for one record would get the first one's answer: give key=")
        self._used.add(step)
        return step, self._owned(step)

    def _named(self, name: str, key: str) -> Step:
        for what, text in (("name", name), ("key", key)):
            if not isinstance(text, str):
                raise UsageError(f"context.step: {what} is {kind_of(text)}: give a text")
            if len(text.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
                raise UsageError(f"context.step: {what} has more than {MAX_TEXT_BYTES} bytes: give a shorter one")
        record = self._record
        proof = checksum(record.raw_key, record.raw_value, record.timestamp_ms)
        topic_id = "" if self._partition is None else self._partition.topic_id
        return Step(RecordIdentity(topic_id, record.partition, record.offset, proof), name, key)

    def _owned(self, step: Step) -> PartitionSteps:
        if self._partition is None or self._all.steps_of(self._record) is not self._partition:
            raise StepLostError(f"step {step.name!r}: its partition is not read here any more")
        return self._partition


class AsyncRecordSteps(RecordSteps):
    """The same for a coroutine function: what is asked is awaited. Belongs to its event loop."""

    async def step(
        self,
        context: Context,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        name: str | None,
        key: str,
        keep_if: Callable[[Any], bool] | None,
    ) -> Any:
        step, partition = self._begin(function, name, key)
        task = partition.running.get(step)
        if task is None:
            task = asyncio.create_task(self._run(partition, step, function, args, keep_if))
            partition.running[step] = task
            task.add_done_callback(partial(_ended, partition.running, step))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if context.cancelled:  # else it is over its time, and the next attempt waits for it
                task.cancel()
            raise

    async def _run(
        self,
        partition: PartitionSteps,
        step: Step,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keep_if: Callable[[Any], bool] | None,
    ) -> Any:
        found = await asyncio.wrap_future(partition.ask(step))
        if found is not None:
            return _decoded(found)
        if not self._all.may_call():
            await asyncio.wrap_future(partition.confirm(step))
        value = function(*args)
        if inspect.isawaitable(value):
            value = await value
        if keep_if is not None and not keep_if(value):
            return value
        answer = _encoded(value, step)
        await asyncio.wrap_future(partition.keep(step, answer))
        return _decoded(answer)

    async def forget(self, name: str, key: str) -> None:
        step = self._named(name, key)
        partition = self._owned(step)
        await asyncio.wrap_future(partition.ask(step))
        await asyncio.wrap_future(partition.forget(step))
        self._used.discard(step)


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


def _ended(running: dict[Step, asyncio.Task[Any]], step: Step, task: asyncio.Task[Any]) -> None:
    running.pop(step, None)
    with suppress(asyncio.CancelledError):
        task.exception()  # nobody may wait for it any more; asyncio must not warn about it


def _encoded(value: Any, step: Step) -> bytes:
    """A step's result as it is kept. Raises `UsageError`."""
    if isinstance(value, bytes):
        return _BYTES + value
    if isinstance(value, str):
        return _TEXT + value.encode(errors="surrogatepass")
    try:
        return _JSON + json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        raise UsageError(
            f"step {step.name!r} returned {kind_of(value)}, which is not kept: return bytes, a str, or what JSON takes"
        ) from None


def _decoded(answer: bytes) -> Any:
    kind, data = answer[:1], answer[1:]
    if kind == _BYTES:
        return data
    return data.decode(errors="surrogatepass") if kind == _TEXT else json.loads(data)
