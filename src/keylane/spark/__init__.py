"""keylane on Spark: lanes (`start`), and the DataFrame pipeline (docs/dataframes.md); `session` starts Spark.

A lane is one long Spark job of one task that is a member of the pipeline's consumer group. Spark places, restarts and
shows lanes; Kafka assigns partitions, fences and stores progress; neither is done again here.
"""

from keylane.errors import UsageError

try:
    import cloudpickle  # noqa: F401
    import pyspark  # noqa: F401
except ImportError as error:
    raise UsageError(f"keylane.spark needs {error.name}: pip install 'keylane[spark]'") from error

from keylane.spark import connect_formats, registration, worker_ends
from keylane.spark.lane_record import LaneStatus
from keylane.spark.query import LaneQuery
from keylane.spark.session import session
from keylane.spark.start import start
from keylane.spark.structured.acknowledged import acknowledged
from keylane.spark.structured.carry_over import CarryOver
from keylane.spark.structured.exact.driver import end_transactions
from keylane.spark.structured.group_commits import GroupCommits
from keylane.spark.structured.parallel_map import parallel_map
from keylane.spark.versions import OLDEST

__all__ = [
    "CarryOver",
    "GroupCommits",
    "LaneQuery",
    "LaneStatus",
    "acknowledged",
    "end_transactions",
    "parallel_map",
    "session",
    "start",
]

OLDEST.need("keylane.spark")
registration.begin()
worker_ends.begin()
connect_formats.begin()
