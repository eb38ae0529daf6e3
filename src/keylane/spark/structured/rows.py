"""Rows of Arrow batches for a user's function, and what it returns as Arrow batches again.

A function sees the values that `collect()` gives (`values`). Arrow is imported where batches are made: lanes import
this too and need none, it takes 0.2 s of a processor, and it starts threads, which a daemon that forks workers must not
have.
"""

from __future__ import annotations

import pickle
from collections import namedtuple
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.types import Row

from keylane.errors import Fatal, HandlerError, InternalError
from keylane.spark.structured.ordering import plain_key
from keylane.spark.structured.values import arrow_schema, as_numbers, to_arrow, to_python, whole
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from keylane.flow.items import Carried

    Converter = Callable[[Any], Any]
    Values = tuple[Any, ...]
    """Of a row that goes back to Spark."""


RECORD = frozenset({"topic", "partition", "offset"})
"""The columns that say which record a row is."""

ROW_CLASSES = 100
"""Classes of rows that a process keeps, the last ones."""


class TaskRow:
    """A row of a task: what was fed to the flow, and what became of it."""

    __slots__ = ("_key", "attempts", "carried", "error", "number", "row", "seconds", "size", "values")

    def __init__(self, row: Carried, key: bytes | None, number: int) -> None:
        self.row = row
        self._key = key
        self.number = number
        """Of the row in its task."""
        self.values: list[Values] | None = None
        """The rows that it became; None until then, and when it failed."""
        self.size = 0
        """About the bytes of those."""
        self.error: BaseException | None = None
        self.attempts = 0
        self.seconds = 0.0
        """Of the last attempt."""
        self.carried = False
        """It leaves the batch."""

    def __len__(self) -> int:
        """The engine bounds their number and size."""
        return 1

    def __reduce__(self) -> tuple[Callable[..., TaskRow], tuple[Any, ...]]:
        """What a worker process gives back: what became of it."""
        return _answered, (self.values, self.size, self.seconds)

    def offset(self) -> int:
        return self.number

    def key(self) -> bytes | None:
        return self._key


def _answered(values: list[Values], size: int, seconds: float) -> TaskRow:
    row = TaskRow(None, None, -1)
    row.values, row.size, row.seconds = values, size, seconds
    return row


_NOT_YET = object()


class Unread:
    """A value as Arrow has it, in its place in a row. It is converted when it is read, and that may fail: of times
    beyond the year 9999, for example."""

    __slots__ = ("_convert", "_value", "column", "stored")

    def __init__(self, column: str, convert: Converter, stored: Any) -> None:
        self.column = column
        self.stored = stored
        """As Spark has it: of a timestamp, microseconds since the epoch."""
        self._convert = convert
        self._value: Any = _NOT_YET

    def __reduce__(self) -> tuple[type[Unread], tuple[object, ...]]:
        """Only what cannot be read travels."""
        return Unread, (self.column, _not_here, self.stored)

    def __str__(self) -> str:
        """For what formats a tuple: the value's."""
        return str(self.read())

    def __repr__(self) -> str:
        return repr(self.read())

    def read(self) -> Any:
        """Raises `Fatal` for a value that Python does not have."""
        if self._value is _NOT_YET:
            try:
                self._value = self._convert(self.stored)
            except Exception:  # a type of the user's may raise anything, with the value in its text
                raise Fatal(
                    f"the column {self.column} has a value here that Python does not have, such as a time beyond the "
                    "year 9999: leave the column unread, or cast it before"
                ) from None
        return self._value


def _not_here(_: Any) -> NoReturn:
    raise ValueError("a value that was not read where it came from")


