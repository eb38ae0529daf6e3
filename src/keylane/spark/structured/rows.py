"""Rows of Arrow batches for a user's function, and what it returns as Arrow batches again.

A function sees the values that `collect()` gives (`values`). Arrow is imported where batches are made: lanes import
this too and need none, it takes 0.2 s of a processor, and it starts threads, which a daemon that forks workers must not
have.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.types import Row, _create_row

from keylane.errors import HandlerError, InternalError
from keylane.spark.structured.values import arrow_schema, to_arrow, to_python
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from keylane.flow.items import Carried

    Converter = Callable[[Any], Any]
    Values = tuple[Any, ...]
    """Of a row that goes back to Spark."""


RECORD = frozenset({"topic", "partition", "offset"})
"""The columns that say which record a row is."""


class FedRow:
    """A row in the flow; `value` is whatever was fed."""

    __slots__ = ("_key", "number", "value")

    def __init__(self, value: Carried, key: bytes | None, number: int) -> None:
        self.value = value
        self._key = key
        self.number = number

    def __len__(self) -> int:
        """MAX_PENDING bounds them, and not their size."""
        return 1

    def offset(self) -> int:
        return self.number

    def key(self) -> bytes | None:
        return self._key


@dataclass(slots=True)
class Outcome:
    """What became of one row."""

    row: Row = field(repr=False)
    values: list[Values] | None = field(repr=False)
    """The rows that it became; None when it failed."""
    error: BaseException | None
    attempts: int
    seconds: float
    key: bytes | None = field(default=None, repr=False)
    carried: bool = False
    """It leaves the batch."""
    number: int = -1
    """Of the row in its task, when it was tried."""


class RowReader:
    """Arrow batches as rows."""

    def __init__(self, schema: StructType, keys: Sequence[str] | None) -> None:
        self._names = schema.fieldNames()
        self._converters = [to_python(field.dataType) for field in schema.fields]
        self._keys = None if keys is None else [self._names.index(name) for name in keys]

    def rows(self, batch: pa.RecordBatch) -> list[tuple[Row, bytes | None]]:
        """Each row with its key as bytes; None is a row without a key, which waits for no other."""
        columns = [
            [convert(one) for one in column.to_pylist()] if convert is not None else column.to_pylist()
            for column, convert in zip(batch.columns, self._converters, strict=True)
        ]
        rows = [_create_row(self._names, values) for values in zip(*columns, strict=True)]
        if self._keys is None:
            return [(row, None) for row in rows]
        return [(row, _key([row[index] for index in self._keys])) for row in rows]


def row_departs(fed: FedRow) -> bytes:
    """A row that was fed, on its way to a worker process."""
    row = fed.value
    return pickle.dumps((row.__fields__, tuple(row)))


def row_arrives(data: bytes) -> Row:
    """The same, there."""
    names, values = pickle.loads(data)
    return _create_row(names, values)


def replaced(row: Row, values: Mapping[str, object]) -> Row:
    """The row with other values in these columns."""
    names = row.__fields__
    return _create_row(names, [values.get(name, value) for name, value in zip(names, row, strict=True)])


def place_of(row: Row) -> tuple[str, int, int] | None:
    """Topic, partition and offset of the record that a row is, where it has the source's columns."""
    if not set(row.__fields__) >= RECORD:
        return None
    return row["topic"], row["partition"], row["offset"]


def name_of(row: Row, number: int) -> str:
    """How errors name a row, of which they never show more: as its record, or by its number in its task."""
    if (place := place_of(row)) is not None:
        topic, partition, offset = place
        return f"{topic}-{partition}@{offset}"
    context = TaskContext.get()
    where = "its task" if context is None else f"Spark's partition {context.partitionId()}"
    return f"row {number + 1} of {where}"


def column(row: Row, name: str) -> Any:
    """None where the row has no such column."""
    return row[name] if name in row.__fields__ else None


def headers_of(row: Row) -> list[tuple[str, bytes | None]]:
    """The record's headers, where the row has them."""
    return [(header["key"], header["value"]) for header in column(row, "headers") or ()]


def _key(values: list[Any]) -> bytes | None:
    if len(values) == 1 and isinstance(values[0], bytes | None):
        return values[0]
    return None if all(one is None for one in values) else pickle.dumps(values)


class Returns:
    """What a function may return for a row: rows with these columns. Travels to worker processes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._known = frozenset(names)

    def rows(self, returned: Any) -> list[Values]:
        """The rows that a function returned: None, a dict, a tuple, or a list of those.

        Raises `HandlerError` for anything else.
        """
        if returned is None:
            return []
        if isinstance(returned, list):
            return [self._one(one) for one in returned]
        return [self._one(returned)]

    def of_each(self, returned: Any, count: int) -> Sequence[Any]:
        """What a function of so many rows returned for each of them: what it may return for one, or an exception.

        Raises `HandlerError` for anything else.
        """
        if returned is None:
            return [None] * count
        if isinstance(returned, list | tuple) and len(returned) == count:
            return returned
        what = f"{len(returned)} results for {count} rows" if isinstance(returned, list | tuple) else kind_of(returned)
        raise HandlerError(f"the function returned {what}: of a batch, return None, or a list with one result a row")

    def _one(self, returned: Any) -> Values:
        if isinstance(returned, Row) and hasattr(returned, "__fields__"):
            returned = returned.asDict()
        if isinstance(returned, dict):
            if unknown := sorted(set(returned) - self._known):
                raise HandlerError(f"the function returned {unknown}, and returns= has {', '.join(self.names)}")
            return tuple(map(returned.get, self.names))
        if isinstance(returned, tuple):
            if len(returned) != len(self.names):
                raise HandlerError(
                    f"the function returned {len(returned)} values, and returns= has {', '.join(self.names)}"
                )
            return returned
        raise HandlerError(
            f"the function returned {kind_of(returned)}: return a dict, a tuple, a list of those, or None"
        )


class RowWriter:
    """Rows as Arrow batches of a schema."""

    def __init__(self, schema: StructType) -> None:
        self._converters = [to_arrow(field.dataType) for field in schema.fields]
        self._schema = arrow_schema(schema)

    def batch(self, rows: Sequence[Values]) -> pa.RecordBatch:
        import pyarrow as pa

        columns = zip(zip(*rows, strict=True), self._converters, self._schema, strict=True)
        arrays = [_array(column, convert, field.name, field.type) for column, convert, field in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _array(column: Sequence[Any], convert: Converter | None, name: str, kind: pa.DataType) -> pa.Array:
    """Raises `HandlerError` for what a function returned and is not of the column's type: Arrow's own error, and
    Spark's, show the value."""
    import pyarrow as pa

    try:
        return pa.array(column if convert is None else [convert(one) for one in column], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AssertionError, PySparkException):
        raise HandlerError(
            f"the function returned {kind_of(_misfit(column, convert, kind))} for the column {name}, which is {kind}"
        ) from None


def _misfit(column: Sequence[Any], convert: Converter | None, kind: pa.DataType) -> Any:
    """The first value that cannot be in the column."""
    import pyarrow as pa

    for one in column:
        try:
            pa.array([one if convert is None else convert(one)], kind)
        except Exception:  # whatever it is, this is the one
            return one
    raise InternalError(f"a column of {len(column)} values is no Arrow array of {kind}, and each of them is one")
