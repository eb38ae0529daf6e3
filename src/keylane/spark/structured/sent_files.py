"""Modules that were sent with `addPyFile` or `--py-files`, in the worker that plans a stream: Spark 4.x tells it a
folder below the one that has them, and of no archive."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkFiles

BELOW = "streaming_job"
ARCHIVES = ("*.zip", "*.egg", "*.jar")
"""What Spark takes for an archive of modules."""


def find_sent_files() -> None:
    """From now on, such modules can be imported in this process; elsewhere, nothing."""
    told = Path(SparkFiles._root_directory or "")  # noqa: SLF001 - in a worker, what Spark has told it
    if not SparkFiles._is_running_on_worker or told.name != BELOW:  # noqa: SLF001
        return
    for place in (told.parent, *(archive for kind in ARCHIVES for archive in sorted(told.parent.glob(kind)))):
        if str(place) not in sys.path:
            sys.path.append(str(place))
