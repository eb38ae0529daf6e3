"""Values as Arrow has them, and as Python does: those that `collect()` gives, on every Spark.

The idea: PySpark's own converters are internal, are others in each version, and in 3.5 ask for pandas. These are made
once a column, and None is the converter of a type whose values are the same on both sides. Times cross as numbers, as
Spark keeps them: Arrow's own Python values end with the year 9999 in UTC. Arrow is not imported here but where columns
are viewed (see `rows`).
"""

from __future__ import annotations

import array
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
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
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of times without a zone
_EPOCH_ORDINAL = _EPOCH.toordinal()


class Instant(int):
    """Microseconds since the epoch that are known to be one."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark asks for it from Python: types and nullability must match exactly."""
    return to_arrow_schema(schema, timezone="UTC") if TIMEZONES.here else to_arrow_schema(schema)


def as_numbers(column: pa.Array, *, texts: bool = False) -> pa.Array:
    """The column with its times as numbers, and with `texts` its strings as bytes; nothing is copied but nulls without
    a type."""
    there = column.type
    kind = _numbers_of(there, texts=texts)
    if kind is there:
        return column
    return column.cast(kind) if "null" in str(there) else column.view(kind)


def _numbers_of(kind: pa.DataType, *, texts: bool) -> pa.DataType:
    """The same object where nothing in it is another type."""
    import pyarrow as pa

    of, is_ = partial(_numbers_of, texts=texts), pa.types
    if is_.is_timestamp(kind):
        return pa.int64()
    if is_.is_date32(kind):
        return pa.int32()
    if is_.is_null(kind):  # in structs, views of them and casts of their lists make broken arrays
        return pa.int8()
    if texts and (is_.is_string(kind) or is_.is_large_string(kind)):
        return pa.binary() if is_.is_string(kind) else pa.large_binary()
    if is_.is_list(kind) or is_.is_large_list(kind):
        inside = kind.value_type
        element = of(inside)
        made = pa.list_ if is_.is_list(kind) else pa.large_list
        return kind if element is inside else made(kind.value_field.with_type(element))
    if is_.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        types_ = [one.type for one in inner]
        changed = [*map(of, types_)]
        if all(a is b for a, b in zip(types_, changed, strict=True)):
            return kind
        return pa.struct([one.with_type(other) for one, other in zip(inner, changed, strict=True)])
    if is_.is_map(kind):
        keys, items = kind.key_type, kind.item_type
        key, item = of(keys), of(items)
        if key is keys and item is items:
            return kind
        return pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
    return kind


def to_python(kind: DataType, *, texts: bool = False) -> Converter | None:
    """From what `to_pylist` gives of a column `as_numbers`. Raises `ValueError` or `OverflowError` for a value that
    Python does not have: a time beyond the year 9999."""
    convert = _to_python(kind, texts=texts)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _to_python(kind: DataType, *, texts: bool) -> Converter | None:
    of = partial(to_python, texts=texts)
    match kind:
        case StructType():
            names, inner = kind.names, [of(field.dataType) for field in kind.fields]
            return lambda value: _create_row(names, _each(inner, value.values()))
        case ArrayType():
            element = of(kind.elementType)
            return None if element is None else lambda value: [*map(element, value)]
        case MapType():
            pair = [of(kind.keyType), of(kind.valueType)]
            return lambda value: {key: one for key, one in (_each(pair, both) for both in value)}  # noqa: C416
        case TimestampType():
            return _local_time
        case TimestampNTZType():
            return lambda value: _EPOCH + timedelta(microseconds=value)
        case DateType():
            return lambda value: date.fromordinal(value + _EPOCH_ORDINAL)
        case StringType() if texts:
            return lambda value: value.decode(errors="replace")
        case UserDefinedType():
            of_sql = of(kind.sqlType())
            return kind.deserialize if of_sql is None else lambda value: kind.deserialize(of_sql(value))
    return _NEWER.get(kind.typeName())


def _local_time(value: int) -> datetime:
    """With `fold`, by which the second instant of an hour that comes twice is known."""
    seconds, rest = divmod(value, 1_000_000)
    return datetime.fromtimestamp(seconds).replace(microsecond=rest)  # noqa: DTZ006 - what `collect()` gives


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
    if convert is None or convert in (_text, _bytes, whole):  # the most frequent ones look for None themselves
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
            return _instant
        case TimestampNTZType():
            return _without_zone
        case DecimalType():
            return _decimal(kind)
        case StringType():
            return _text
        case IntegralType():
            return whole
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


def whole(value: object) -> object:
    """Arrow would cut a fraction off."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, float | Decimal) and value != int(value):
        raise ValueError("a fraction, where the type has whole numbers")
    return value


def _bytes(value: object) -> bytes | None:
    return value if value is None or type(value) is bytes else bytes(_a(value, bytearray, bytes))


def _nothing(value: object) -> None:
    raise ValueError(f"{type(value).__name__}, where the type has only None")


def _without_zone(value: object) -> datetime:
    time = _a(value, datetime)
    if time.tzinfo is not None:
        raise ValueError("a time with a time zone, where the type has none")
    return time


def _instant(value: object) -> int:
    """Of a time with a zone, or of this machine's; with `fold`."""
    if isinstance(value, Instant):
        return int(value)
    time = _a(value, datetime)
    return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond


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
