"""`map_in_arrow`: `DataFrame.mapInArrow`, without its check for pandas (docs/adr/0042)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.spark.structured.ordering import quoted
from keylane.spark.versions import CLASSIC_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


MAP_ARROW_ITER = 207
"""PySpark's number of such a function: `PythonEvalType.SQL_MAP_ARROW_ITER_UDF`, whose place is another one in 3.5."""


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    name: str | None = None,
) -> DataFrame:
    """Each partition's Arrow batches through `function`, whose batches have `schema`. Plans show it as `name`."""
    java = getattr(frame, "_jdf", None)
    if java is None:  # Spark Connect
        return frame.mapInArrow(function, schema)
    from pyspark.sql.udf import _create_udf

    # What `pandas_udf` does once it has seen pandas.
    udf: Any = _create_udf(function, schema, MAP_ARROW_ITER, name)
    column = udf(*[frame[quoted(name)] for name in frame.columns])._jc  # noqa: SLF001
    made = java.mapInArrow(column, False, None) if CLASSIC_FRAMES.here else java.pythonMapInArrow(column.expr(), False)
    return type(frame)(made, frame.sparkSession)
