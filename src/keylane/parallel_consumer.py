"""`ParallelConsumer`: a pipeline in this process, with many records in flight at once.

The idea: this file only joins the parts. The engine decides (`keylane.consumer`), the adapters talk to Kafka
(`keylane.kafka`), and `run` waits. Nothing here is global and no signal handler is set, so it runs inside a Spark task
as well as in a script.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from keylane.consumer import events
from keylane.consumer.assembly import assemble
from keylane.consumer.closing import CloseMode
from keylane.consumer.health import ANSWER_WITHIN_S, Health
from keylane.consumer.intake import Liveness
from keylane.consumer.results import Complete, ResultQueue, check_stream
from keylane.consumer.settings import apply
from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Snapshot
from keylane.consumer.streams import Stream
from keylane.consumer.work import Work, with_reasons
from keylane.errors import PeerError, UsageError
from keylane.flow.failures import log_end
from keylane.kafka.admin import Admin
from keylane.kafka.consumer import KafkaConsumer
from keylane.kafka.logs import matching
from keylane.kafka.membership import Replay, Target
from keylane.kafka.producer import KafkaProducer, check_producer
from keylane.kafka.transactional_producer import TransactionalProducer
from keylane.left_behind import StoppedError, answer_unless_stopped
from keylane.options import Rates, check_kind
from keylane.pipeline import External
from keylane.telling import with_named_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from keylane.budgets.client import BudgetClient
    from keylane.consumer.loop import Loop
    from keylane.consumer.outputs import Delivery
    from keylane.consumer.passing import Passing, Told
    from keylane.consumer.ports import LastStage
    from keylane.consumer.settings import Change
    from keylane.delivery.exactly_once import Once
    from keylane.delivery.kept_steps import KeptSteps
    from keylane.flow.keys import KeyRule
    from keylane.kafka.membership import Seek
    from keylane.operations.agent import Agent
    from keylane.operations.commands import Said
    from keylane.operations.reports import Runs
    from keylane.pipeline import Pipeline, Steps

__all__ = ["Health", "Liveness", "OldestRecord", "ParallelConsumer", "PartitionSnapshot", "Snapshot", "Stream", "Work"]

SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS, MAX_POLL_INTERVAL_MS = 45_000, 3_000, 300_000
"""librdkafka's defaults."""

RESOLVE_MS = 60_000
"""How long a broker may take to tell a topic's id, as it may for a start."""

LAST_LOOK_MS = 3_000
"""How long a run's end waits to learn what the group has committed."""

SEEK_S = 30.0
"""How long a seek that operations ask for may take, beside records that come to their end."""

PROGRESS_S = 1.0
"""How often `on_progress` is called."""


