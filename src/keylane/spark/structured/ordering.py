"""The order of `parallel_map`: which rows have the same key, and which of them comes first.

The idea: Spark decides both. It sorts the rows, and it makes the keys, by the equality that it groups by: 0.0 and -0.0,
NaNs, and texts that a collation holds to be the same have one key. What is left to Python is what Spark refuses: to
sort a stream.
"""

from __future__ import annotations

from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from keylane.errors import UsageError
from keylane.spark.structured.values import as_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

KEY = "keylane.key"
"""The column that is added where rows have no key that is its own bytes."""
SORTED_ALIKE = (
    IntegralType,
    BooleanType,
    BinaryType,
    StringType,
    DecimalType,
    DateType,
    TimestampType,
    TimestampNTZType,
    FloatType,
    DoubleType,
)
"""Types that Python sorts as Spark does, by their numbers and bytes; strings without a collation."""
DIVIDES = ("minpartitions", "maxrecordsperpartition")
"""Options of Kafka's sources, this one and Spark's own, that divide a partition among tasks."""
PASSES_ON = (
    "Project",
    "Filter",
    "SubqueryAlias",
    "EventTimeWatermark",
    "MapInArrow",
    "PythonMapInArrow",
    "MapInPandas",
)
"""Nodes of a plan whose rows stay in the task that they came to."""


def quoted(name: str) -> str:
    """The column of this name, dots in it or not, for Spark's functions."""
    return "`" + name.replace("`", "``") + "`"


def by_key(frame: DataFrame, keys: Sequence[str], order_by: Sequence[str]) -> DataFrame:
    """The rows of each key in one task, in order; a stream's are sorted there, by `sorted_here`.

    Raises `UsageError` for a column that a stream cannot be sorted by.
    """
    together = frame.repartition(*map(quoted, keys))
    if not frame.isStreaming:
        return together.sortWithinPartitions(*map(quoted, order_by))
    for name in order_by:
        kind = frame.schema[name].dataType
        if not isinstance(kind, SORTED_ALIKE) or _has_collation(kind):
            raise UsageError(
                f"order_by={name!r} is {kind.simpleString()}: Spark sorts no stream, and keylane sorts one by numbers, "
                "times, booleans, binary values and strings without a collation: make such a column, or apply "
                "parallel_map to the batches, in foreachBatch"
            )
    return together


def with_keys(frame: DataFrame, keys: Sequence[str] | None) -> DataFrame:
    """With the column `KEY` behind the others: one number for all rows that Spark would group by `keys`. The same frame
    where there is no order, or the key is its own bytes (`plain_key`).

    Raises `UsageError` for keys that Spark does not hash, such as maps.
    """
    if keys is None or plain_key(frame.schema, keys) is not None:
        return frame
    kinds = [frame.schema[name].dataType for name in keys]
    columns = [functions.col(quoted(name)) for name in keys]
    known = reduce(Column.__or__, [one.isNotNull() for one in columns])
    hashed = _collated_hash(frame, columns) if any(map(_has_collation, kinds)) else functions.xxhash64(*columns)
    try:
        made = frame.select("*", functions.when(known, hashed).alias(KEY))
        made.schema  # noqa: B018 - through Spark Connect, Spark is asked here
    except PySparkException as error:
        kind = ", ".join(one.simpleString() for one in kinds)
        why = str(error).partition("\n")[0]
        raise UsageError(f"key={', '.join(keys)} is {kind}, of which Spark makes no key: {why}") from error
    return made


def plain_key(schema: StructType, keys: Sequence[str] | None) -> str | None:
    """The one column whose bytes are the key: of binary values, or of strings that are equal by their bytes."""
    if keys is None or len(keys) != 1:
        return None
    kind = schema[keys[0]].dataType
    is_plain = isinstance(kind, BinaryType | StringType) and not _has_collation(kind)
    return keys[0] if is_plain else None


def check_whole_partitions(frame: DataFrame) -> None:
    """Raises `UsageError` when the frame's source divides a partition of Kafka's among tasks, which no order outlives.
    Spark Connect does not show its plans."""
    java = getattr(frame, "_jdf", None)
    if java is None:
        return
    for leaf in _leaves_of_these_tasks(java.queryExecution().analyzed()):
        given = _options_of(leaf)
        if name := next((name for name in given if name.lower() in DIVIDES), None):
            raise UsageError(
                f"ordering: the source has the option {name}={given[name]}, which divides a partition among tasks that "
                "run at once: leave it out, or give order_by=…, which brings the rows of a key together"
            )


def sorted_here(batches: Iterable[pa.RecordBatch], order_by: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """All rows of a stream's task in order, so many at a time: nulls first, NaN last, as Spark has them."""
    import pyarrow as pa

    some = list(batches)
    if not some:
        return
    table = pa.Table.from_batches(some)
    columns = [table.column(table.column_names.index(name)).chunks for name in order_by]
    values = [chain.from_iterable(as_numbers(one, texts=True).to_pylist() for one in chunks) for chunks in columns]
    places = [tuple(map(_place, one)) for one in zip(*values, strict=True)]
    order = sorted(range(len(places)), key=places.__getitem__)
    for start in range(0, len(order), rows):
        yield from table.take(order[start : start + rows]).combine_chunks().to_batches()


def _place(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


def _has_collation(kind: DataType) -> bool:
    match kind:
        case StringType():
            return getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY"
        case ArrayType():
            return _has_collation(kind.elementType)
        case StructType():
            return any(_has_collation(one.dataType) for one in kind.fields)
        case MapType():
            return _has_collation(kind.keyType) or _has_collation(kind.valueType)
    return False


def _collated_hash(frame: DataFrame, columns: list[Column]) -> Column:
    """What Spark places keys by in a shuffle; its function `xxhash64` goes by bytes."""
    if getattr(frame, "_jdf", None) is None:
        raise UsageError(
            "key=…: through Spark Connect, rows are not grouped by a collation: make a column of the key without one"
        )
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    expressions = jvm.PythonUtils.toSeq([utils.expression(one._jc) for one in columns])  # noqa: SLF001
    made = jvm.org.apache.spark.sql.catalyst.expressions.CollationAwareXxHash64(expressions, 42)
    return Column(utils.column(made))


def _leaves_of_these_tasks(plan: Any) -> Iterator[Any]:
    children = plan.children()
    if children.length() == 0:
        yield plan
    elif plan.nodeName() in (*PASSES_ON, "Union"):
        for index in range(children.length()):
            yield from _leaves_of_these_tasks(children.apply(index))


def _options_of(leaf: Any) -> dict[str, str]:
    """Of a source, in a batch or a stream."""
    kind = leaf.getClass().getSimpleName()
    if kind == "DataSourceV2Relation":
        return dict(leaf.options().asCaseSensitiveMap())
    return dict(leaf.extraOptions().asCaseSensitiveMap()) if kind == "StreamingRelationV2" else {}
