"""PySpark's daemon, which forks its Python workers; ours end in silence when Spark has closed their socket.

A worker that waits for its next task takes the end of its socket, at the end of the session, for an error, and reports
it through that very socket; one that is forked just then cannot even say that it is there. PySpark prints the
`BrokenPipeError` that this gives, with a traceback, on the user's terminal. Nobody waits for that answer, and nothing
is lost. Made for Spark's setting `spark.python.daemon.module`.

The daemon has keylane imported, which takes a worker, and with it a lane, a quarter of a second of a processor. Nothing
of that starts a thread: what is forked beside one may wait for ever for a lock that it held.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from pyspark import daemon

import keylane.spark  # noqa: F401


class Tracebacks:
    """What the daemon knows as the module `traceback`: it prints one, and then the worker exits with 1."""

    def print_exc(self) -> None:
        """Of the exception that is handled."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


if __name__ == "__main__":
    os.environ.setdefault("PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "1")  # else it prints one of its own
    daemon.traceback = Tracebacks()  # type: ignore[assignment, attr-defined]
    daemon.manager()
