"""What is kept of a row comes back as it was, for every type that a column of `returns` may have."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    VariantVal,
)
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from keylane.spark.structured.kept_rows import KeptOutputs
from keylane.spark.structured.rows import RowWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, FAR = datetime(1700, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001 - as Spark's functions have them


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


PLAIN: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), whole(8)),
    (ShortType(), whole(16)),
    (IntegerType(), whole(32)),
    (LongType(), whole(64)),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats()),
    (DecimalType(38, 18), st.decimals(-(10**18), 10**18, places=18)),
    (DecimalType(5, 2), st.decimals(Decimal("-999.99"), Decimal("999.99"), places=2)),
    (StringType(), st.text(st.characters(exclude_categories=["Cs"]))),
    (BinaryType(), st.binary()),
    (DateType(), st.dates(date(1, 1, 1))),
    (TimestampType(), st.datetimes(OLD, FAR) | st.datetimes(OLD, FAR, timezones=st.just(UTC))),
    (TimestampNTZType(), st.datetimes()),
    (TimeType(), st.times()),
    (DayTimeIntervalType(), st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000))),
    (NullType(), st.none()),
    (VariantType(), st.builds(VariantVal, st.binary(), st.binary())),
    (ExamplePointUDT(), st.builds(ExamplePoint, st.floats(allow_nan=False), st.floats(allow_nan=False))),
]
KEYS = [one for one in PLAIN if isinstance(one[0], StringType | LongType | BinaryType | DateType | BooleanType)]
Typed = tuple[DataType, st.SearchStrategy[Any]]


def nested(inside: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def array(one: Typed) -> Typed:
        return ArrayType(one[0]), st.lists(st.none() | one[1], max_size=3)

    def mapped(key: Typed, one: Typed) -> Typed:
        return MapType(key[0], one[0]), st.dictionaries(key[1], st.none() | one[1], max_size=3)

    def struct(some: list[Typed]) -> Typed:
        fields = StructType([StructField(f"f{number}", one[0]) for number, one in enumerate(some)])
        values = st.tuples(*(st.none() | one[1] for one in some))
        return fields, values | values.map(lambda made: dict(zip(fields.names, made, strict=True)))

    return (
        inside.map(array)
        | st.builds(mapped, st.sampled_from(KEYS), inside)
        | st.lists(inside, min_size=1, max_size=3).map(struct)
    )


types = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=5)


@given(st.data(), st.lists(types, min_size=1, max_size=4))
def test_kept_rows_come_back_as_they_were(data: st.DataObject, columns: list[Typed]) -> None:
    schema = StructType([StructField(f"c{number}", kind) for number, (kind, _) in enumerate(columns)])
    rows = data.draw(st.lists(st.tuples(*(st.none() | one for _, one in columns)), max_size=4))
    outputs = KeptOutputs(schema, data.draw(st.none() | st.just("run step")))
    again = outputs.again(outputs.kept(rows))
    assert len(again) == len(rows)
    if rows:
        same(RowWriter(schema), rows, again)
    assert outputs.kept(again) == outputs.kept(rows)


def same(writer: RowWriter, rows: list[tuple[Any, ...]], again: list[tuple[Any, ...]]) -> None:
    """What Spark gets of them; text, as a NaN is not equal to itself."""
    first, second = writer.batch(rows), writer.batch(again)
    assert first.schema == second.schema
    assert str(first.to_pylist()) == str(second.to_pylist())


def test_nulls_without_a_type_in_a_struct_are_kept() -> None:
    inner = StructType([StructField("day", DateType()), StructField("none", ArrayType(NullType()))])
    schema, rows = StructType([StructField("of", inner)]), [((date(2026, 1, 2), [None, None]),), (None,)]
    outputs = KeptOutputs(schema, None)
    same(RowWriter(schema), rows, outputs.again(outputs.kept(rows)))


@pytest.fixture(params=["Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def _zone(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()  # of what TZ was before


@pytest.mark.usefixtures("_zone")
def test_the_hour_that_comes_twice_is_told_apart() -> None:
    """To Spark's own converters, which make local times, it is not."""
    schema = StructType([StructField("at", TimestampType()), StructField("some", ArrayType(TimestampType()))])
    spring, autumn = datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)
    half_hours = [begin + timedelta(minutes=30 * number) for begin in (spring, autumn) for number in range(1_200)]
    rows = [(one, [one]) for one in half_hours]
    outputs = KeptOutputs(schema, None)
    same(RowWriter(schema), rows, outputs.again(outputs.kept(rows)))
    assert RowWriter(schema).batch(rows).to_pylist() == [{"at": one, "some": [one]} for one in half_hours]


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_any_number_of_rows_is_kept(count: int) -> None:
    schema = StructType([StructField("n", LongType()), StructField("text", StringType())])
    outputs = KeptOutputs(schema, None)
    rows = [(number, "x" * (number % 7)) for number in range(count)]
    assert outputs.again(outputs.kept(rows)) == rows
