"""Results of lanes in the driver: in order, bounded, and complete when they should be; over a kill, too."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from kit.filling import filling
from kit.outputs import Outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess

PARTITIONS = 4
PAGE = Path(__file__).parents[2] / "docs" / "lanes.md"


@dataclass(frozen=True)
class Doubled:
    """A class of the user's, which the executors know by the pipeline alone."""

    number: int


async def double(record: kl.Record) -> Doubled:
    await asyncio.sleep(0.001)
    return Doubled(int(record.value or 0) * 2)


def seen(work: Any, results: Iterable[kl.Result]) -> Outputs:
    """What a reader saw, beside what there is."""
    names = [(one.record.topic, one.record.partition, one.record.offset) for one in results]
    inputs = {
        (one.topic, one.partition, one.offset): one.key
        for batch in read_to_end(work.servers, work.topic)
        for one in batch
    }
    return Outputs(inputs, names)


@pytest.mark.parametrize("complete", ["read", pytest.param("handled", marks=pytest.mark.full)])
def test_results_of_all_lanes_come_in_order_and_once(spark: SparkSession, work: Any, complete: Any) -> None:
    work.fill(600)
    pipeline = work.pipeline(double)
    query = kl.spark.start(pipeline, spark, lanes=2, trigger={"availableNow": True}, stream=complete)
    with query.stream() as results:
        read = list(results)
    found = seen(work, read)
    assert (found.lost, found.repeated, found.out_of_order("key")) == (set(), set(), [])
    assert all(one.value == Doubled(int(one.record.value or 0) * 2) for one in read)
    assert query.isActive is False
    assert work.lag() == 0


def test_a_slow_reader_slows_the_lanes_and_an_async_one_reads_them(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    async def slowly(record: kl.Record) -> int:
        await asyncio.sleep(0.02)
        return record.offset

    async def read() -> list[kl.Result]:
        pipeline = work.pipeline(slowly, ordering="unordered", max_concurrency=5)
        query = kl.spark.start(pipeline, spark, lanes=2, stream="read", max_unread=20)
        async with query.stream() as results:

            def both_lanes_read() -> bool:
                """A lane that joins later takes partitions with results that nobody has read, and they come again."""
                group = work.admin.describe_group(work.group)
                return group.state == "stable" and [bool(one.assignment) for one in group.members] == [True, True]

            await asyncio.to_thread(until, both_lanes_read, query.snapshot)
            await asyncio.to_thread(work.fill, 400)
            first = await anext(results)

            def only_results_wait() -> bool:
                snapshot, lanes = query.snapshot(), query._supervisor.view.snapshots
                lanes_wait = len(lanes) == 2 and all(one.unseen >= 20 for one in lanes)
                return lanes_wait and snapshot.handed_over == snapshot.unseen

            await asyncio.to_thread(until, only_results_wait, query.snapshot)
            assert query.snapshot().unseen < 150, "as many as may wait, and what was with the workers by then"
            assert query.snapshot().processed == 0, "nothing is complete that was not read"
            others = [one async for _, one in aenumerate(results, 399)]
        assert query.isActive is False
        return [first, *others]

    found = seen(work, asyncio.run(read()))
    assert (found.lost, found.repeated) == (set(), set())
    assert work.lag() == 0


async def aenumerate(results: Any, count: int) -> Any:
    """The first so many."""
    number = 0
    async for one in results:
        number += 1
        yield number, one
        if number == count:
            return


@pytest.mark.parametrize("complete", ["read", pytest.param("handled", marks=pytest.mark.full)])
def test_a_killed_lane_loses_nothing_of_a_stream(
    spark: SparkSession, work: Any, until: Callable[..., None], complete: Any
) -> None:
    work.fill(800)
    query = kl.spark.start(
        work.pipeline(double), spark, lanes=2, trigger={"availableNow": True}, stream=complete, max_unread=50
    )
    with query.stream() as results:
        read = [next(results) for _ in range(200)]
        victim = next(lane for lane in query.lanes if lane.pid is not None)
        os.kill(victim.pid or 0, signal.SIGKILL)
        until(lambda: query.lanes[victim.lane].launches == 2, lambda: query.lanes)
        read += results
    found = seen(work, read)
    assert (found.lost, found.out_of_order("key")) == (set(), [])
    assert work.lag() == 0


@pytest.mark.full
def test_callbacks_run_in_the_driver_with_what_all_lanes_tell(spark: SparkSession, work: Any) -> None:
    work.fill(300)
    lock = threading.Lock()  # which could not travel
    produced: list[kl.Produced] = []
    committed: list[kl.Record] = []
    commits: dict[tuple[str, int], int] = {}
    failed: list[int] = []

    def note_produced(one: kl.Produced) -> None:
        with lock:
            if one.record.offset % 50 == 3 and one.record.offset not in failed:
                failed.append(one.record.offset)
                raise ValueError("not the first time")
            produced.append(one)

    query = kl.spark.start(
        work.pipeline(retries=kl.Retries(max_attempts=3, delay_ms=1)),
        spark,
        lanes=2,
        trigger={"availableNow": True},
        on_produced=note_produced,
        on_commit=lambda offsets, error: commits.update(offsets if error is None else {}),
        on_committed=committed.append,
    )
    work.finish(query)
    ends = work.admin.log_ends([(work.topic, partition) for partition in range(PARTITIONS)], read_committed=False)
    assert commits == ends
    inputs = {(partition, offset) for (_, partition), end in ends.items() for offset in range(end)}
    assert {(one.partition, one.offset) for one in committed} == inputs
    assert len(committed) == 300
    assert {(one.record.partition, one.record.offset) for one in produced} == inputs
    assert len(failed) > 0
    assert query.snapshot().retried >= len(failed)
    assert {one.topic for one in produced} == {work.output}


def test_the_stream_of_the_page_about_lanes_runs(
    spark: SparkSession, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark.sparkContext.master == "local[4]", "the program would start another session"
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"flights": 4, "flights.enriched": 4})
    with filling(broker.bootstrap) as producer:
        for number in range(50):
            producer.produce(kl.Output("flights", key=b"%d" % (number % 7), value=b"flight %d" % number))
    first, *others = re.findall(r"^```python\n(import.*?|spark.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (second,) = (one for one in others if ".stream()" in one)
    pipeline, _, _ = first.replace("broker:9092", broker.bootstrap).partition("spark = ")
    exec(compile(pipeline + second, "lanes.md", "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 50
    assert all("Output('flights.enriched', " in line for line in lines)


@pytest.mark.full
def test_leaving_a_stream_stops_the_query_and_what_was_not_read_stays_to_do(spark: SparkSession, work: Any) -> None:
    work.fill(200)
    query = kl.spark.start(work.pipeline(double), spark, lanes=2, stream="read", max_unread=30)
    with query.stream() as results:
        read = [next(results) for _ in range(60)]
    assert query.isActive is False
    assert query.exception() is None
    assert work.left() == 140
    again = kl.spark.start(work.pipeline(double), spark, lanes=2, trigger={"availableNow": True}, stream="read")
    with again.stream() as results:
        found = seen(work, [*read, *results])
    assert (found.lost, found.repeated, found.out_of_order("key")) == (set(), set(), [])
    with pytest.raises(kl.UsageError, match="go to one stream"):
        again.stream()