class LazyRow(Row):
    """A row with values that are converted when they are read. What `tuple` does in C looks at the values themselves,
    and is done here on those that were read."""

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        if type(found) is Unread:
            return found.read()
        return tuple(map(_read, found)) if isinstance(item, slice) else found

    def __iter__(self) -> Iterator[Any]:
        return map(_read, super().__iter__())

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except Fatal:
            return f"<a row that Python has in part: {', '.join(self.__fields__)}>"

    def __eq__(self, other: object) -> bool:
        return tuple(self) == other

    def __ne__(self, other: object) -> bool:
        return tuple(self) != other

    def __lt__(self, other: Any) -> bool:
        return bool(tuple(self) < other)

    def __le__(self, other: Any) -> bool:
        return bool(tuple(self) <= other)

    def __gt__(self, other: Any) -> bool:
        return bool(tuple(self) > other)

    def __ge__(self, other: Any) -> bool:
        return bool(tuple(self) >= other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __add__(self, other: Any) -> Any:
        return tuple(self) + other

    def __radd__(self, other: Any) -> Any:
        return other + tuple(self)

    def __mul__(self, times: Any) -> Any:
        return tuple(self) * times

    __rmul__ = __mul__

    def index(self, *args: Any) -> int:
        return tuple(self).index(*args)

    def count(self, value: Any) -> int:
        return tuple(self).count(value)


def _read(value: Any) -> Any:
    return value.read() if type(value) is Unread else value


def as_stored(row: Row) -> tuple[Any, ...]:
    """The values, and what stands for those that were not converted."""
    return tuple(tuple.__iter__(row))


@lru_cache(ROW_CLASSES)
def row_class(names: tuple[str, ...], lazy: frozenset[int]) -> type[Row]:
    """A class of rows with these columns, whose values Python reads by name without a call, but for the columns
    `lazy`."""
    places = namedtuple("places", [f"place_{number}" for number in range(len(names))])  # type: ignore[misc]
    own: dict[str, Any] = {"__fields__": list(names), "__module__": Row.__module__, "__qualname__": Row.__qualname__}
    for number, name in reversed([*enumerate(names)]):
        if not name.startswith("__") and not hasattr(Row, name):  # as Row has it: its own attributes come first
            own[name] = property(itemgetter(number)) if number in lazy else getattr(places, f"place_{number}")
    return type(Row.__name__, (LazyRow if lazy else Row,), own)


def _row(names: Sequence[str], values: Sequence[Any]) -> Row:
    lazy = frozenset(number for number, one in enumerate(values) if type(one) is Unread)
    return tuple.__new__(row_class(tuple(names), lazy), values)


class RowReader:
    """Arrow batches as rows."""

    def __init__(self, schema: StructType, keys: Sequence[str] | None) -> None:
        """`schema` is of the rows; `keys` are columns of it, and the batches as `ordering.with_keys` makes them."""
        self._names = tuple(schema.fieldNames())
        self._kinds = [field.dataType for field in schema.fields]
        self._converters = [to_python(kind) for kind in self._kinds]
        plain = plain_key(schema, keys)
        self._key = None if plain is None else self._names.index(plain)
        self._is_hashed = keys is not None and plain is None

    def rows(self, batch: pa.RecordBatch) -> list[tuple[Row, bytes | None]]:
        """Each row with its key as bytes; None is a row without a key, which waits for no other."""
        count = len(self._names)
        columns, lazy = [], set()
        for index in range(count):
            values, is_lazy = self._values(batch.column(index), index)
            columns.append(values)
            if is_lazy:
                lazy.add(index)
        made = row_class(self._names, frozenset(lazy))
        rows = map(tuple.__new__, repeat(made), zip(*columns, strict=True))
        return list(zip(rows, self._keys(batch), strict=True))

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        if self._is_hashed:  # Spark has made the hash: the column behind the others
            numbers = batch.column(len(self._names)).to_pylist()
            return [None if number is None else number.to_bytes(8, signed=True) for number in numbers]
        if self._key is None:
            return [None] * batch.num_rows
        keys: list[bytes | None] = as_numbers(batch.column(self._key), texts=True).to_pylist()
        return keys

    def _values(self, column: pa.Array, index: int) -> tuple[list[Any], bool]:
        """Of a column; whether there are some that are converted when they are read."""
        convert = self._converters[index]
        try:
            values = as_numbers(column).to_pylist()
        except UnicodeDecodeError:  # Spark's strings may hold any bytes, and `collect()` replaces what is no text
            values = as_numbers(column, texts=True).to_pylist()
            convert = to_python(self._kinds[index], texts=True)
        if convert is None:
            return values, False
        name = self._names[index]
        return [None if one is None else Unread(name, convert, one) for one in values], True


def row_departs(fed: TaskRow) -> bytes:
    """A row that was fed, on its way to a worker process: converted here."""
    return pickle.dumps((fed.row.__fields__, [_readable(one) for one in as_stored(fed.row)]))


def _readable(value: Any) -> Any:
    try:
        return _read(value)
    except Fatal:  # for who reads it there
        return value


def row_arrives(data: bytes) -> TaskRow:
    """The same, there."""
    return TaskRow(_row(*pickle.loads(data)), None, -1)


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
    return number_of(number)


def number_of(number: int) -> str:
    """How errors name the row of this number, from 0 on, in its task."""
    context = TaskContext.get()
    where = "its task" if context is None else f"Spark's partition {context.partitionId()}"
    return f"row {number + 1} of {where}"


def column(row: Row, name: str) -> Any:
    """None where the row has no such column."""
    return row[name] if name in row.__fields__ else None


def bytes_of(row: Row, name: str) -> Any:
    """The column of strings or binary values as Spark has it, whose strings may hold any bytes; None where there is no
    such column."""
    found = as_stored(row)[row.__fields__.index(name)] if name in row.__fields__ else None
    return found.stored if isinstance(found, Unread) else found


def timestamp_ms_of(row: Row) -> int | None:
    """The record's time, where the row has it: also one that Python does not have."""
    if "timestamp" not in row.__fields__:
        return None
    at = as_stored(row)[row.__fields__.index("timestamp")]
    if at is None:
        return None
    return int(at.stored // 1000) if isinstance(at, Unread) else round(at.timestamp() * 1000)


def headers_of(row: Row) -> list[tuple[str, bytes | None]]:
    """The record's headers, where the row has them. A header without a name, which a frame can have and a record
    cannot, is left out."""
    headers = column(row, "headers") or ()
    return [(one["key"], one["value"]) for one in headers if one is not None and one["key"] is not None]


class Returns:
    """What a function may return for a row: rows with these columns. Travels to worker processes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._known = frozenset(names)

    def rows(self, returned: Any) -> list[Values]:
        """The rows that a function returned: None, a dict, a tuple, or a list of those.

        Raises `Fatal` for anything else.
        """
        kind = type(returned)  # what most functions return is seen at once
        if kind is tuple and len(returned) == len(self.names):
            return [returned]
        if kind is dict and self._known.issuperset(returned):
            return [tuple(map(returned.get, self.names))]
        if returned is None:
            return []
        return [self._one(one) for one in (returned if isinstance(returned, list) else (returned,))]

    def of_each(self, returned: Any, count: int) -> Sequence[Any]:
        """What a function of so many rows returned for each of them: what it may return for one, or an exception.

        Raises `Fatal` for anything else.
        """
        if returned is None:
            return [None] * count
        if isinstance(returned, list | tuple) and len(returned) == count:
            return returned
        what = f"{len(returned)} results for {count} rows" if isinstance(returned, list | tuple) else kind_of(returned)
        raise Fatal(f"the function returned {what}: of a batch, return None, or a list with one result a row")

    def _one(self, returned: Any) -> Values:
        if isinstance(returned, Row) and hasattr(returned, "__fields__"):
            returned = returned.asDict()
        if isinstance(returned, dict):
            if unknown := sorted(set(returned) - self._known):
                raise Fatal(f"the function returned {unknown}, and returns= has {', '.join(self.names)}")
            return tuple(map(returned.get, self.names))
        if isinstance(returned, tuple):
            if len(returned) != len(self.names):
                raise Fatal(f"the function returned {len(returned)} values, and returns= has {', '.join(self.names)}")
            return returned
        raise Fatal(f"the function returned {kind_of(returned)}: return a dict, a tuple, a list of those, or None")


def size_of(rows: Iterable[Iterable[Any]]) -> int:
    """About the bytes of what a function returned."""
    size = 0
    for values in rows:
        for one in values:
            if isinstance(one, bytes | str | bytearray):
                size += len(one)
            elif isinstance(one, list | tuple):
                size += size_of((one,))
            else:
                size += size_of((one.values(),)) if isinstance(one, dict) else 8
    return size


WHOLE = {int, type(None)}
"""Types of values that need no look at a fraction."""


class RowWriter:
    """Rows as Arrow batches of a schema."""

    def __init__(self, schema: StructType) -> None:
        self._converters = [to_arrow(field.dataType, nullable=field.nullable) for field in schema.fields]
        self._schema = arrow_schema(schema)

    def batch(self, rows: Sequence[Values]) -> pa.RecordBatch:
        import pyarrow as pa

        columns = zip(zip(*rows, strict=True), self._converters, self._schema, strict=True)
        arrays = [_array(column, convert, field) for column, convert, field in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _array(column: Sequence[Any], convert: Converter | None, field: pa.Field) -> pa.Array:
    """Raises `HandlerError` for what a function returned and is not of the column's type: Arrow's own error, and
    Spark's, show the value."""
    import pyarrow as pa

    if convert is whole and WHOLE.issuperset(map(type, column)):
        convert = None
    try:
        return pa.array(column if convert is None else [convert(one) for one in column], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AssertionError, PySparkException):
        found = kind_of(_misfit(column, convert, field.type))
        kind = field.type if field.nullable else f"{field.type} not null"
        raise HandlerError(f"the function returned {found} for the column {field.name}, which is {kind}") from None


def _misfit(column: Sequence[Any], convert: Converter | None, kind: pa.DataType) -> Any:
    """The first value that cannot be in the column."""
    import pyarrow as pa

    for one in column:
        try:
            pa.array([one if convert is None else convert(one)], kind)
        except Exception:  # whatever it is, this is the one
            return one
    raise InternalError(f"a column of {len(column)} values is no Arrow array of {kind}, and each of them is one")
