"""Values between Arrow and Python: as Spark's own converters make them, and what cannot be of a type."""

from __future__ import annotations

import array
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - Spark's own custom
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion

from keylane.spark.structured.values import arrow_schema, as_numbers, to_arrow, to_python

MOMENT = datetime(2026, 11, 21, 12, 0, 1, 500)  # noqa: DTZ001 - as Spark's rows have it


class Point(T.UserDefinedType):
    """A pair, which Spark keeps as an array."""

    @classmethod
    def sqlType(cls) -> Any:  # noqa: N802
        return T.ArrayType(T.TimestampType())

    def serialize(self, obj: Any) -> Any:
        return list(obj)

    def deserialize(self, datum: Any) -> Any:
        return tuple(datum)


TIMESTAMP, INT, STRING, BINARY = T.TimestampType(), T.IntegerType(), T.StringType(), T.BinaryType()


def struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


CASES: list[tuple[Any, list[Any]]] = [
    (T.BooleanType(), [True, None, False]),
    (INT, [1, None]),
    (T.DoubleType(), [1.5, None]),
    (STRING, ["a", None, True, False, 7]),
    (BINARY, [b"a", bytearray(b"b"), None]),
    (T.DateType(), [date(2026, 1, 2), None]),
    (TIMESTAMP, [MOMENT, MOMENT.replace(tzinfo=UTC), None]),
    (T.TimestampNTZType(), [MOMENT, None]),
    (T.DayTimeIntervalType(), [timedelta(seconds=3), None]),
    (T.DecimalType(6, 2), [Decimal("1.005"), Decimal(2), Decimal("NaN"), None]),
    (T.NullType(), [None]),
    (T.ArrayType(INT), [[1, None], array.array("i", [2]), None]),
    (T.ArrayType(STRING), [["a", 1, None], None]),
    (T.ArrayType(BINARY), [[b"a", bytearray(b"b")]]),
    (T.MapType(STRING, TIMESTAMP), [{"a": MOMENT, "b": None}, None]),
    (T.MapType(BINARY, T.ArrayType(T.MapType(INT, STRING))), [{b"k": [{1: "x"}, None]}]),
    (struct(a=INT, b=struct(c=TIMESTAMP)), [(1, {"c": MOMENT}), {"a": 2}, T.Row(a=3, b=None), None]),
    (T.VariantType(), [T.VariantVal.parseJson('{"a": [1, 2]}'), None]),
    (Point(), [(MOMENT, None), None]),
]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=[str(kind) for kind, _ in CASES])
def test_values_are_what_sparks_own_converters_make_of_them(kind: T.DataType, values: list[Any]) -> None:
    (field,) = arrow_schema(struct(one=kind))
    ours, theirs = to_arrow(kind), LocalDataToArrowConversion._create_converter(kind)
    made = [pa.array(values if one is None else list(map(one, values)), field.type) for one in (ours, theirs)]
    assert made[0] == made[1]
    back = as_numbers(made[0]).to_pylist()
    convert, theirs = to_python(kind), ArrowTableToRowsConversion._create_converter(kind)
    found = back if convert is None else list(map(convert, back))
    wanted = list(map(theirs, made[0].to_pylist()))
    assert str(found) == str(wanted), "VariantVal has no equality"
    assert [type(one) for one in found] == [type(one) for one in wanted]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (BINARY, "text"),
        (TIMESTAMP, "2026"),
        (T.TimestampNTZType(), MOMENT.replace(tzinfo=UTC)),
        (T.DecimalType(4, 2), Decimal("123.4")),
        (T.DecimalType(4, 2), 1),
        (T.NullType(), 1),
        (T.ArrayType(INT), "abc"),
        (T.MapType(STRING, INT), [("a", 1)]),
        (struct(a=INT, b=INT), (1,)),
        (struct(a=INT), 1),
        (T.MapType(STRING, INT), {None: 1}),
        (INT, 1.5),
        (T.LongType(), Decimal("1.5")),
        (T.ArrayType(INT), [2, float("nan")]),
        (struct(a=INT), {"a": 1.9}),
    ],
)
def test_what_cannot_be_of_the_type_is_an_error_that_rows_name(kind: T.DataType, value: Any) -> None:
    convert = to_arrow(kind)
    assert convert is not None
    with pytest.raises((TypeError, ValueError)):
        convert(value)
