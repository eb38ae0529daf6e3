"""`LaneQuery`: the handle of a pipeline that runs on lanes, in the shape of PySpark's `StreamingQuery`."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from keylane.consumer.snapshot import Snapshot
from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.health import Health
    from keylane.spark.lane_record import LaneStatus
    from keylane.spark.progress import QueryName
    from keylane.spark.scaling import LaneBounds
    from keylane.spark.supervisor import Supervisor


class LaneQuery:
    """Made by `keylane.spark.start`. Thread safety: any thread, at any time."""

    def __init__(
        self,
        name: QueryName,
        supervisor: Supervisor,
        check_lanes: Callable[[int], int],
        bounds: LaneBounds | None,
        *,
        is_fixed: bool = False,
    ) -> None:
        """`check_lanes` raises `UsageError` for a number of lanes that the session does not hold. `is_fixed`: their
        number cannot change, since partitions are assigned by hand."""
        self._name = name
        self._supervisor = supervisor
        self._check_lanes = check_lanes
        self._bounds = bounds
        self._is_fixed = is_fixed

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
        return self._supervisor.view.progress[-1] if self._supervisor.view.progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The last progress events, oldest first: as many as `spark.sql.streaming.numRecentProgressUpdates` says."""
        return list(self._supervisor.view.progress)

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
        if self._is_fixed:
            raise UsageError(f"set_lanes({count}): the pipeline assigns partitions by hand, to a fixed number of lanes")
        self._supervisor.set_lanes(self._check_lanes(count))

    def snapshot(self) -> Snapshot:
        """What all lanes together have done and hold, counted over their restarts."""
        return reduce(Snapshot.merge, self._supervisor.view.snapshots, Snapshot())

    def health(self) -> Health:
        """Whether the driver's part is alive, and ready: see `Health`. Lanes that fail are started again by it, so they
        are no fault; the query is ready while one runs, or while the first ones start."""
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