@with_named_options()
class ParallelConsumer:
    """Runs a pipeline as a member of its consumer group.

    with kl.ParallelConsumer(pipeline) as consumer: consumer.run()

    `ending_offsets`: records at or past these offsets are not run, and `run` returns when the group's committed
    offsets have reached them on every partition listed, by whichever member; "latest" takes the ends of the logs at
    the start. `client_id` is what the broker calls this member. With `ready_when_assigned` it is not ready before its
    group has given it its first assignment. `on_progress` gets a `Snapshot` about once a second,
    and one at the end, on the thread that called `run`; what it raises ends the run.

    Thread safety: `stop`, `pause`, `resume`, `adjust`, `snapshot` and `health` may be called from any thread, and
    `stop` from a signal handler. `close` may not be called from a handler.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        ending_offsets: Mapping[tuple[str, int], int] | Literal["latest"] | None = None,
        client_id: str | None = None,
        ready_when_assigned: bool = False,
        on_progress: Callable[[Snapshot], None] | None = None,
    ) -> None:
        _check_ending_offsets(ending_offsets, pipeline)
        self._pipeline = pipeline
        self._ending_offsets = ending_offsets
        self._client_id = client_id
        self._ready_when_assigned = ready_when_assigned
        self._on_progress = on_progress
        self._lock = threading.Lock()
        """Guards that a consumer runs once, and that closing knows of a run."""
        self._telling = threading.Lock()
        """Guards that what is told before there is a loop comes before what is told after."""
        self._told: list[Change] = []
        self._begun = False
        self._is_left = False
        """Whether nobody waits for the start any more, which closes what it still makes. Guarded by the lock."""
        self._stopped = False
        self._loop: Loop | None = None
        self._finished = threading.Event()
        self._failure: Exception | None = None
        self._stream: LastStage | None = None
        self._once: Once | None = None
        self._steps: KeptSteps | None = None
        self._consumer: KafkaConsumer | None = None
        self._agent: Agent | None = None
        self._budget: BudgetClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self) -> None:
        """Consume until `stop`, or until the ending offsets are reached; a consumer runs once.

        Raises `HandlerError` naming the record when the pipeline halts at one, `BrokerUnavailableError` when no broker
        answers at the start, `UsageError` for a topic that does not exist, and `PeerError` when the broker refuses.
        A `stop` while it starts waits for no answer.
        An exception in the calling thread (KeyboardInterrupt) drains and commits like `stop`, then goes on.
        """
        with self._lock:
            if self._begun:
                raise UsageError("this ParallelConsumer has run already: make a new one")
            self._begun = True
        try:
            loop = self._started()
            if loop is None:
                return
            try:
                self._wait(loop)
            finally:
                loop.stop()
                loop.join()
                self._close_around()
            loop.raise_failure()
            self._report_progress()
        except Exception as error:
            self._failure = error
            log_end(f"the consumer of group {self._pipeline.group_id!r}", error)
            raise
        finally:
            self._finished.set()

    def stream(self, *, complete: Complete = "read", max_unread: int = 1_000) -> Stream:
        """The results, to be read in a `with` or `async with` block, which runs the consumer beside its reader.

        Every record whose handler succeeds is a `Result`, in the order in which they did: records of a key (or
        partition) in theirs. The handler may return any value; outputs in it are produced, and are acknowledged before
        the result is there. Dead letters and skipped records are no results.

        `complete`: with "read", a record is complete once its reader asks for the next result, or leaves the block
        without an exception; what was not read by then runs again. With "handled" it is complete as soon as its result
        waits for the reader; results that were not read are lost with the process. `max_unread`: while as many wait,
        no new record starts; those in handlers by then still come.
        """
        check_stream(self._pipeline, complete, max_unread)
        queue: ResultQueue[Delivery] = ResultQueue(complete, max_unread)
        self.show(queue)
        return Stream(queue, self.run, self.stop)

    def show(self, stream: LastStage) -> None:
        """keylane's: results go there. Before the run."""
        if self._stream is not None or self._begun:
            raise UsageError("this ParallelConsumer has run already, or has a stream: make a new one")
        self._stream = stream

    async def run_async(self) -> None:
        """`run`, without blocking the running asyncio loop. Cancelling it drains and commits like `stop`."""
        running = asyncio.get_running_loop()
        ended: asyncio.Future[None] = running.create_future()

        def run() -> None:
            try:
                self.run()
            except BaseException as error:  # handed to the one who awaits
                running.call_soon_threadsafe(_settle, ended, error)
            else:
                running.call_soon_threadsafe(_settle, ended, None)

        thread = threading.Thread(target=run, name="keylane-run", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([ended])
            raise
        finally:
            thread.join()

    def stop(self, mode: CloseMode = "in_flight", timeout_ms: int | None = None) -> None:
        """Poll no more records, finish some of those that were polled, commit what is complete, leave the group.

        `mode` says which: "drain" all that were polled, waiting retries among them; "in_flight" those in handlers;
        "now" none: what runs is cancelled, and runs again another time. What is not finished within `timeout_ms`
        (default `drain_timeout_ms`) is cancelled too. Whatever the mode, the committed map is true.
        Returns at once; `run` then returns. A second call can shorten the end and not lengthen it. Safe from any thread
        and from signal handlers. Raises `UsageError` for another mode.
        """
        if mode not in get_args(CloseMode):
            raise UsageError(f"mode={mode!r}: give one of {', '.join(map(repr, get_args(CloseMode)))}")
        self._stopped = True
        if self._loop is not None:
            self._loop.stop(mode, None if timeout_ms is None else timeout_ms / 1000)

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Start no more records of these partitions (None: of any), now and after rebalances, until `resume`.

        Those in handlers finish and are committed. The consumer stays in its group and goes on polling, as far as its
        buffer has room.
        """
        self._tell(events.Pause(named(partitions)))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on with these partitions; None goes on with all, whatever was paused."""
        self._tell(events.Resume(named(partitions)))

    def adjust(self, *, max_concurrency: int | None = None, rates: Rates | None = None) -> None:
        """Change how many handlers run at once (threads: within `threads`) or the rates, from now on; None leaves it.

        Safe from any thread, before the run and during it. Raises `UsageError` for what cannot work.
        """
        self._tell(adjusted(max_concurrency, rates))

    def rule_keys(self, rules: tuple[KeyRule, ...]) -> None:
        """keylane's: from now on these hold for records by their keys, and no others."""
        self._tell(events.RuleKeys(rules))

    def pass_over(self, asked: Passing, told: Callable[[Told], None]) -> None:
        """keylane's: skip or park records that wait, as far as this member has them, and tell of each, once, on a
        thread of its own."""
        if self._loop is None:
            raise UsageError("the consumer does not run yet: send this again")
        self._loop.tell(events.PassOver(asked, told))

    @property
    def has_ended(self) -> bool:
        """keylane's: nothing more comes of it."""
        return self._loop is not None and self._loop.ended.is_set()

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Go on with these partitions at these offsets, forwards or backwards, as far as this member has them.

        Their records in handlers come to an end first (within `revoke_timeout_ms`), and are committed; the new offset
        is committed before anything of it runs, and what was complete above it runs again. An offset outside of the log
        is its nearer end. A `rebalance_listener` hears of it as of a partition that goes and comes. Safe from any
        thread while the consumer runs. Under "exactly_once" an offset below what is purged ends the run.
        """
        self._seek(targets_at(offsets), None)

    def seek_to_time(self, time_ms: int, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """The same, to the first record with this timestamp (milliseconds since the epoch) or a later one; None seeks
        in all partitions that this member has."""
        self._seek(*targets_from(time_ms, partitions))

    def move(
        self, targets: Mapping[tuple[str, int], Target], moved: Callable[[Mapping[tuple[str, int], str]], None]
    ) -> None:
        """keylane's: `seek`, and tell which of these go on there now: this member had no others."""
        self._seek(targets, None, moved)

    def replay(self, asked: Replay, told: Callable[[Told], None]) -> None:
        """keylane's: let complete records run again, as far as this member has them, and tell of each, once, on a
        thread of its own."""
        check_replay(self._pipeline)
        self._seek(asked.targets, None, lambda moved: told(asked.told(moved)))

    def _seek(
        self,
        targets: Mapping[tuple[str, int], Target],
        others: Target | None,
        moved: Callable[[Mapping[tuple[str, int], str]], None] | None = None,
    ) -> None:
        check_seek(self._pipeline)
        if self._consumer is None:
            raise UsageError("seek: the consumer does not run yet; what it starts with is the group's offset")
        self._consumer.seek(targets, others, moved)

    def liveness(self) -> Liveness:
        """How this member stays one, and how long it may start handlers; see `Liveness`."""
        kafka = self._pipeline.kafka
        until = inf if self._loop is None else self._loop.lease.until
        left = None if until == inf else max(0, round((until - monotonic()) * 1000))
        times = None if self._consumer is None else self._consumer.group_times
        session_ms = int(kafka.get("session.timeout.ms", SESSION_TIMEOUT_MS))
        heartbeat_ms = int(kafka.get("heartbeat.interval.ms", HEARTBEAT_INTERVAL_MS))
        return Liveness(
            session_timeout_ms=session_ms if times is None else round(times.session_s * 1000),
            heartbeat_interval_ms=heartbeat_ms if times is None else round(times.heartbeat_s * 1000),
            max_poll_interval_ms=int(kafka.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)),
            stall_timeout_ms=self._pipeline.stall_timeout_ms,
            lease_left_ms=left,
        )

    def health(self) -> Health:
        """Whether it is alive, and ready; see `Health`. Takes up to five seconds where the loop stands."""
        loop, consumer = self._loop, self._consumer
        failure = self._failure if loop is None else loop.failure or self._failure
        if failure is not None:
            return Health.failed(failure)
        if self._finished.is_set():
            return Health("it has ended", "it has ended")
        if loop is None or consumer is None:
            return Health(None, "it has not started yet")
        if not loop.answers(ANSWER_WITHIN_S):
            fault = f"its loop has not answered for {ANSWER_WITHIN_S:.0f} s"
            return Health(fault, fault)
        if self._stopped:
            return Health(None, "it stops")
        return Health(None, consumer.trouble() or self._lack_of_assignment(consumer))

    def _lack_of_assignment(self, consumer: KafkaConsumer) -> str | None:
        """Why it is not ready yet, where that is asked for."""
        if not self._ready_when_assigned or consumer.has_assignment:
            return None
        waits = consumer.waits
        return "its group has not given it an assignment yet" + ("" if waits is None else f": it {waits}")

    def close(self, mode: CloseMode = "in_flight", timeout_ms: int | None = None) -> None:
        """`stop`, and wait until every thread that was started has ended. May be called again."""
        self.stop(mode, timeout_ms)
        with self._lock:
            begun = self._begun
            self._begun = True
        if begun:
            self._finished.wait()

    def snapshot(self) -> Snapshot:
        """Counters, gauges and partitions of this moment; of the last moment once the run is over."""
        made = Snapshot() if self._loop is None else self._loop.snapshot()
        waits = None if self._consumer is None else self._consumer.waits
        waiting = len(self._places_that_wait())
        return replace(made, waits=waits, waiting_for_store=waiting) if waits is not None or waiting else made

    def _places_that_wait(self) -> set[tuple[str, int, int]]:
        return set() if self._once is None else self._once.places_that_wait()

    def work(self) -> Work:
        """Which records are in hand, what waits for its time, and where the longest queues are and why, now. Nothing
        before and after the run."""
        if self._loop is None:
            return Work()
        work = self._loop.work()
        places = self._places_that_wait()
        return with_reasons(work, dict.fromkeys(places, "store")) if places else work

    def _tell(self, event: Change) -> None:
        with self._telling:
            self._told.append(event)
            if self._loop is not None:
                self._loop.tell(event)

    # --- the run ---

    def _started(self) -> Loop | None:
        """The loop, which runs; None when a stop came first. Brokers and stores that are away are asked in vain, and
        what that takes is left to a thread of its own."""
        try:
            return answer_unless_stopped(self._start, lambda: self._stopped, f"{self._client_id or 'keylane'}-start")
        except BaseException as error:
            with self._lock:
                loop, self._is_left = self._loop, self._loop is None
            if isinstance(error, StoppedError):
                return loop
            if loop is not None:
                loop.stop()
                loop.join()
                self._close_around()
            raise

    def _start(self) -> Loop:
        """Connect, check, and start the threads, unless nobody waits for them any more."""
        ending = self._ending_offsets
        consumer = KafkaConsumer(self._pipeline, self._client_id)
        try:
            check_producer(self._pipeline.kafka, transactional=self._pipeline.guarantee == "transactional")
            consumer.check(ending if isinstance(ending, Mapping) else ())
            if self._pipeline.guarantee == "exactly_once":
                self._once = self._exactly_once(consumer)
            elif self._pipeline.steps is not None:
                self._steps = self._kept_steps(self._pipeline.steps, consumer)
            self._begin_operations()
            self._begin_budget()
            loop = self._assembled(consumer, consumer.ends() if ending == "latest" else ending)
            with self._lock:
                if self._is_left:
                    raise StoppedError
                self._run_loop(loop, consumer)
        except BaseException:
            consumer.close()
            self._close_around()
            raise
        return loop

    def _run_loop(self, loop: Loop, consumer: KafkaConsumer) -> None:
        with self._telling:
            self._loop = loop
            for event in self._told:
                loop.tell(event)
        self._consumer = consumer
        loop.start()
        if self._agent is not None:
            self._agent.start(OperatedConsumer(self, self._pipeline.revoke_timeout_ms / 1000 + SEEK_S))
        if self._stopped:  # before there was a loop to tell
            loop.stop()

    def _close_around(self) -> None:
        """What the start has made beside consumer and loop."""
        if self._once is not None:
            self._once.close()
        if self._steps is not None:
            self._steps.close()
        if self._agent is not None:
            self._agent.close()
        if self._budget is not None:
            self._budget.close()

    def _begin_budget(self) -> None:
        """Know what others have spent, before anything of it runs."""
        if self._pipeline.budget is None:
            return
        from keylane.budgets.client import BudgetClient

        self._budget = BudgetClient(self._pipeline.kafka, self._pipeline.budget.budget, self._pipeline.group_id)
        self._budget.begin()

    def _begin_operations(self) -> None:
        """Be told what holds for the group's members, before anything of it runs."""
        if self._pipeline.operations is None:
            return
        from keylane.operations.agent import Agent

        self._agent = Agent(self._pipeline, self._pipeline.operations, self._client_id)
        held = self._agent.begin()
        with self._telling:
            self._told[:0] = held.changes

    def _exactly_once(self, consumer: KafkaConsumer) -> Once:
        from keylane.delivery.exactly_once import Once

        admin = Admin(self._pipeline.kafka, timeout_ms=RESOLVE_MS)
        ask = None if isinstance(self._pipeline.commit, External) else self._group_committed
        once = Once(self._pipeline, admin.cluster_id(), admin.topic_id, ask, consumer.fail, consumer.changes)
        consumer.check_starts(once.check, once.before_commit)
        return once

    def _kept_steps(self, steps: Steps, consumer: KafkaConsumer) -> KeptSteps:
        from keylane.delivery.kept_steps import KeptSteps
        from keylane.kafka.step_topics import StepTopics

        pipeline = self._pipeline
        topics = StepTopics(pipeline.kafka, pipeline.group_id, steps.topic)
        has_lease = lambda: self._loop is None or monotonic() < self._loop.lease.until  # noqa: E731
        kept = KeptSteps(pipeline, topics, has_lease, consumer.fail)
        consumer.check_starts(kept.check, lambda _: None)
        return kept

    def _group_committed(self) -> dict[tuple[str, int], int]:
        """What the group has committed, by any member."""
        pipeline = self._pipeline
        found = Admin(pipeline.kafka, timeout_ms=LAST_LOOK_MS).committed_offsets(pipeline.group_id, pipeline.reads)
        return {name: one.offset for name, one in found.items()}

    def _assembled(self, consumer: KafkaConsumer, ends: Mapping[tuple[str, int], int] | None) -> Loop:
        client_id, name = self._client_id, self._client_id or "keylane"
        around = self._once or self._steps
        pipeline = self._pipeline if around is None else around.pipeline
        return assemble(
            pipeline,
            consumer,
            lambda report: KafkaProducer(pipeline.kafka, report, client_id=client_id, name=name, fail=consumer.fail),
            random=random.Random().random,
            name=name,
            ending_offsets=ends,
            session_s=consumer.session_s,
            stream=self._stream,
            make_transactions=lambda report, tell: TransactionalProducer(
                pipeline, report, tell, consumer, client_id=client_id, name=name
            ),
            budget=self._budget,
        )

    def _wait(self, loop: Loop) -> None:
        """Until the loop has ended, reporting progress."""
        next_report = monotonic() + PROGRESS_S
        while not loop.ended.wait(max(0.0, next_report - monotonic())):
            next_report += PROGRESS_S
            self._report_progress()

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.snapshot())


