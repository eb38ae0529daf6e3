"""Records of a partition as one Arrow batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from keylane.errors import PeerError
from keylane.kafka.ranges import Columns
from keylane.spark.structured.columns import MAX_MS, record_batch, source_schema
from keylane.spark.structured.values import arrow_schema

SCHEMA = arrow_schema(source_schema(include_headers=False))


def columns(values: list[bytes | None], times: list[int] | None = None, types: list[int] | None = None) -> Columns:
    count = len(values)
    return Columns([None] * count, values, [*range(7, 7 + count)], times or [0] * count, types or [1] * count, None)


def column(name: str, made: Columns) -> list[Any]:
    batch = record_batch(made, "t", 3, SCHEMA)
    batch.validate(full=True)
    found: list[Any] = batch.column(name).to_pylist()
    return found


@pytest.mark.parametrize(
    "values", [[b"a", b"", b"bcd"], [b"", b""], [b"a", None, b"bc", b""], [None], [bytes(5_000)] * 3]
)
def test_values_are_as_they_were(values: list[bytes | None]) -> None:
    assert column("value", columns(values)) == values


def test_times_are_microseconds_and_their_types_are_kafka_s() -> None:
    made = columns([b"v"] * 4, [0, 1, -1, MAX_MS], [0, 1, 2, 1])
    times = record_batch(made, "t", 3, SCHEMA).column("timestamp").cast("int64").to_pylist()
    assert times == [0, 1_000, -1_000, MAX_MS * 1_000]
    assert column("timestampType", made) == [-1, 0, 1, 0]
    assert column("timestampType", columns([b"v"] * 2)) == [0, 0]
    assert column("timestamp", columns([b"v"], [1_500])) == [datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)]


@pytest.mark.parametrize("beyond", [MAX_MS + 1, -MAX_MS - 1, 2**63 - 1])
def test_a_time_that_spark_does_not_have_is_told_with_its_record(beyond: int) -> None:
    with pytest.raises(PeerError, match=rf"^t-3@8: its timestamp is {beyond} ms"):
        record_batch(columns([b"v"] * 3, [MAX_MS, beyond, 0]), "t", 3, SCHEMA)
