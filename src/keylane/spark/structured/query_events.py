"""`QueryListener`: a `StreamingQueryListener` that costs the driver little.

The idea: before a listener of PySpark sees a batch's progress, PySpark asks the JVM some hundred questions about it,
listener by listener. Batches that are quicker than that pile up in Spark's queue of events, and the session stops only
after all of them. This one asks for the progress once, as JSON, and only if it is wanted.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryListener


class QueryListener(StreamingQueryListener):
    """Hears that queries start, of their progress, if `wants_progress`, and of their end."""

    wants_progress: ClassVar[bool]

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    @property
    def _jlistener(self) -> Any:
        """What `addListener` gives to the JVM of a session in this process; Spark Connect's has events as JSON."""
        if not hasattr(self, "_jlistenerobj"):
            from pyspark import SparkContext

            jvm: Any = SparkContext._jvm  # noqa: SLF001 - as PySpark's own listeners
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(FromJvm(self))
        return self._jlistenerobj


class FromJvm:
    """What the JVM calls."""

    def __init__(self, listener: QueryListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._listener.onQueryStarted(event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if self._listener.wants_progress:
            fields = {"progress": json.loads(event.progress().json())}
            self._listener.onQueryProgress(QueryProgressEvent.fromJson(fields))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