PASS_OVER_S = 20.0
"""How long it may take until a commit has records that an operator has passed over."""


class OperatedConsumer:
    """A consumer, as operations see it. Thread safety: that of the consumer."""

    runs: Runs = "process"
    spark_ui: str | None = None

    def __init__(self, consumer: ParallelConsumer, seek_s: float) -> None:
        """A seek may take as long."""
        self._consumer = consumer
        self._seek_s = seek_s

    def snapshot(self) -> Snapshot:
        return self._consumer.snapshot()

    def lanes(self) -> list[Said]:
        return []

    def work(self) -> dict[int | None, Work]:
        return {None: self._consumer.work()}

    def change(self, change: Change) -> None:
        apply(self._consumer, change)
        self._consumer.snapshot()  # which its loop makes after the change

    def about(self, asked: Passing | Replay) -> Told:
        told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        if isinstance(asked, Replay):
            self._consumer.replay(asked, told.put)
        else:
            self._consumer.pass_over(asked, told.put)
        until = monotonic() + (self._seek_s if isinstance(asked, Replay) else PASS_OVER_S)
        while monotonic() < until and not self._consumer.has_ended:
            try:
                return told.get(timeout=0.1)
            except queue.Empty:
                continue
        raise PeerError("nobody has said what became of the records: `keylane records show` says where they stand")

    def seek(self, seek: Seek) -> Sequence[tuple[str, int]]:
        moved: queue.SimpleQueue[Mapping[tuple[str, int], str]] = queue.SimpleQueue()
        self._consumer.move(seek.targets, moved.put)
        try:
            return list(moved.get(timeout=self._seek_s))
        except queue.Empty:
            raise PeerError(
                f"the seek was not done within {self._seek_s:.0f} s, and may be still: look where the group stands"
            ) from None


