"""`map_in_arrow`: `DataFrame.mapInArrow`, without its check for pandas (docs/adr/0042)."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from keylane.flow.workers import cargo
from keylane.spark.structured.ordering import quoted
from keylane.spark.versions import CLASSIC_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


MAP_ARROW_ITER = 207
"""PySpark's number of such a function: `PythonEvalType.SQL_MAP_ARROW_ITER_UDF`, whose place is another one in 3.5."""


class Shipped:
    """A function that takes the user's own modules along to the executors, as lanes do; there it is the function alone.

    It is packed while Spark pickles it, which notes the broadcasts that it finds."""

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._function(batches)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (cargo.pack(self._function, "Spark's executors"),)


def map_in_arrow(
    frame: DataFrame,
    function: BatchFunction,
    schema: StructType,
    name: str | None = None,
) -> DataFrame:
    """Each partition's Arrow batches through `function`, whose batches have `schema`. Plans show it as `name`."""
    shipped = Shipped(function)
    java = getattr(frame, "_jdf", None)
    if java is None:  # Spark Connect
        return frame.mapInArrow(shipped, schema)
    from pyspark.sql.udf import _create_udf

    # What `pandas_udf` does once it has seen pandas.
    udf: Any = _create_udf(shipped, schema, MAP_ARROW_ITER, name)
    column = udf(*[frame[quoted(name)] for name in frame.columns])._jc  # noqa: SLF001
    made = java.mapInArrow(column, False, None) if CLASSIC_FRAMES.here else java.pythonMapInArrow(column.expr(), False)
    return type(frame)(made, frame.sparkSession)
