"""Rows of Arrow batches for a user's function, and what it returns as Arrow batches again.

Spark's own converters make the rows, so that a function sees the values that `collect()` gives.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import Row, _create_row

from keylane.errors import HandlerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

_SHOWN_CHARACTERS = 80


@dataclass(slots=True)
class Outcome:
    """What became of one row."""

    row: Row
    values: list[tuple[Any, ...]] | None
    """The rows that it became; None when it failed."""
    error: BaseException | None
    attempts: int
    seconds: float
    key: bytes | None = None
    carried: bool = False
    """It leaves the batch."""


class RowReader:
    """Arrow batches as rows."""

    def __init__(self, schema: StructType, keys: Sequence[str] | None) -> None:
        self._names = schema.fieldNames()
        self._converters = [
            ArrowTableToRowsConversion._create_converter(field.dataType, binary_as_bytes=True)  # noqa: SLF001
            for field in schema.fields
        ]
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


def _key(values: list[Any]) -> bytes | None:
    if len(values) == 1 and isinstance(values[0], bytes | None):
        return values[0]
    return None if all(one is None for one in values) else pickle.dumps(values)


class RowWriter:
    """What functions return as Arrow batches of a schema."""

    def __init__(self, schema: StructType) -> None:
        self.names = schema.fieldNames()
        self._known = set(self.names)
        self._converters = [LocalDataToArrowConversion._create_converter(field.dataType) for field in schema.fields]  # noqa: SLF001
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self.nothing = (None,) * len(self.names)

    def values(self, returned: Any) -> list[tuple[Any, ...]]:
        """The rows that a function returned: None, a dict, a tuple, or a list of those.

        Raises `HandlerError` for anything else.
        """
        if returned is None:
            return []
        if isinstance(returned, list):
            return [self._one(one) for one in returned]
        return [self._one(returned)]

    def _one(self, returned: Any) -> tuple[Any, ...]:
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
        text = repr(returned)[:_SHOWN_CHARACTERS]
        raise HandlerError(f"the function returned {text}: return a dict, a tuple, a list of those, or None")

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [
            list(column) if convert is None else [convert(one) for one in column]
            for column, convert in zip(zip(*rows, strict=True), self._converters, strict=True)
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