def named(partitions: Iterable[tuple[str, int]] | None) -> tuple[tuple[str, int], ...] | None:
    """What `pause`, `resume` and `seek_to_time` are for. Raises `UsageError` for what is no partition."""
    if partitions is None:
        return None
    names = tuple(partitions)
    for name in names:
        if not (isinstance(name, tuple) and len(name) == 2 and isinstance(name[0], str) and isinstance(name[1], int)):
            raise UsageError(f"partitions={names!r}: give (topic, partition) pairs, or None for all")
    return names


def adjusted(max_concurrency: int | None, rates: Rates | None) -> events.Adjust:
    """What `adjust` asks for. Raises `UsageError` for what cannot work."""
    given: object = max_concurrency
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise UsageError(f"max_concurrency={max_concurrency!r}: give a whole number of at least 1")
    if rates is not None:
        check_kind("rates", rates, (Rates,))
    return events.Adjust(max_concurrency, rates)


def targets_at(offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Target]:
    """Where `seek` goes. Raises `UsageError` for what is no offset."""
    for name, offset in offsets.items():
        named([name])
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise UsageError(f"seek: {name!r} to {offset!r}: give an offset of at least 0")
    return {name: Target(offset=offset) for name, offset in offsets.items()}


def targets_from(
    time_ms: int, partitions: Iterable[tuple[str, int]] | None
) -> tuple[dict[tuple[str, int], Target], Target | None]:
    """Where `seek_to_time` goes: these, and all others. Raises `UsageError` for what is no time."""
    if isinstance(time_ms, bool) or not isinstance(time_ms, int) or time_ms < 0:
        raise UsageError(f"seek_to_time({time_ms!r}): give milliseconds since the epoch")
    names, target = named(partitions), Target(time_ms=time_ms)
    return ({}, target) if names is None else (dict.fromkeys(names, target), None)


