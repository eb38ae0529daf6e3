"""Values as Arrow has them, and as Python does: those that `collect()` gives, on every Spark.

The idea: PySpark's own converters are internal, are others in each version, and in 3.5 ask for pandas. These are made
once a column, and None is the converter of a type whose values are the same on both sides. Arrow is not imported here
(see `rows`).
"""

from __future__ import annotations

import array
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    _create_row,
)

from keylane.spark.versions import TIMEZONES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    Converter = Callable[[Any], Any]

T = TypeVar("T")


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark asks for it from Python: types and nullability must match exactly."""
    return to_arrow_schema(schema, timezone="UTC") if TIMEZONES.here else to_arrow_schema(schema)


def to_python(kind: DataType) -> Converter | None:
    """From what Arrow's `to_pylist` gives."""
    convert = _to_python(kind)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _to_python(kind: DataType) -> Converter | None:
    match kind:
        case StructType():
            names, inner = kind.names, [to_python(field.dataType) for field in kind.fields]
            return lambda value: _create_row(names, _each(inner, value.values()))
        case ArrayType():
            element = to_python(kind.elementType)
            return None if element is None else lambda value: [*map(element, value)]
        case MapType():
            pair = [to_python(kind.keyType), to_python(kind.valueType)]
            return lambda value: {key: one for key, one in (_each(pair, both) for both in value)}  # noqa: C416
        case TimestampType():
            return lambda value: value.astimezone().replace(tzinfo=None)
        case UserDefinedType():
            of_sql = to_python(kind.sqlType())
            return kind.deserialize if of_sql is None else lambda value: kind.deserialize(of_sql(value))
    return _NEWER.get(kind.typeName())


_NEWER: dict[str, Converter] = {
    "variant": lambda value: types.VariantVal(value["value"], value["metadata"]),
    "geography": lambda value: types.Geography.fromWKB(value["wkb"], value["srid"]),
    "geometry": lambda value: types.Geometry.fromWKB(value["wkb"], value["srid"]),
}
"""Types that PySpark 3.5 does not know, by their names."""


def to_arrow(kind: DataType, *, nullable: bool = True) -> Converter | None:
    """For `pyarrow.array`. A converter raises `TypeError` or `ValueError` for what cannot be of the type."""
    convert = _to_arrow(kind)
    if not nullable:
        return _never_none(convert)
    if convert is None or convert in (_text, _bytes):  # the most frequent ones look for None themselves
        return convert
    return lambda value: None if value is None else convert(value)


def _to_arrow(kind: DataType) -> Converter | None:
    match kind:
        case NullType():
            return _nothing
        case StructType():
            return _struct(kind)
        case ArrayType():
            element = to_arrow(kind.elementType, nullable=kind.containsNull) or _itself
            return lambda value: [*map(element, _a(value, list, array.array))]
        case MapType():
            pair = [to_arrow(kind.keyType, nullable=False), to_arrow(kind.valueType, nullable=kind.valueContainsNull)]
            return lambda value: [_each(pair, one) for one in _a(value, dict).items()]
        case BinaryType():
            return _bytes
        case TimestampType():
            return lambda value: _a(value, datetime).astimezone(UTC)
        case TimestampNTZType():
            return _without_zone
        case DecimalType():
            return _decimal(kind)
        case StringType():
            return _text
        case UserDefinedType():
            of_sql = to_arrow(kind.sqlType()) or _itself
            return lambda value: of_sql(kind.serialize(value))
    return kind.toInternal if kind.typeName() in _NEWER else None


def _each(converters: list[Converter | None], values: Iterable[object]) -> tuple[object, ...]:
    """Each value by its own converter."""
    return tuple(one if convert is None else convert(one) for convert, one in zip(converters, values, strict=True))


def _itself(value: object) -> object:
    return value


def _never_none(convert: Converter | None) -> Converter:
    def checked(value: object) -> object:
        if value is None:
            raise ValueError("None, where the type has none")
        return value if convert is None else convert(value)

    return checked


def _a(value: object, kind: type[T], other: type[T] | None = None) -> T:
    """The value, if it is of these. Raises `TypeError`."""
    if isinstance(value, kind) or (other is not None and isinstance(value, other)):
        return value
    raise TypeError(f"{type(value).__name__} is no {kind.__name__}")


def _text(value: object) -> str | None:
    if value is None or type(value) is str:
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bytes(value: object) -> bytes | None:
    return value if value is None or type(value) is bytes else bytes(_a(value, bytearray, bytes))


def _nothing(value: object) -> None:
    raise ValueError(f"{type(value).__name__}, where the type has only None")


def _without_zone(value: object) -> datetime:
    time = _a(value, datetime)
    if time.tzinfo is not None:
        raise ValueError("a time with a time zone, where the type has none")
    return time


def _struct(kind: StructType) -> Converter:
    """From a tuple (a Row), a dict, or an object with attributes."""
    names = kind.names
    inner = [to_arrow(field.dataType, nullable=field.nullable) for field in kind.fields]

    def convert(value: object) -> dict[str, object]:
        if not isinstance(value, tuple):
            fields = value if isinstance(value, dict) else vars(value)
            value = [fields.get(name) for name in names]
        return dict(zip(names, _each(inner, value), strict=True))

    return convert


def _decimal(kind: DecimalType) -> Converter:
    """To the type's scale, rounded as Spark does."""
    step, context = Decimal(1).scaleb(-kind.scale), Context(prec=kind.precision, rounding=ROUND_HALF_EVEN)

    def convert(value: object) -> Decimal | None:
        number = _a(value, Decimal)
        if number.is_nan():
            return None
        try:
            return number.quantize(step, context=context)
        except InvalidOperation:
            raise ValueError(f"more digits than {kind.simpleString()} has") from None

    return convert
