"""`RowEngine`: rows through the engine, inside one Spark task.

The idea: the engine's consumer port, fed by hand: all rows of a task are one partition of one topic, in order. So
ordering, concurrency, retries and workers are those of every other pipeline. What the handler returns does not pass
through the engine: the worker puts it where the task's thread takes it, many at a time, and to the engine the record
is complete.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keylane.engine.assembly import assemble
from keylane.engine.assignment import Start
from keylane.engine.failures import Failures
from keylane.engine.ports import Polled
from keylane.errors import InternalError
from keylane.offsets import OffsetMap
from keylane.options import Pipeline, is_coroutine_function, takes_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from keylane.engine.commits import CommitProblem
    from keylane.engine.ports import ConsumerListener, Offset
    from keylane.options import Ordering, Retries
    from keylane.records import Context, Record

NAME = ("rows", 0)
EPOCH = 1
MAX_PENDING = 20_000
"""Rows taken from Spark and not given back: bounds a task's memory."""

WORTH_WAKING = 100
"""Results that the task's thread waits for: each of its turns takes the interpreter's lock from the handlers."""

FIRST_CALLS_S = 0.1
"""After the first call: how long the task's thread at most leaves the others that can begin at once."""

CLOSING_POLL_S = 0.001
"""How long a poll waits for the engine to end: without a wait it would keep the interpreter's lock from it."""

FAILURES = Failures(outlives=True)
"""Of all tasks that this process runs: the first of a kind is told once, not once a task."""

_NO_MAP = 2**30
"""Nothing is committed, so no map bounds how far rows may overtake a slow one."""
_NEVER_MS = 10**9


@dataclass(slots=True)
class RowMessage:
    """A row as the engine's record; `Record.value` is whatever was fed."""

    value_: Any = field(repr=False)
    key_: bytes | None = field(repr=False)
    number: int

    def __len__(self) -> int:
        """Bytes, for the engine's bound of memory; here MAX_PENDING bounds it."""
        return 1

    def topic(self) -> str:
        return NAME[0]

    def partition(self) -> int:
        return NAME[1]

    def offset(self) -> int:
        return self.number

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> Any:
        return self.value_

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (0, -1)

    def leader_epoch(self) -> None:
        return None


@dataclass(frozen=True)
class RowOptions:
    """How rows run; picklable."""

    handler: Callable[..., Any]
    """Gets a record whose value is what was fed, and a context; what it returns comes back."""
    ordering: Ordering
    max_concurrency: int
    threads: int
    retries: Retries
    resource: Callable[[], Any] | None = None

    @property
    def at_once(self) -> int:
        """Calls that run at once when there are rows enough."""
        return self.max_concurrency if is_coroutine_function(self.handler) else min(self.threads, self.max_concurrency)

    def pipeline(self) -> Pipeline:
        return Pipeline(
            kafka={"bootstrap.servers": "none", "group.id": "rows"},  # no client is made
            topics=[NAME[0]],
            handler=self.handler,
            resource=self.resource,
            ordering=self.ordering,
            max_concurrency=self.max_concurrency,
            threads=self.threads,
            retries=self.retries,
            max_buffered_records=MAX_PENDING,
            commit_interval_ms=_NEVER_MS,
            drain_timeout_ms=0,
            offset_metadata_max_bytes=_NO_MAP,
        )