def check_seek(pipeline: Pipeline) -> None:
    """Raises `UsageError` where no consumer of the pipeline can seek."""
    if pipeline.guarantee == "transactional":
        raise UsageError("seek: under delivery='transactional' offsets move with transactions alone; stop, and reset")


def check_replay(pipeline: Pipeline) -> None:
    """Raises `UsageError` where no consumer of the pipeline can let complete records run again."""
    if pipeline.guarantee == "transactional":
        raise UsageError(
            "replay: under delivery='transactional' offsets move with transactions alone: stop the members, and "
            "`keylane records replay`"
        )
    if isinstance(pipeline.commit, External):
        raise UsageError(
            "replay: with commit=External(...) the offsets are not the group's: change them where they are"
        )


def _check_ending_offsets(ending: Any, pipeline: Pipeline) -> None:
    if ending is None or ending == "latest":
        return
    try:
        for (topic, partition), offset in ending.items():
            if topic not in matching(pipeline.subscription, [topic]) and (topic, partition) not in pipeline.assignment:
                raise UsageError(
                    f"ending_offsets: topic {topic!r} is not among the pipeline's topics {pipeline.subscription!r}"
                )
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0 or not isinstance(partition, int):
                raise UsageError(f"ending_offsets[{(topic, partition)!r}]={offset!r}: give an offset of at least 0")
    except (AttributeError, TypeError, ValueError):
        raise UsageError(f"ending_offsets={ending!r}: give {{(topic, partition): offset}}, 'latest' or None") from None


def _settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
