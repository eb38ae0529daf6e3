"""Between a record's success and its completion: the callback for what was produced, and the stream of results.

The idea: a delivery whose outputs are acknowledged passes through stages before its record counts as complete. A stage
takes deliveries from the loop, shows them to user code on another thread, and reports which are settled, and how many
wait no more; the core starts nothing new while too many wait.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from keylane.consumer.outputs import MAX_UNSEEN, ResultsMoved, ResultsRule
from keylane.consumer.returns import returned
from keylane.flow.outcomes import NOT_RUN
from keylane.options import is_coroutine_function, takes_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.consumer.outputs import Delivery
    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record, Result

logger = logging.getLogger("keylane.consumer")

Complete = Literal["read", "handled"]


def results_rule(pipeline: Pipeline, stream: ResultQueue | None) -> ResultsRule:
    """Which results user code is to see."""
    most = MAX_UNSEEN if stream is None else stream.max_unread
    return ResultsRule(pipeline.on_produced is not None, stream is not None, most)


class ResultQueue:
    """From the loop to one reader.

    With `complete="handled"` a record is complete as soon as its result is here, with "read" once its reader has
    `settle`d it. Thread safety: `start`, `put` and `close` are the loop's, the rest is the reader's.
    """

    def __init__(self, complete: Complete, max_unread: int) -> None:
        self._at_once = complete == "handled"
        self.max_unread = max_unread
        self._queue: SimpleQueue[Sequence[Delivery] | None] = SimpleQueue()
        self._report: Callable[[ResultsMoved], None] = lambda _: None
        """Where to tell what became of results; set before the loop starts."""
        self._lock = threading.Lock()
        """Guards that nothing is put after the reader has left."""
        self._left = False
        self._wake: Callable[[], None] = lambda: None
        """Called, on the loop's thread, when there may be something to read."""
        self._taken: deque[Delivery] = deque()
        """The reader's: taken from the queue, and not read."""
        self._reading: Delivery | None = None
        """The reader's: what it has read last, and is not settled."""

    def report_to(self, report: Callable[[ResultsMoved], None]) -> None:
        """Where to tell what became of results; before the loop starts."""
        self._report = report

    def wake_by(self, wake: Callable[[], None]) -> None:
        """What to call when there may be something to read; before the loop starts."""
        self._wake = wake

    # --- the loop's ---

    def start(self) -> None:
        """Nothing to start: the reader has its own thread."""

    def put(self, deliveries: Sequence[Delivery]) -> None:
        if self._at_once:
            self._report(ResultsMoved([(delivery, None) for delivery in deliveries]))
        with self._lock:
            left = self._left
            if not left:
                self._queue.put(deliveries)
        if left:
            self._drop(deliveries)
        else:
            self._wake()

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - the protocol's
        self._queue.put(None)
        self._wake()

    # --- the reader's ---

    def read(self, *, wait: bool) -> Result | None:
        """The next result, which settles the one before; None when all was read and the run is over.

        Raises `Empty` when there is none yet and `wait` is False.
        """
        self.settle()
        while True:
            while not self._taken:
                some = self._queue.get(block=wait)
                if some is None:
                    self._queue.put(None)  # for whoever asks again
                    return None
                self._taken.extend(some)
            delivery = self._taken.popleft()
            if self._at_once or delivery.item.source.wanted:
                self._reading = delivery
                return delivery.result()
            self._report(ResultsMoved([(delivery, NOT_RUN)], passed=1))

    def settle(self) -> None:
        """The reader is through with what it read last."""
        delivery, self._reading = self._reading, None
        if delivery is not None:
            self._report(ResultsMoved([] if self._at_once else [(delivery, None)], passed=1))

    def leave(self) -> None:
        """The reader reads no more: what it has not settled stays to do."""
        with self._lock:
            self._left = True
        if self._reading is not None:
            self._taken.append(self._reading)
            self._reading = None
        with suppress(Empty):
            while (some := self._queue.get_nowait()) is not None:
                self._taken.extend(some)
        self._drop(self._taken)
        self._taken.clear()

    def _drop(self, deliveries: Sequence[Delivery]) -> None:
        settled = [] if self._at_once else [(delivery, NOT_RUN) for delivery in deliveries]
        self._report(ResultsMoved(list(settled), passed=len(deliveries)))


def with_results(handler: Callable[..., Any], *, of_batches: bool) -> Callable[..., Any]:
    """The same handler, whose return values of any type go on to the stream."""
    takes = takes_context(handler)
    convert = _returned_batch if of_batches else _returned

    def call(what: Any, context: Context) -> Any:
        return convert(what, handler(what, context) if takes else handler(what))

    async def call_async(what: Any, context: Context) -> Any:
        return convert(what, await (handler(what, context) if takes else handler(what)))

    return call_async if is_coroutine_function(handler) else call


def _returned(record: Record, result: Any) -> Any:
    return returned(result, record)


def _returned_batch(records: list[Record], result: Any) -> Any:
    if result is None:
        return [returned(None, record) for record in records]
    if not isinstance(result, list | tuple):
        return result
    if len(result) != len(records):  # left to the engine to refuse
        return result
    pairs = zip(result, records, strict=True)
    return [one if isinstance(one, Exception) else returned(one, record) for one, record in pairs]
