"""The lane's end of what user code in the driver sees: results before they are complete, and commits.

The idea: each result gets a number and goes to the driver, which answers by number what became of it
(`keylane.spark.from_lanes`). So a lane knows at any time what the driver has not seen through, and its consumer waits
with new records while too much is. Nothing is sent twice: a lane whose driver is gone takes what is open as not run,
and what a lane that is gone had open runs again in the one that starts in its place.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from keylane.consumer.outputs import ResultsMoved
from keylane.consumer.returns import record_departs
from keylane.errors import HandlerError
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.flow.workers.calls import failure_of
from keylane.foreign_errors import line_of
from keylane.records import PlainMessage
from keylane.spark.channel import Show, Void
from keylane.spark.outcome import LaneFailure
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.consumer.commits import Told
    from keylane.consumer.outputs import Delivery, ResultsRule
    from keylane.flow.outcomes import NotRun
    from keylane.records import Result
    from keylane.spark.channel import Moved, Ships

logger = logger_of(__name__)

SHOW_BYTES = 1_000_000
"""Of results in one message, about: what else the lane has to say shall not wait for long."""


class ToDriver:
    """The last stage of a lane's results, and who hears of its commits.

    Thread safety: `start`, `put`, `close` and `commits` are the consumer's, `moved`, `look` and `leave` the link's. A
    thread of its own sends.
    """

    def __init__(self, rule: ResultsRule, post: Callable[[Ships], None]) -> None:
        """`post` sends, and may have to wait for the driver; it raises `ConnectionError` when that is gone."""
        self.rule = rule
        self._post = post
        self._report: Callable[[ResultsMoved[Delivery]], None] = lambda _: None
        self._commits: CommitsToDriver | None = None
        self._queue: SimpleQueue[int | Void | Told | None] = SimpleQueue()
        """What is to be sent, results by their numbers."""
        self._lock = threading.Lock()
        """Guards that each number has one end, and that nothing gets one once the driver is gone."""
        self._open: dict[int, Delivery] = {}
        """Results of which the driver has not said what became of them."""
        self._number = 0
        self._left = False
        self._thread = threading.Thread(target=self._serve, name="keylane-lane-results", daemon=True)

    def report_to(self, report: Callable[[ResultsMoved[Delivery]], None]) -> None:
        """Where to tell what became of results; before the loop starts."""
        self._report = report

    def commits(self, heard: Callable[[Told], None]) -> CommitsToDriver | None:
        """Who hears of commits for the driver, if that wants to; before the loop starts."""
        if self.rule.commits or self.rule.committed:
            self._commits = CommitsToDriver(self._queue.put, heard, with_records=self.rule.committed)
        return self._commits

    # --- the loop's ---

    def start(self) -> None:
        self._thread.start()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            left = self._left
            for delivery in () if left else deliveries:
                self._number += 1
                self._open[self._number] = delivery
                self._queue.put(self._number)
        if left:
            self._report(ResultsMoved([(one, NOT_RUN) for one in deliveries], deliveries))

    def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s`."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("closed while the driver did not take what is to be sent to it")

    # --- the sender's ---

    def _serve(self) -> None:
        try:
            while self.pump(wait=True):
                pass
        except ConnectionError as error:  # the link learns of it too, and leaves
            logger.debug("results are not sent any more: %s", error)

    def pump(self, *, wait: bool) -> bool:
        """Sends what there is to send; False when nothing will come any more. Raises `ConnectionError`, and `Empty`
        where there is nothing and `wait` is False."""
        shown: list[tuple[int, bytes]] = []
        size = 0
        what = self._queue.get(block=wait)
        while isinstance(what, int):
            if (data := self._shown(what)) is not None:
                shown.append((what, data))
                size += len(data)
            if size >= SHOW_BYTES or self._queue.empty():  # nobody else takes
                break
            what = self._queue.get()
        if shown:
            self._post(Show(tuple(shown)))
        if what is not None and not isinstance(what, int):
            self._post(what)
        return what is not None

    def _shown(self, number: int) -> bytes | None:
        delivery = self._open.get(number)
        if delivery is None:  # nobody wants it any more
            return None
        try:
            return dumped(delivery.result())
        except Exception as error:  # whatever a user's object raises when it is pickled: its record's failure
            text = f"what the handler returned cannot travel to the driver ({line_of(error)})"
            self._settle([(number, Failure(HandlerError(text), final=True))], range(1))
            return None

    # --- the link's ---

    def moved(self, what: Moved) -> None:
        """The driver says what became of results, how many wait no more, and how much of commits it has heard."""
        self._settle([(number, _here(outcome)) for number, outcome in what.settled], range(what.passed))
        if self._commits is not None:
            self._commits.heard(what.heard)

    def look(self) -> None:
        """Take back what nobody wants any more: its partition was given up, or it runs again."""
        with self._lock:
            void = tuple(number for number, delivery in self._open.items() if not delivery.wanted)
        if void:
            self._settle([(number, NOT_RUN) for number in void])
            self._queue.put(Void(void))

    def leave(self) -> None:
        """Nobody in the driver sees anything any more: what it has not seen through stays to do."""
        with self._lock:
            self._left = True
            numbers = tuple(self._open)
        self._settle([(number, NOT_RUN) for number in numbers], range(len(numbers)))
        if self._commits is not None:
            self._commits.leave()

    def _settle(self, outcomes: Sequence[tuple[int, Failure | NotRun | None]], passed: Sequence[object] = ()) -> None:
        with self._lock:
            settled = [(self._open.pop(number), outcome) for number, outcome in outcomes if number in self._open]
        if settled or passed:
            self._report(ResultsMoved(settled, passed))


class CommitsToDriver:
    """Has the driver hear of commits. Thread safety: `put` and `close` are the consumer's, the rest is the link's."""

    def __init__(self, send: Callable[[Told], None], heard: Callable[[Told], None], *, with_records: bool) -> None:
        self._send = send
        self._report = heard
        self._with_records = with_records
        self._unheard: deque[Told] = deque()
        self._changed = threading.Condition()
        self._left = False

    def put(self, told: Told) -> None:
        with self._changed:
            self._unheard.append(told)
        messages = told.records if self._with_records else ()
        self._send(replace(told, records=[PlainMessage(*record_departs(one)) for one in messages]))

    def close(self, timeout_s: float) -> None:
        """Wait until the driver has heard of all, for at most `timeout_s`: then it has them, and tells them later."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or not self._unheard, timeout_s)

    def heard(self, count: int) -> None:
        """The driver has heard of so many more."""
        with self._changed:
            through = [self._unheard.popleft() for _ in range(count)]
            self._changed.notify_all()
        for told in through:
            self._report(told)

    def leave(self) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()


def dumped(result: Result) -> bytes:
    """Of the user's classes, those that executors know by the pipeline's cargo alone travel as code."""
    try:
        return pickle.dumps(result)
    except Exception:  # not an installed package's: then as the pipeline came
        import cloudpickle

        data: bytes = cloudpickle.dumps(result)
        return data


def _here(outcome: LaneFailure | NotRun | None) -> Failure | NotRun | None:
    return failure_of(outcome.original) if isinstance(outcome, LaneFailure) else outcome
