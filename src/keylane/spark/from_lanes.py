"""The driver's end of what lanes show to user code here: results as a stream, and calls of `on_produced`, `on_commit`
and `on_committed`.

The idea: queue, stream and callbacks are those of one process (`keylane.consumer`). What they report of a result goes
to the lane that it is of, by the number that this lane gave it. A lane's process that is gone hears nothing any more:
what it had open runs again in another one, so that what is here of it and was not read is left out. What a lane finds
waiting of those before it counts as its own, so that no more waits here than lanes may show.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from keylane.consumer.callbacks import Callbacks, CommitCallbacks
from keylane.consumer.outputs import MAX_UNSEEN, NO_RESULTS, ResultsRule
from keylane.consumer.results import ResultQueue
from keylane.consumer.streams import Stream
from keylane.errors import HandlerError, UsageError
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import line_of
from keylane.spark.channel import Departed, Moved, Reported, Shipped, Show, Void
from keylane.spark.outcome import LaneFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.commits import Told
    from keylane.consumer.outputs import ResultsMoved
    from keylane.consumer.ports import ResultsPort
    from keylane.consumer.results import Complete
    from keylane.flow.outcomes import NotRun
    from keylane.records import Produced, Record, Result
    from keylane.spark.channel import Ships, SocketEvent

MOST_SETTLED = 500
"""In one message, and of failures one: a few kilobytes, which a socket takes at once that takes anything. Who sends
would else wait for a lane, perhaps while that waits to be read."""


class End(Protocol):
    """The part of a lane's socket that is used here."""

    def offer(self, order: Moved | Literal["left"]) -> bool:
        """Send it, unless the lane does not keep up; whether it was sent."""


@dataclass(slots=True)
class _Process:
    """One process of a lane: what it has not been told yet."""

    lane: int
    end: End
    is_gone: bool = False
    settled: list[tuple[int, LaneFailure | NotRun | None]] = field(default_factory=list)
    passed: int = 0
    heard: int = 0
    shown: dict[int, LaneResult] = field(default_factory=dict)
    """What waits here, by number."""
    owes_leave: bool = False
    """It is to be told that nobody reads any more."""


class LaneResult:
    """A result of a lane, on its way to user code."""

    __slots__ = ("_result", "is_void", "number", "process")

    def __init__(self, process: _Process, number: int, result: Result) -> None:
        self.process = process
        self.number = number
        self.is_void = False
        self._result = result

    @property
    def wanted(self) -> bool:
        """Not once its lane has taken it back, or is gone."""
        return not (self.is_void or self.process.is_gone)

    def take_back(self) -> None:
        self.is_void = True

    def produced(self) -> tuple[Produced, ...]:
        return self._result.produced

    def result(self) -> Result:
        return self._result


