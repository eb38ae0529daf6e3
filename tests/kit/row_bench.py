"""What contract tests of `parallel_map` have in common: where a step runs, and what rows tell of how they ran."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from keylane.spark import parallel_map
from keylane.spark.structured.columns import source_schema
from keylane.spark.structured.ordering import KEY, plain_key
from keylane.spark.structured.row_task import MapTask
from kit.contract import HANG_S, QUICK_S, ignore, other_than_usual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import keylane as kl

ROWS = 60
KEYS = 7
PARTITIONS = 4
COLUMNS = source_schema(include_headers=True)
RETURNS = StructType([StructField("number", LongType()), StructField("told", StringType())])


class Place(Protocol):
    """Where a step runs: all rows in one task."""

    def run(self, step: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]: ...


class Accumulator:
    """Spark's, as far as one process goes."""

    def __init__(self, value: Any, param: Any) -> None:
        self.value, self._param = value, param

    def add(self, term: Any) -> None:
        self.value = self._param.addInPlace(self.value, term)


def with_keys(step: Any, batch: pa.RecordBatch, schema: StructType = COLUMNS) -> pa.RecordBatch:
    """The rows with the column of their keys, which Spark makes in a query."""
    if step.keys is None or plain_key(schema, step.keys) is not None:
        return batch
    keys = [hash(values) for values in zip(*(batch.column(name).to_pylist() for name in step.keys), strict=True)]
    return batch.append_column(KEY, pa.array(keys, pa.int64()))


class InATask:
    def __init__(self) -> None:
        self._spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(accumulator=Accumulator))

    def run(self, step: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        step.counts.begin(self._spark)
        task = MapTask(step, COLUMNS, step.returns, is_of_stream=True)  # a task sorts its rows then
        batch = with_keys(step, pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(COLUMNS, timezone="UTC")))
        return [row for made in task(iter([batch])) for row in made.to_pylist()]


class InAQuery:
    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def run(self, step: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        made = [tuple(map(row.get, COLUMNS.fieldNames())) for row in rows]
        frame = self._spark.createDataFrame(made, COLUMNS).coalesce(1)
        return [row.asDict() for row in frame.transform(step).collect()]


class RowBench:
    def __init__(self, place: Place, folder: Path, ignores: str | None = None) -> None:
        """`ignores`: an option that steps are given and do not have."""
        self.folder = folder
        self.ignores = ignores
        self.has_ignored = False
        self.hang_s = HANG_S if ignores is None else QUICK_S
        """How long a function hangs that nothing ends."""
        self.given: set[str] = set()
        """Options that a step had another value of than steps usually have."""
        self._place = place
        self.step: Any = None

    def run(self, function: Callable[..., Any], rows: list[dict[str, Any]] | None = None, **options: Any) -> list[Any]:
        """The rows that come back."""
        self.begin(function, **options)
        return self.again(rows)

    @property
    def is_in_one_process(self) -> bool:
        return isinstance(self._place, InATask)

    def begin(self, function: Callable[..., Any], **options: Any) -> None:
        self.step, usual = parallel_map(function, RETURNS, **options), parallel_map(function, RETURNS)
        self.given |= other_than_usual(self.step, usual)
        if self.ignores is not None:
            self.has_ignored |= ignore(self.ignores, self.step, usual)

    def again(self, rows: list[dict[str, Any]] | None = None) -> list[Any]:
        """The rows that come back from the same step."""
        return [SimpleNamespace(**one) for one in self._place.run(self.step, rows or records())]

    def snapshot(self) -> kl.Snapshot:
        found: kl.Snapshot = self.step.snapshot()
        return found

    def file(self, name: str) -> list[str]:
        found = self.folder / name
        return found.read_text().splitlines() if found.exists() else []


def records(count: int = ROWS, keys: int = KEYS, partitions: int = PARTITIONS) -> list[dict[str, Any]]:
    """Rows of the source, of all keys and partitions in turn."""
    return [
        {
            "key": b"key-%d" % (number % keys),
            "value": b"%d" % number,
            "topic": "in",
            "partition": number % partitions,
            "offset": number // partitions,
            "headers": [{"key": "number", "value": b"%d" % number}],
        }
        for number in range(count)
    ]


def number_of(row: Any) -> int:
    return int(row.value)


def numbers(found: Iterable[Any]) -> list[int]:
    return sorted(one.number for one in found)


def timed(pause_s: float = 0.002) -> Callable[..., Any]:
    """A function that tells when it began and ended; the later a row comes, the sooner it ends."""

    async def call(row: Any) -> Any:
        began = time.monotonic_ns()
        await asyncio.sleep(pause_s * (2 - number_of(row) / ROWS))
        return {"number": number_of(row), "told": f"{began} {time.monotonic_ns()}"}

    return call


def spans(found: Iterable[Any]) -> list[tuple[int, int, int]]:
    """When each began, when it ended, and its number; in the order in which they began."""
    return sorted((*map(int, one.told.split()), one.number) for one in found)


def out_of_order(found: Iterable[Any], of: Callable[[int], object]) -> list[int]:
    """The rows that began before an earlier one of the same (`of` their number) had ended."""
    ended: dict[object, int] = {}
    late = []
    for began, end, number in sorted(spans(found), key=lambda one: one[2]):
        if began < ended.get(of(number), 0):
            late.append(number)
        ended[of(number)] = max(end, ended.get(of(number), 0))
    return late


def key_of(number: int) -> int:
    return number % KEYS


def partition_of(number: int) -> int:
    return number % PARTITIONS
