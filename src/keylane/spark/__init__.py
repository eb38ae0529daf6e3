"""keylane on Spark: lanes (`start`), and the DataFrame pipeline (the source and sink `keylane`, see docs/dataframes.md).

A lane is one long Spark job of one task that is a member of the pipeline's consumer group. Spark places, restarts and
shows lanes; Kafka assigns partitions, fences and stores progress; neither is done again here.

Names are imported when they are first used: a task that reads a topic need not load what starts lanes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError

try:
    import cloudpickle  # noqa: F401
    import pyspark  # noqa: F401
except ImportError as error:
    raise UsageError(f"keylane.spark needs {error.name}: pip install 'keylane[spark]'") from error

if TYPE_CHECKING:
    from keylane.spark.lane_record import LaneStatus
    from keylane.spark.query import LaneQuery
    from keylane.spark.session import session
    from keylane.spark.start import start

__all__ = ["LaneQuery", "LaneStatus", "session", "start"]

_LAZY = {
    "LaneQuery": "keylane.spark.query",
    "LaneStatus": "keylane.spark.lane_record",
    "session": "keylane.spark.session",
    "start": "keylane.spark.start",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return found
