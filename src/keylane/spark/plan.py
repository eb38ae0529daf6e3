"""What a query is to run (`LanePlan`), and what it needs of Spark: a `Session`, its `TaskSlots`, and `LaneJobs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from keylane.consumer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.spark.jobs import JobResult
    from keylane.spark.progress import QueryName
    from keylane.spark.restarts import RestartLimits
    from keylane.spark.scaling import LaneBounds


class TaskSlots(Protocol):
    """How many lanes a session holds."""

    def check(self, lanes: int) -> int: ...
    def default(self, partitions: int) -> int: ...
    def room(self) -> int: ...


class Session(Protocol):
    """What lanes need of a session, in this process or elsewhere."""

    master: str | None
    ui: str | None
    """Where Spark's own pages are."""

    def slots(self, *, allow_all: bool, task_cpus: float | None) -> TaskSlots: ...
    def jobs(self, run_id: str, group: str, task_cpus: float | None) -> LaneJobs: ...
    def addresses(self) -> tuple[str, str]: ...


class LaneJobs(Protocol):
    """What the supervisor needs of Spark."""

    def submit(self, lane: int, shipment: bytes, on_end: Callable[[JobResult], None]) -> None: ...
    def cancel(self, lane: int) -> None: ...
    def executor_of(self, lane: int) -> str | None: ...
    def is_decommissioned(self, executor_id: str) -> bool: ...
    def silence(self) -> str: ...
    def describe(self, lane: int, partitions: tuple[str, ...], figures: str) -> None: ...
    def join(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What the query is to run."""

    query: QueryName
    lanes: int
    """How many to begin with."""
    bounds: LaneBounds | None
    """Between which the number follows the lag; None: it changes by `set_lanes` alone."""
    room: Callable[[], int]
    """How many lanes the task slots of now hold, beside those that stay free."""
    concurrency: int
    """Records that one lane may have in handlers."""
    cargo: bytes
    """The pipeline, from `shipping.pack`."""
    log_ends: Mapping[tuple[str, int], int]
    """The log ends when the query began: what progress starts from."""
    ending_offsets: Mapping[tuple[str, int], int] | None
    """The trigger `availableNow`: where lanes stop. None: they run until they are stopped."""
    lane_settings: Callable[[int], Mapping[str, Any]]
    """Client settings of one lane: its group instance id."""
    assignment: Sequence[tuple[str, int]]
    """Partitions that are assigned by hand: lane i of n reads every n-th of them, from the i-th on."""
    limits: RestartLimits
    drain_timeout_s: float
    session_timeout_s: float
    revoke_timeout_s: float
    """How long a partition that goes elsewhere waits for its records in handlers."""
    progress_interval_s: float
    recent_progress: int
    """How many progress events are kept."""
    prepare: Callable[[Callable[[], bool]], None]
    """Runs before the first lane, in the supervisor's thread, and raises what the query shall fail with. It is given a
    function that tells whether the query is to stop."""
    committed: Callable[[], Mapping[tuple[str, int], int]]
    """Asks the broker for the group's committed offsets, once all lanes have ended."""
    closed: Callable[[], None]
    """Runs at the end, when no lane's process of this query is left."""
    settings: Settings = field(default_factory=Settings)
    """What holds for lanes from the start."""
    ended: Callable[[], None] = lambda: None
    """Runs at the very end, before anybody hears of it."""
