"""PySpark's daemon, which forks its Python workers; ours end in silence when Spark has closed their socket.

A worker that waits for its next task takes the end of its socket, at the end of the session, for an error, and reports
it through that very socket; PySpark 4.3 prints the `BrokenPipeError` that this gives, with a traceback, on the user's
terminal. Nobody waits for that answer, and nothing is lost. Made for Spark's setting `spark.python.daemon.module`.

The daemon has keylane imported, which takes a worker, and with it a lane, a quarter of a second of a processor. Nothing
of that starts a thread: what is forked beside one may wait for ever for a lock that it held.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark import daemon

import keylane.spark  # noqa: F401

if TYPE_CHECKING:
    import socket

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task after another in a process of its own, as PySpark does."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # as PySpark does after the traceback


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
