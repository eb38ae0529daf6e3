"""`check_schema`: refuses what cannot cross between Spark and Python, before a task fails with an error of Arrow's that
names no column. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, MapType, StructType, YearMonthIntervalType

from keylane.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def check_schema(what: str, schema: StructType) -> None:
    """Raises `UsageError` for no columns, for two of one name, also in a struct, and for intervals of months."""
    if not schema.fields:
        raise UsageError(f"{what} has no columns, and Spark gives a function no rows of none: select one")
    if twice := _twice(schema):
        raise UsageError(
            f"{what} has more than one column {twice!r}, which a row's names do not tell apart: rename one, or drop it"
        )
    for field in schema.fields:
        _check(what, field.name, field.dataType)


def _check(what: str, column: str, kind: DataType) -> None:
    match kind:
        case StructType():
            if twice := _twice(kind):
                raise UsageError(
                    f"{what} has a column {column!r} with more than one field {twice!r} in a struct, which Arrow does "
                    "not have: rename one"
                )
            for field in kind.fields:
                _check(what, column, field.dataType)
        case ArrayType():
            _check(what, column, kind.elementType)
        case MapType():
            _check(what, column, kind.keyType)
            _check(what, column, kind.valueType)
        case YearMonthIntervalType():
            raise UsageError(
                f"{what} has a column {column!r} of {kind.simpleString()}, which Python does not have: cast it to a "
                "string or a number of months, or drop it"
            )


def _twice(struct: StructType) -> str | None:
    return next((name for name, count in Counter(struct.fieldNames()).items() if count > 1), None)
