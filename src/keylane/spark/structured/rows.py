"""Rows of Arrow batches for a user's function, and what it returns as Arrow batches again.

A function sees the values that `collect()` gives (`values`). Arrow is imported where batches are made: lanes import
this too and need none, it takes 0.2 s of a processor, and it starts threads, which a daemon that forks workers must not
have.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.types import Row, _create_row

from keylane.errors import Fatal, HandlerError, InternalError
from keylane.spark.structured.ordering import plain_key
from keylane.spark.structured.values import arrow_schema, as_numbers, to_arrow, to_python
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
        """The engine bounds their number and size."""
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


class Unreadable:
    """In the place of a value that Python does not have. Who reads it fails."""

    __slots__ = ("column", "stored")

    def __init__(self, column: str, stored: Any) -> None:
        self.column = column
        self.stored = stored
        """As Spark has it: of a timestamp, microseconds since the epoch."""

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, Any]]:
        return Unreadable, (self.column, self.stored)

    def read(self) -> NoReturn:
        raise Fatal(
            f"the column {self.column} has a value here that Python does not have, such as a time beyond the year "
            "9999: leave the column unread, or cast it before"
        )


class PartlyReadable(Row):
    """A row with such values: the others are read as ever."""

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        for one in found if isinstance(item, slice) else (found,):
            if type(one) is Unreadable:
                one.read()
        return found

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            if type(one) is Unreadable:
                one.read()
            yield one

    def __repr__(self) -> str:
        return f"<a row that Python has in part: {', '.join(self.__fields__)}>"


def as_stored(row: Row) -> tuple[Any, ...]:
    """The values, and what stands for those that Python does not have."""
    return tuple(tuple.__iter__(row))


def _row(names: Any, values: Any) -> Row:
    if any(type(one) is Unreadable for one in values):
        row = PartlyReadable(*values)
        row.__fields__ = names
        return row
    return _create_row(names, values)


class RowReader:
    """Arrow batches as rows."""

    def __init__(self, schema: StructType, keys: Sequence[str] | None) -> None:
        """`schema` is of the rows; `keys` are columns of it, and the batches as `ordering.with_keys` makes them."""
        self._names = schema.fieldNames()
        self._kinds = [field.dataType for field in schema.fields]
        self._converters = [to_python(kind) for kind in self._kinds]
        plain = plain_key(schema, keys)
        self._key = None if plain is None else self._names.index(plain)
        self._is_hashed = keys is not None and plain is None

    def rows(self, batch: pa.RecordBatch) -> list[tuple[Row, bytes | None]]:
        """Each row with its key as bytes; None is a row without a key, which waits for no other."""
        count = len(self._names)
        made: Callable[[Any, Any], Row] = _create_row
        columns = []
        for index in range(count):
            values, are_readable = self._values(batch.column(index), index)
            columns.append(values)
            if not are_readable:
                made = _row
        rows = [made(self._names, values) for values in zip(*columns, strict=True)]
        if self._is_hashed:  # Spark has made the hash: the column behind the others
            numbers = batch.column(count).to_pylist()
            keys = [None if number is None else number.to_bytes(8, signed=True) for number in numbers]
        elif self._key is not None:
            keys = as_numbers(batch.column(self._key), texts=True).to_pylist()
        else:
            keys = [None] * len(rows)
        return list(zip(rows, keys, strict=True))

    def _values(self, column: pa.Array, index: int) -> tuple[list[Any], bool]:
        """Of a column; whether Python has all of them."""
        convert = self._converters[index]
        try:
            values = as_numbers(column).to_pylist()
        except UnicodeDecodeError:  # Spark's strings may hold any bytes, and `collect()` replaces what is no text
            values = as_numbers(column, texts=True).to_pylist()
            convert = to_python(self._kinds[index], texts=True)
        if convert is None:
            return values, True
        try:
            return [convert(one) for one in values], True
        except Exception:  # a type of the user's may raise anything
            return [self._readable(convert, one, index) for one in values], False

    def _readable(self, convert: Converter, value: Any, index: int) -> Any:
        try:
            return convert(value)
        except Exception:  # as above
            return Unreadable(self._names[index], value)


def row_departs(fed: FedRow) -> bytes:
    """A row that was fed, on its way to a worker process."""
    row = fed.value
    return pickle.dumps((row.__fields__, as_stored(row)))


def row_arrives(data: bytes) -> Row:
    """The same, there."""
    names, values = pickle.loads(data)
    return _row(names, values)


def replaced(row: Row, values: Mapping[str, object]) -> Row:
    """The row with other values in these columns."""
    names = row.__fields__
    return _row(names, [values.get(name, value) for name, value in zip(names, as_stored(row), strict=True)])


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


def timestamp_ms_of(row: Row) -> int | None:
    """The record's time, where the row has it: also one that Python does not have."""
    if "timestamp" not in row.__fields__:
        return None
    at = as_stored(row)[row.__fields__.index("timestamp")]
    if at is None:
        return None
    return int(at.stored // 1000) if isinstance(at, Unreadable) else round(at.timestamp() * 1000)


def headers_of(row: Row) -> list[tuple[str, bytes | None]]:
    """The record's headers, where the row has them."""
    return [(header["key"], header["value"]) for header in column(row, "headers") or ()]


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


def size_of(value: Any) -> int:
    """About the bytes of what a function returned."""
    if isinstance(value, bytes | str | bytearray):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return sum(map(size_of, value.values())) if isinstance(value, dict) else 8


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