class FromLanes:
    """What user code in the driver sees of all lanes.

    Thread safety: `started` is the supervisor's, `spoke` and `went` are of the sockets' thread, what comes back is of
    the reader's and the callbacks'.
    """

    def __init__(
        self,
        *,
        complete: Complete | None = None,
        max_unread: int = MAX_UNSEEN,
        on_produced: Callable[[Produced], object] | None = None,
        on_commit: Callable[..., object] | None = None,
        on_committed: Callable[[Record], object] | None = None,
    ) -> None:
        """`complete`: when a record of the stream is; None: there is no stream."""
        self.failure: HandlerError | None = None
        """What `on_commit` or `on_committed` raised."""
        self._fail: Callable[[], None] = lambda: None
        self._rule = ResultsRule(
            produced=on_produced is not None,
            every=complete is not None,
            max_unseen=max_unread if complete is not None else MAX_UNSEEN,
            commits=on_commit is not None,
            committed=on_committed is not None,
        )
        self._queue: ResultQueue[LaneResult] | None = None
        self._is_read = False
        self._left = False
        if complete is not None:
            self._queue = ResultQueue(complete, max_unread)
            self._queue.report_to(self._moved)
        self._first: ResultsPort[LaneResult] | None = self._queue
        if on_produced is not None:
            self._first = Callbacks(on_produced, self._moved, self._queue, "keylane-lanes")
        self._commits = CommitCallbacks(on_commit, on_committed, self._failed, self._heard, "keylane-lanes")
        self._lock = threading.Lock()
        """Guards everything below."""
        self._processes: dict[End, _Process] = {}
        """By their sockets: those that may still speak."""
        self._current: dict[int, _Process] = {}
        """By lane: the one that was let go last."""
        self._unread: Counter[int] = Counter()
        """Results that wait here, by lane, whichever process they are of."""
        self._telling: deque[_Process] = deque()
        """Whose commits the callbacks are at, in their order."""

    def start(self, fail: Callable[[], None]) -> None:
        """`fail` is called, from any thread, when there is a `failure`."""
        self._fail = fail
        if self._first is not None:
            self._first.start()

    def close(self, timeout_s: float) -> None:
        """All lanes have ended: show what is here to callbacks, for at most `timeout_s` each."""
        self._commits.close(timeout_s)
        if self._first is not None:
            self._first.close(timeout_s)

    def stream(self, run: Callable[[], None], stop: Callable[[], None]) -> Stream:
        """Raises `UsageError` when there is none, or there was one already."""
        if self._queue is None:
            raise UsageError("stream(): the query was started without: give start(…, stream='read') or 'handled'")
        with self._lock:
            if self._is_read:
                raise UsageError("stream(): the query's results go to one stream, and it has one already")
            self._is_read = True

        def leave() -> None:
            self.leave()
            stop()

        return Stream(self._queue, run, leave)

    def leave(self) -> None:
        """Nobody reads any more: lanes stop, and take what was not read as not run."""
        with self._lock:
            self._left = True
            for process in self._processes.values():
                process.owes_leave = True
                self._flush(process)

    # --- lanes ---

    def before(self, deliver: Callable[[SocketEvent], None]) -> Callable[[SocketEvent], None]:
        """What sockets hand over, with the part that is for here taken out of it."""

        def take(event: SocketEvent) -> None:
            if isinstance(event, Shipped):
                self.spoke(event.end, event.what)
                return
            if isinstance(event, Departed):
                self.went(event.end)
            elif isinstance(event, Reported):
                self.go_on(event.end)
            deliver(event)

        return take

    def started(self, lane: int, end: End) -> ResultsRule | None:
        """A lane's process is let go; what it has to show, if anything. Nothing of its predecessors is taken any
        more."""
        if self._rule == NO_RESULTS:
            return None
        with self._lock:
            for process in self._processes.values():
                process.is_gone |= process.lane == lane
            self._processes[end] = self._current[lane] = _Process(lane, end, owes_leave=self._left)
            return replace(self._rule, waiting=self._unread[lane])

    def went(self, end: End) -> None:
        """A lane's process has ended."""
        with self._lock:
            if (process := self._processes.pop(end, None)) is not None:
                process.is_gone = True

    def spoke(self, end: End, what: Ships) -> None:
        process = self._processes.get(end)
        if process is None or process.is_gone:
            return
        if isinstance(what, Show):
            self._show(process, what)
        elif isinstance(what, Void):
            with self._lock:
                for number in what.numbers:
                    if (one := process.shown.get(number)) is not None:
                        one.take_back()
        else:
            with self._lock:  # callbacks tell in the order in which this is written down
                self._telling.append(process)
                self._commits.put(what)
        self.go_on(end)

    def _show(self, process: _Process, what: Show) -> None:
        loaded: list[LaneResult] = []
        for number, data in what.results:
            try:
                loaded.append(LaneResult(process, number, pickle.loads(data)))  # our own lane's, authenticated
            except Exception as error:  # whatever a user's class raises: its record's failure
                text = f"the driver cannot load what the handler returned ({line_of(error)})"
                with self._lock:
                    process.settled.append((number, LaneFailure.of(HandlerError(text)).brief))
                    process.passed += 1
        with self._lock:
            process.shown.update((one.number, one) for one in loaded)
            self._unread[process.lane] += len(loaded)
        assert self._first is not None, "results that nobody wants"
        self._first.put(loaded)

    # --- what comes back ---

    def _moved(self, event: ResultsMoved[LaneResult]) -> None:
        with self._lock:
            if self._left:  # lanes see to it themselves
                return
            touched: dict[int, _Process] = {}
            for one, outcome in event.settled:
                made = LaneFailure.of(outcome.error).brief if isinstance(outcome, Failure) else outcome
                one.process.settled.append((one.number, made))
                touched[id(one.process)] = one.process
            for passed in event.passed:
                assert isinstance(passed, LaneResult)
                process = passed.process
                process.shown.pop(passed.number, None)
                self._unread[process.lane] -= 1
                if process.is_gone:  # its successor found it waiting
                    process = self._current[process.lane]
                process.passed += 1
                touched[id(process)] = process
            for process in touched.values():
                self._flush(process)

    def _failed(self, error: HandlerError) -> None:
        self.failure = self.failure or error
        self._fail()

    def _heard(self, _: Told) -> None:
        with self._lock:
            process = self._telling.popleft()
            process.heard += 1
            self._flush(process)

    def go_on(self, end: End) -> None:
        """A lane was heard: it takes what it did not take before."""
        with self._lock:
            if (process := self._processes.get(end)) is not None:
                self._flush(process)

    def _flush(self, process: _Process) -> None:
        """Tells a process what it has not been told; the rest when it is heard next, should it not keep up."""
        while not process.is_gone and (process.settled or process.passed or process.heard):
            some = process.settled[:MOST_SETTLED]
            failed = (at for at, (_, outcome) in enumerate(some, 1) if isinstance(outcome, LaneFailure))
            del some[next(failed, MOST_SETTLED) :]
            if not process.end.offer(Moved(tuple(some), process.passed, process.heard)):
                return
            del process.settled[: len(some)]
            process.passed = process.heard = 0
        if process.owes_leave and not process.is_gone:
            process.owes_leave = not process.end.offer("left")
