"""Calls `StreamingQueryListener`s with the events of a query on lanes, as Spark does with those of a streaming query.

`onQueryStarted` is called before `start` returns, the others from one thread: a listener that is slow or raises does
not touch the query. Spark's own bus has no way in for events that are not its own, so listeners are given to `start`.
"""

from __future__ import annotations

import queue
import threading
import uuid
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from keylane.foreign_errors import line_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.listener import StreamingQueryListener

    from keylane.spark.progress import Progress, QueryName

logger = logger_of(__name__)

MOST_WAITING = 100
"""Progress events that wait for slow listeners; the next ones are left out, since each is newer than those."""


class Listeners:
    """Thread safety: `started` by the thread that starts the query, the others by its supervisor."""

    def __init__(self, query: QueryName, listeners: Sequence[StreamingQueryListener] = ()) -> None:
        self._listeners = tuple(listeners)
        self._ids = {"id": uuid.UUID(query.id), "runId": uuid.UUID(query.run_id)} if self._listeners else {}
        self._name = query.name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def started(self, timestamp: str) -> None:
        """The query starts."""
        if not self._listeners:
            return
        event = QueryStartedEvent(**self._ids, name=self._name, timestamp=timestamp, jobTags=set())
        self._tell("onQueryStarted", event)
        self._thread = threading.Thread(target=self._run, name="keylane-lanes-listeners", daemon=True)
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        """A progress, which also has keylane's own entries."""
        if self._thread is None or self._calls.qsize() >= MOST_WAITING:
            return
        entries = progress.to_dict()
        made = StreamingQueryProgress.fromJson(entries)
        made.update({name: value for name, value in entries.items() if name not in made})
        event = QueryProgressEvent(made)
        self._calls.put(lambda: self._tell("onQueryProgress", event))

    def terminated(self, error: BaseException | None, timeout_s: float) -> None:
        """The query has ended. Waits for the listeners, at most `timeout_s`."""
        if self._thread is None:
            return
        text = None if error is None else line_of(error)
        event = QueryTerminatedEvent(**self._ids, exception=text, errorClassOnException=None)
        self._calls.put(lambda: self._tell("onQueryTerminated", event))
        self._calls.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("a listener has not returned within %.0f s of the query's end", timeout_s)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _tell(self, method: str, event: Any) -> None:
        for listener in self._listeners:
            try:
                getattr(listener, method)(event)
            except Exception:  # a listener's own error is its user's to read, and must not end the query
                logger.exception("%s of %r failed", method, listener)