class RowEngine:
    """Runs while it is open (a context manager). Thread safety: one thread, but for `stop`."""

    def __init__(self, options: RowOptions) -> None:
        self._feed = _Feed(self._ended)
        self._results: deque[tuple[int, Any]] = deque()
        self._wanted: float = math.inf
        """How many results the task's thread waits for, while it does."""
        self._over = False
        """Whether nothing more comes."""
        self._first_calls = options.at_once
        """How many calls begin before the task's thread makes more rows."""
        self._begun: deque[None] | None = deque()
        """One for each of them; None once that is over."""
        self._there = threading.Event()
        self._loop = assemble(
            replace(options, handler=self._giving(options.handler)).pipeline(),
            self._feed,
            _no_producer,
            random=random.Random().random,
            name="keylane-rows",
            failures=FAILURES,
        )
        self._next = 0
        self.pending: dict[int, tuple[Any, bytes | None]] = {}
        """What was fed and has not come back, by number, in that order."""

    def __enter__(self) -> RowEngine:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.join()

    def run(self, feeds: Iterator[Iterable[tuple[Any, bytes | None]]]) -> Iterator[Any]:
        """What the handlers return for all that the feeds give, as it comes; ends early when it was stopped."""
        for rows in feeds:
            self.feed(rows)
            if self._begun is not None and self.pending:
                self._wait_for_first_calls(self._begun)
            while True:
                found = self.take(wait=len(self.pending) >= MAX_PENDING)
                if found is None:
                    return
                yield from found
                if len(self.pending) < MAX_PENDING:
                    break
        while self.pending and (found := self.take(wait=True)) is not None:
            yield from found

    def feed(self, rows: Iterable[tuple[Any, bytes | None]]) -> None:
        """Hand over values with their keys."""
        messages = []
        for value, key in rows:
            messages.append(RowMessage(value, key, self._next))
            self.pending[self._next] = (value, key)
            self._next += 1
        self._feed.put(messages)

    def stop(self) -> None:
        """Any thread: start nothing more, and cancel what can be cancelled; what is pending then does not come back."""
        self._feed.interrupt()  # else the engine ends when the poll does that waits for more rows, 50 ms later
        self._loop.stop()

    def take(self, *, wait: bool) -> list[Any] | None:
        """What handlers have returned; with `wait`, at least one. None once it was stopped and all is taken.

        Raises what the engine failed with: a resource that could not be made.
        """
        if wait:
            self._wait_for(max(1, min(WORTH_WAKING, len(self.pending))))
        over = self._over
        found: list[Any] = []
        while self._results:
            number, result = self._results.popleft()
            del self.pending[number]
            found.append(result)
        if found or not over:
            return found
        self._loop.join()
        self._loop.raise_failure()
        return None

    def _wait_for_first_calls(self, begun: deque[None]) -> None:
        """Until all have begun that can at once; of a few keys only as many do, hence the limit. Three threads lead to
        the first call, and each worker thread is one more: each would wait 5 ms for the interpreter's lock while this
        one makes rows."""
        self._first_calls = min(self._first_calls, len(self.pending))
        while len(begun) < self._first_calls and not self._over:
            if not self._there.wait(FIRST_CALLS_S) and begun:
                break
            self._there.clear()
        self._begun = None

    def _wait_for(self, count: int) -> None:
        """Until there are so many results, or nothing more comes."""
        self._wanted = count
        while len(self._results) < count and not self._over and self._there.wait():
            self._there.clear()
        self._wanted = math.inf

    # --- the workers', and the intake's ---

    def _giving(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, whose result goes to the task's thread."""
        takes = takes_context(handler)

        def begin(begun: deque[None]) -> None:
            begun.append(None)
            if len(begun) >= self._first_calls:
                self._there.set()

        def give(record: Record, result: Any) -> None:
            self._results.append((record.offset, result))
            if len(self._results) >= self._wanted:
                self._there.set()

        def call(record: Record, context: Context) -> None:
            if (begun := self._begun) is not None:
                begin(begun)
            give(record, handler(record, context) if takes else handler(record))

        async def call_async(record: Record, context: Context) -> None:
            if (begun := self._begun) is not None:
                begin(begun)
            give(record, await (handler(record, context) if takes else handler(record)))

        return call_async if is_coroutine_function(handler) else call

    def _ended(self) -> None:
        self._over = True
        self._there.set()


class _Feed:
    """The engine's consumer port. `put` is called from the task's thread, the rest from the intake's."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._on_close = on_close
        self._condition = threading.Condition()
        self._messages: deque[RowMessage] = deque()
        self._closed = False
        self._listener: ConsumerListener | None = None

    def put(self, messages: Sequence[RowMessage]) -> None:
        with self._condition:
            self._messages.extend(messages)
            self._condition.notify()

    def subscribe(self, listener: ConsumerListener) -> None:
        self._listener = listener
        listener.on_assigned([Start(*NAME, EPOCH, OffsetMap(0), 0, 0)])

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        with self._condition:
            if not (max_records and self._messages):
                self._condition.wait(CLOSING_POLL_S if self._closed else timeout_s)
            count = min(max_records, len(self._messages))
            taken: list[Any] = [self._messages.popleft() for _ in range(count)]
        return Polled([(NAME, EPOCH, taken)], count=count) if taken else None

    def pause(self, names: Iterable[tuple[str, int]]) -> None:
        """The engine asks for no more than it has room for."""

    resume = pause

    def commit(self, offsets: Sequence[Offset]) -> None:  # noqa: ARG002 - the protocol's
        assert self._listener is not None
        self._listener.on_committed({})

    def commit_now(
        self,
        offsets: Sequence[Offset],  # noqa: ARG002
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> dict[tuple[str, int], CommitProblem]:
        return {}

    def group_committed(self, names: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | None]:  # noqa: ARG002
        return {}

    def log_ends(self) -> Mapping[tuple[str, int], int]:
        return {}

    def interrupt(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()

    def close(self) -> None:
        """The engine's end, for whatever reason."""
        self._on_close()


def _no_producer(_: object) -> Any:
    raise InternalError("rows have no outputs to produce")
