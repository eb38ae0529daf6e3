"""`map_in_arrow`: `DataFrame.mapInArrow`, without its check for pandas (docs/adr/0042)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def map_in_arrow(
    frame: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """Each partition's Arrow batches through `function`, whose batches have `schema`."""
    java = getattr(frame, "_jdf", None)
    if java is None:  # Spark Connect
        return frame.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.udf import _create_udf
    from pyspark.util import PythonEvalType

    # What `pandas_udf` does once it has seen pandas.
    udf: Any = _create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[frame[name] for name in frame.columns])
    return ClassicFrame(java.mapInArrow(column._jc, False, None), frame.sparkSession)  # noqa: SLF001
