"""PySpark's daemon, which forks its Python workers; ours end in silence when Spark has closed their socket
(`keylane.spark.worker_ends`). Made for Spark's setting `spark.python.daemon.module`.

The daemon has keylane imported, which takes a worker, and with it a lane, a quarter of a second of a processor. Nothing
of that starts a thread: what is forked beside one may wait for ever for a lock that it held.
"""

from __future__ import annotations

from pyspark import daemon

import keylane.spark  # noqa: F401
from keylane.spark.worker_ends import end_in_silence

if __name__ == "__main__":
    end_in_silence(daemon)
    daemon.manager()
