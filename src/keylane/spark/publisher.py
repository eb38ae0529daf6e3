"""What other threads see of a query: one immutable `View`, replaced as a whole, with the progress so far."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.consumer.snapshot import Snapshot
from keylane.flow import failures
from keylane.flow.failures import FailureReport
from keylane.foreign_errors import one_line
from keylane.spark.lane_record import missing_lanes
from keylane.spark.progress import ProgressReporter
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.consumer.snapshot import Waits
    from keylane.spark.lane_record import LaneRecord, LaneStatus
    from keylane.spark.listeners import Listeners
    from keylane.spark.plan import LanePlan
    from keylane.spark.progress import Progress

waits_logger = logger_of("keylane.waits")

LISTENERS_TIMEOUT_S = 5.0
"""How long the end of a query waits for its listeners."""


@dataclass(frozen=True, slots=True)
class View:
    """The query as other threads see it."""

    active: bool = True
    message: str = ""
    lag: int | None = None
    lanes: tuple[LaneStatus, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    progress: tuple[Progress, ...] = ()
    error: BaseException | None = None
    missing: str = ""
    """Which lanes do not run, and have not for long."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the number of lanes follows, of the last progress."""

    lag: int | None = None
    rate: float = 0.0
    """Records completed a second."""
    in_flight: int = 0


class Publisher:
    """Makes views and progress of the lanes. Owned by the supervisor's thread; `view` may be read by any."""

    def __init__(self, plan: LanePlan, lanes: Sequence[LaneRecord], listeners: Listeners) -> None:
        self.next_report = time.monotonic() + plan.progress_interval_s
        self._interval_s = plan.progress_interval_s
        self._lanes = lanes
        self._listeners = listeners
        self.load = Load()
        self._reporter = ProgressReporter(plan.query, plan.log_ends)
        self._failures = FailureReport()
        self._waits: Waits | None = None
        self._progress: deque[Progress] = deque(maxlen=plan.recent_progress)
        self.view = self._view("Starting lanes", active=True, error=None)

    def note(self, snapshot: Snapshot) -> None:
        """The last snapshot of a lane whose job has ended: its offsets outlive it."""
        self._reporter.note(snapshot.partitions)

    def note_committed(self, committed: Mapping[tuple[str, int], int]) -> None:
        """What the broker says that the group has committed."""
        self._reporter.note_committed(committed)

    def report(self, now: float) -> None:
        """Adds a progress, and sets when the next one is due."""
        self.next_report = now + self._interval_s
        merged = Snapshot.totals([lane.total for lane in self._lanes])
        held = [lane.total.partitions for lane in self._lanes]
        progress = self._reporter.report(merged, held, [lane.status for lane in self._lanes], now, time.time())
        self.load = Load(progress.lag, progress.rows_per_s, merged.in_flight)
        self._progress.append(progress)
        self._listeners.progress(progress)
        self._failures.tell(merged.failures, now)
        if merged.waits is not None and self._waits is None:
            waits_logger.warning("%s", merged.waits)
        self._waits = merged.waits

    def tell_failures(self, now: float, *, at_once: bool = False) -> None:
        """Log what is new of the lanes' failures; `at_once`: the query has ended."""
        self._failures.tell(failures.merged(*(lane.total.failures for lane in self._lanes)), now, at_once=at_once)

    def publish(self, *, ending: bool) -> None:
        """A view of a query that runs."""
        running = sum(lane.shown_state == "running" for lane in self._lanes)
        present = sum(lane.state != "removed" for lane in self._lanes)
        message = "Stopping lanes" if ending else f"{running} of {present} lanes running"
        missing = "" if ending else missing_lanes(self._lanes, time.monotonic())
        message += f"; {missing}" if missing else ""
        message += f"; the group {self._waits}" if self._waits is not None else ""
        self.view = self._view(message, active=True, error=None, missing=missing)

    def publish_end(self, error: BaseException | None) -> None:
        """The last view."""
        message = "Stopped" if error is None else f"Terminated with exception: {one_line(error)}"
        self.view = self._view(message, active=False, error=error)
        self._listeners.terminated(error, LISTENERS_TIMEOUT_S)

    def _view(self, message: str, *, active: bool, error: BaseException | None, missing: str = "") -> View:
        return View(
            active=active,
            message=message,
            lag=self._reporter.lag,
            lanes=tuple(lane.status for lane in self._lanes),
            snapshots=tuple(lane.total for lane in self._lanes),
            progress=tuple(self._progress),
            error=error,
            missing=missing,
        )
