"""Workers: what runs the function, behind one small protocol. Threads, one asyncio loop, or processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.flow.items import Carried, Source, Unit
    from keylane.flow.workers.latency import Histogram


class Lease(Protocol):
    """Until when the function may begin."""

    @property
    def until(self) -> float:
        """`time.monotonic()`; from then on what would begin is reported as not run."""


@dataclass(frozen=True, slots=True)
class Always:
    """A lease that never ends."""

    until: float = float("inf")


@dataclass(frozen=True, slots=True)
class WorkersFailed:
    """The workers cannot work: the resource could not be made."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker process ended under an item; another one takes its place."""

    text: str


@dataclass(frozen=True, slots=True)
class Running:
    """A call of the function that runs."""

    source: Source
    payload: Carried
    """Of the first item of a batch."""
    since: float
    """When it began, `time.monotonic()`."""
    where: Callable[[], str]
    """What it is at now."""

    @property
    def name(self) -> str:
        """How errors name its item."""
        return self.source.name_of(self.payload.offset())


@dataclass(frozen=True, slots=True)
class WorkersClosed:
    """How the workers ended."""

    still_running: tuple[str, ...] = ()
    """Items whose calls did not end in time; their threads are left behind."""
    error: BaseException | None = None
    """What leaving the resource raised."""


class Capacity(Protocol):
    """How much workers take."""

    @property
    def concurrency(self) -> int:
        """Calls of the function at once."""

    @property
    def may_queue(self) -> bool:
        """Whether they take more than that, and keep what does not run yet."""

    @property
    def elastic(self) -> bool:
        """Whether `resize` changes how many run at once; else they are at most so many, whatever is asked for."""


class Workers(Capacity, Protocol):
    """Runs the function. Calls come from the loop's thread; what ended is reported from others."""

    def start(self) -> None: ...
    def resize(self, concurrency: int) -> None: ...
    def submit(self, units: Sequence[Unit]) -> None:
        """Run each, and report it. An ordered call ends with the first item that is not simply through."""

    def withdraw(self) -> Sequence[Unit]:
        """Take back what has not begun and whose source may begin nothing any more."""

    def cancel(self) -> None:
        """Cancel what nobody wants any more."""

    def running(self) -> Sequence[Running]:
        """The calls that run now; not what waits for a worker."""

    def latency(self) -> Histogram:
        """How long calls took; a batch is one call."""

    def close(self, timeout_s: float) -> WorkersClosed: ...
