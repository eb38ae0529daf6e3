"""`LaneQuery`: the handle of a pipeline that runs on lanes, in the shape of PySpark's `StreamingQuery`."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from keylane.consumer.events import Pause, Resume, RuleKeys
from keylane.consumer.intake import Liveness
from keylane.consumer.settings import apply
from keylane.consumer.snapshot import Snapshot
from keylane.consumer.work import Work
from keylane.errors import UsageError
from keylane.kafka.membership import Replay, Seek
from keylane.parallel_consumer import adjusted, check_replay, check_seek, named, targets_at, targets_from
from keylane.spark.controls import TellLiveness, TellWork
from keylane.spark.from_lanes import FromLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.consumer.health import Health
    from keylane.consumer.passing import Passing, Told
    from keylane.consumer.settings import Change
    from keylane.consumer.streams import Stream
    from keylane.flow.keys import KeyRule
    from keylane.kafka.membership import Target
    from keylane.operations.commands import Said
    from keylane.operations.reports import Runs
    from keylane.options import Rates
    from keylane.pipeline import Pipeline
    from keylane.spark.lane_record import LaneStatus
    from keylane.spark.progress import QueryName
    from keylane.spark.scaling import LaneBounds
    from keylane.spark.supervisor import Supervisor


class LaneQuery:
    """Made by `keylane.spark.start`. Thread safety: any thread, at any time.

    `pause`, `resume`, `adjust`, `seek`, `seek_to_time` and `liveness` are `ParallelConsumer`'s, for all lanes at once.
    Each returns once every lane that it concerns has done it, and raises `PeerError`, naming the lane, when one has not
    within half a minute (a seek: and `revoke_timeout_ms`). A lane that ends meanwhile holds up nobody. What is paused
    and adjusted holds for lanes that start later, too.
    """

    def __init__(
        self,
        name: QueryName,
        pipeline: Pipeline,
        supervisor: Supervisor,
        check_lanes: Callable[[int], int],
        bounds: LaneBounds | None,
        from_lanes: FromLanes | None = None,
    ) -> None:
        """`check_lanes` raises `UsageError` for a number of lanes that the session does not hold."""
        self._name = name
        self._pipeline = pipeline
        self._supervisor = supervisor
        self._check_lanes = check_lanes
        self._bounds = bounds
        self._from_lanes = from_lanes or FromLanes()

    def __repr__(self) -> str:
        return f"<LaneQuery group={self._name.group!r} id={self.id} runId={self.runId} {self.status['message']!r}>"

    @property
    def id(self) -> str:
        """The same for every run of this group under this name."""
        return self._name.id

    @property
    def runId(self) -> str:  # noqa: N802 - Structured Streaming's name
        """Another one for every run."""
        return self._name.run_id

    @property
    def name(self) -> str | None:
        return self._name.name

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether any lane may still run."""
        return self._supervisor.view.active

    @property
    def status(self) -> dict[str, Any]:
        """`message`, `isDataAvailable` (records after the committed offsets) and `isTriggerActive` (a lane runs)."""
        view = self._supervisor.view
        return {
            "message": view.message,
            "isDataAvailable": bool(view.lag),
            "isTriggerActive": any(lane.state == "running" for lane in view.lanes),
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest progress, or None before the first."""
        progress = self._supervisor.view.progress
        return progress[-1].to_dict() if progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The last progress events, oldest first: as many as `spark.sql.streaming.numRecentProgressUpdates` says."""
        return [one.to_dict() for one in self._supervisor.view.progress]

    @property
    def lanes(self) -> tuple[LaneStatus, ...]:
        """Each lane: its state, process, executor, failures and partitions."""
        return self._supervisor.view.lanes

    def set_lanes(self, count: int) -> None:
        """Adds lanes, or takes lanes away: those drain, commit and leave. Returns at once; `lanes` shows how far it is.

        Raises `UsageError` when no task slot would stay free, and when the number of lanes follows the lag or
        partitions are assigned by hand.
        """
        if self._bounds is not None:
            raise UsageError(
                f"set_lanes({count}): this query was started with lanes=({self._bounds.least}, {self._bounds.most}), "
                "and its lanes follow the lag"
            )
        if self._pipeline.assignment:
            raise UsageError(f"set_lanes({count}): the pipeline assigns partitions by hand, to a fixed number of lanes")
        self._supervisor.set_lanes(self._check_lanes(count))

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Start no more records of these partitions (None: of any) until `resume`, on whichever lane they are.

        Those in handlers finish and are committed. Lanes stay in their group, and partitions stay paused when they move
        to another lane, and when their lane starts again.
        """
        self._supervisor.ask(Pause(named(partitions)))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on with these partitions; None goes on with all, whatever was paused."""
        self._supervisor.ask(Resume(named(partitions)))

    def adjust(self, *, max_concurrency: int | None = None, rates: Rates | None = None) -> None:
        """Change how many handlers each lane runs at once (threads: within `threads`), or the rates of each, from now
        on; None leaves it. Raises `UsageError` for what cannot work."""
        self._supervisor.ask(adjusted(max_concurrency, rates))

    def rule_keys(self, rules: tuple[KeyRule, ...]) -> None:
        """keylane's: from now on these hold for records by their keys, on all lanes, and no others."""
        self._supervisor.ask(RuleKeys(rules))

    def about(self, asked: Passing | Replay) -> list[Told]:
        """keylane's: skip or park records that wait, or let complete ones run again; what each lane says that has some
        of them."""
        if isinstance(asked, Replay):
            check_replay(self._pipeline)
        return [told for told in self._supervisor.ask(asked).values() if isinstance(told, dict)]

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Go on with these partitions at these offsets, forwards or backwards, on the lanes that have them.

        Their records in handlers come to an end first (within `revoke_timeout_ms`), and are committed; the new offset
        is committed before anything of it runs, and what was complete above it runs again. An offset outside of the log
        is its nearer end. A partition that no lane has, or that is on its way from one lane to another, is sought once
        a lane has it. When this returns, the new offset is committed. Should a lane die in the middle of it, the lane
        that has the partition next seeks again.

        Raises `UsageError` for a topic that the pipeline does not read, and once the query has ended, and `PeerError`
        naming partitions that no lane came to have.
        """
        self._seek(targets_at(offsets), None)

    def seek_to_time(self, time_ms: int, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """The same, to the first record with this timestamp (milliseconds since the epoch) or a later one; None seeks
        in all partitions of the topics. Those that no lane has for as long as a seek may take are passed over: other
        members of the group have them."""
        self._seek(*targets_from(time_ms, partitions))

    def go_on_at(self, targets: Mapping[tuple[str, int], Target]) -> None:
        """keylane's: `seek` and `seek_to_time`, each partition to a place of its own."""
        self._seek(targets, None)

    def _seek(self, targets: Mapping[tuple[str, int], Target], others: Target | None) -> None:
        check_seek(self._pipeline)
        for topic, partition in targets:
            by_hand = self._pipeline.assignment
            if (topic, partition) not in by_hand if by_hand else not self._pipeline.reads_topic(topic):
                raise UsageError(
                    f"seek: {(topic, partition)!r} is not of what the pipeline reads: {self._pipeline.reads}"
                )
        self._supervisor.ask(Seek(targets, others))

    def liveness(self, partitions: Iterable[tuple[str, int]] | None = None) -> dict[int, Liveness]:
        """How each lane stays a member, and how long it may start handlers (see `Liveness`), by the lane's number: of
        the lanes that run, or of those that have one of these partitions."""
        answers = self._supervisor.ask(TellLiveness(named(partitions)))
        return {lane: told for lane, told in answers.items() if isinstance(told, Liveness)}

    def work(self) -> dict[int, Work]:
        """What each lane that runs has in hand, and what waits there and why, by the lane's number."""
        answers = self._supervisor.ask(TellWork())
        return {lane: told for lane, told in answers.items() if isinstance(told, Work)}

    def stream(self) -> Stream:
        """The results of all lanes, to be read in a `with` or `async with` block, of a query that was started with
        `stream="read"` or `stream="handled"`.

        As `ParallelConsumer.stream`: every record whose handler succeeds is a `Result`, records of a key (or partition)
        in their order; leaving the block stops the query, and what ended it by itself is raised where reading ends.
        When a lane dies, what it had not had read (or brought here) runs again in the one that starts in its place, so
        that a record may come twice. Nothing is skipped. While `max_unread` results of a lane wait here, that lane
        starts no new record. A query has one stream; while nobody reads it, its lanes wait.
        """

        def run() -> None:
            self.awaitTermination()

        return self._from_lanes.stream(run, self._supervisor.stop)

    def snapshot(self) -> Snapshot:
        """What all lanes together have done and hold, counted over their restarts."""
        return reduce(Snapshot.merge, self._supervisor.view.snapshots, Snapshot())

    def health(self) -> Health:
        """Whether the driver's part is alive, and ready: see `Health`. Lanes that fail are started again by it, so they
        are no fault; the query is ready while one runs."""
        return self._supervisor.health()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Waits for the end, at most `timeout` seconds; with a timeout, returns whether the query has ended.

        Raises what the query failed with: a `HandlerError` of the pipeline's `Halt`, a `PeerError` of the broker or of
        Spark, and so on.
        """
        if timeout is not None and not timeout >= 0:
            raise UsageError(f"awaitTermination(timeout={timeout!r}): give seconds of at least 0")
        ended = self._supervisor.ended.wait(timeout)
        error = self._supervisor.view.error
        if ended and error is not None:
            raise error
        return None if timeout is None else ended

    def stop(self) -> None:
        """Lanes stop intake, finish the records in handlers, commit, and end. Returns when they have.

        A failure is not raised here but by `awaitTermination` and `exception`, as in Structured Streaming.
        """
        self._supervisor.stop()
        self._supervisor.ended.wait()

    def exception(self) -> BaseException | None:
        """What the query failed with, or None."""
        return self._supervisor.view.error


GONE = "its lane ended meanwhile, or has it no more: `keylane records show` says where it stands"


class OperatedQuery:
    """A query of lanes, as operations see it: one member, whose lanes do what is asked. Thread safety: any thread."""

    runs: Runs = "lanes"

    def __init__(self, query: LaneQuery, spark_ui: str | None) -> None:
        self.spark_ui = spark_ui
        self._query = query

    def snapshot(self) -> Snapshot:
        return self._query.snapshot()

    def lanes(self) -> list[Said]:
        return [lane.to_dict() for lane in self._query.lanes]

    def work(self) -> dict[int | None, Work]:
        return dict(self._query.work().items())

    def change(self, change: Change) -> None:
        apply(self._query, change)

    def about(self, asked: Passing | Replay) -> Told:
        """By the lanes that have the records' partitions now."""
        has = {(one.topic, one.partition) for one in self._query.snapshot().partitions}
        told = dict.fromkeys((one for one in asked.records if one[:2] in has), GONE)
        for answer in self._query.about(asked):
            told |= answer
        return told

    def seek(self, seek: Seek) -> Sequence[tuple[str, int]]:
        """In what its lanes have now: other members of the group have the others."""
        has = {(one.topic, one.partition) for one in self._query.snapshot().partitions}
        here = {name: target for name, target in seek.targets.items() if name in has}
        if here:
            self._query.go_on_at(here)
        return sorted(here)
