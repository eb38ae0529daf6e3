"""Between a record's success and its completion: the callback for what was produced, and the stream of results.

The idea: a delivery whose outputs are acknowledged passes through stages before its record counts as complete. A stage
takes deliveries from the loop, shows them to user code on another thread, and reports which are settled, and how many
wait no more; the core starts nothing new while too many wait.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

from keylane.consumer.outputs import NO_RESULTS, AnyShown, ResultsMoved, ResultsRule
from keylane.consumer.returns import returned
from keylane.errors import UsageError
from keylane.flow.outcomes import NOT_RUN
from keylane.options import is_coroutine_function, takes_context
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.consumer.commits import Told
    from keylane.consumer.ports import LastStage
    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record, Result

logger = logger_of("keylane.consumer")

Complete = Literal["read", "handled"]


def results_rule(pipeline: Pipeline, stream: LastStage | None) -> ResultsRule:
    """Which results user code is to see."""
    rule = NO_RESULTS if stream is None else stream.rule
    return replace(rule, produced=rule.produced or pipeline.on_produced is not None)


def check_stream(pipeline: Pipeline, complete: str, max_unread: object, option: str = "complete") -> None:
    """Raises `UsageError` where a pipeline's results cannot be streamed like this; `option`: where `complete` is."""
    if complete not in get_args(Complete):
        raise UsageError(f"{option}={complete!r}: give one of {', '.join(map(repr, get_args(Complete)))}")
    if isinstance(max_unread, bool) or not isinstance(max_unread, int) or max_unread < 1:
        raise UsageError(f"max_unread={max_unread!r}: give a whole number of at least 1")
    if pipeline.guarantee == "transactional":
        raise UsageError(
            "stream() shows results before they are committed, and delivery='transactional' may take them back: "
            "read the outputs with isolation.level=read_committed, or use on_committed"
        )
    if pipeline.guarantee == "exactly_once":
        raise UsageError(
            "stream() hands on what the handler returns, and ExactlyOnce does not run it for a record "
            "that was processed before: read the results from the database"
        )
    if complete == "read" and pipeline.guarantee == "at_most_once":
        raise UsageError(
            f"{option}='read': a stream runs again what its reader did not see, and delivery='at_most_once' runs "
            f"nothing again: give {option}='handled'"
        )


class ResultQueue(Generic[AnyShown]):
    """From the loop to one reader.

    With `complete="handled"` a record is complete as soon as its result is here, with "read" once its reader has
    `settle`d it. Thread safety: `start`, `put` and `close` are the loop's, the rest is the reader's.
    """

    def __init__(self, complete: Complete, max_unread: int) -> None:
        self._at_once = complete == "handled"
        self.rule = ResultsRule(every=True, max_unseen=max_unread)
        self._queue: SimpleQueue[Sequence[AnyShown] | None] = SimpleQueue()
        self._report: Callable[[ResultsMoved[AnyShown]], None] = lambda _: None
        """Where to tell what became of results; set before the loop starts."""
        self._lock = threading.Lock()
        """Guards that nothing is put after the reader has left."""
        self._left = False
        self._wake: Callable[[], None] = lambda: None
        """Called, on the loop's thread, when there may be something to read."""
        self._taken: deque[AnyShown] = deque()
        """The reader's: taken from the queue, and not read."""
        self._reading: AnyShown | None = None
        """The reader's: what it has read last, and is not settled."""

    def report_to(self, report: Callable[[ResultsMoved[AnyShown]], None]) -> None:
        """Where to tell what became of results; before the loop starts."""
        self._report = report

    def commits(self, heard: Callable[[Told], None]) -> None:
        """A stream has results alone."""

    def wake_by(self, wake: Callable[[], None]) -> None:
        """What to call when there may be something to read; before the loop starts."""
        self._wake = wake

    # --- the loop's ---

    def start(self) -> None:
        """Nothing to start: the reader has its own thread."""

    def put(self, deliveries: Sequence[AnyShown]) -> None:
        with self._lock:
            left = self._left
            if not left:
                self._queue.put(deliveries)
        if self._at_once:  # now that nothing that follows can come before it
            self._report(ResultsMoved([(delivery, None) for delivery in deliveries]))
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
            if self._at_once or delivery.wanted:
                self._reading = delivery
                return delivery.result()
            self._report(ResultsMoved([(delivery, NOT_RUN)], passed=(delivery,)))

    def settle(self) -> None:
        """The reader is through with what it read last."""
        delivery, self._reading = self._reading, None
        if delivery is not None:
            self._report(ResultsMoved([] if self._at_once else [(delivery, None)], passed=(delivery,)))

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

    def _drop(self, deliveries: Sequence[AnyShown]) -> None:
        settled = [] if self._at_once else [(delivery, NOT_RUN) for delivery in deliveries]
        self._report(ResultsMoved(list(settled), passed=tuple(deliveries)))


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
    return [one if isinstance(one, BaseException) else returned(one, record) for one, record in pairs]
