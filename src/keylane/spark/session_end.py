"""Whether a session has ended below a call: Py4J says then that nobody listens, or that None has no such attribute."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from py4j.protocol import Py4JError

from keylane.errors import SessionEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext

P = ParamSpec("P")
T = TypeVar("T")


def is_stopped(context: SparkContext) -> bool:
    """Whether it was stopped, or its JVM is gone."""
    java_context = context._jsc  # noqa: SLF001 - None after stop(); there is no public way to ask
    try:
        return java_context is None or bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True


def naming_its_end(start: Callable[P, T]) -> Callable[P, T]:
    """Of a function that starts lanes: where the session of this process ends meanwhile, it raises
    `SessionEndedError`."""

    @wraps(start)
    def named(*args: P.args, **options: P.kwargs) -> T:
        from pyspark import SparkContext

        context = SparkContext._active_spark_context  # noqa: SLF001 - it has no public way to ask without making one
        try:
            return start(*args, **options)
        except (Py4JError, AttributeError, OSError) as error:
            if context is None or not is_stopped(context):
                raise
            raise SessionEndedError(
                "the Spark session ended while lanes started: its own log says whether it was stopped, killed for its "
                "memory, or gave up after too many lost executors"
            ) from error

    return named
