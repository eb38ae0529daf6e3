"""The end of Spark's Python workers, which is silent where keylane is.

A worker that waits for its next task takes the end of its socket for an error, and reports it through that very socket;
one that is forked just then cannot even say that it is there. PySpark's daemon prints the `BrokenPipeError` that this
gives, with a traceback, on the user's terminal. Nobody waits for that answer, and nothing is lost.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

DAEMON = "pyspark.daemon"
"""PySpark's own. It forks the workers that plan sources and sinks, whatever `spark.python.daemon.module` says."""


class Tracebacks:
    """What the daemon knows as the module `traceback`: it prints one, and then the worker exits with 1."""

    def print_exc(self) -> None:
        """Of the exception that is handled."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def end_in_silence(daemon: Any) -> None:
    """From now on, in this process and those that it forks: `daemon` is the module that forks workers."""
    os.environ.setdefault("PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "1")  # else it prints one of its own
    daemon.traceback = Tracebacks()


def begin() -> None:
    """Once, when `keylane.spark` is imported: in a worker of PySpark's own daemon; elsewhere, nothing."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == DAEMON:
        end_in_silence(main)
