"""Queries and lanes of today go on where those of an older keylane stood (docs/adr/0082): checkpoints, carry-over lists
and commits that it wrote, on its data folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.spark import CarryOver, GroupCommits, acknowledged, parallel_map
from keylane.spark.structured.carry_lists import CarryList, Lists
from kit.filling import filling
from kit.older import committed, unpack, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

WRITTEN = written()
KEPT = {"log.retention.ms": "-1", "offsets.retention.minutes": str(2**31 - 1)}
"""The folder grows old: what it has is not to be."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(unpack("killed", tmp_path_factory.mktemp("older")), settings=KEPT) as made:
        yield made


def test_a_query_with_carry_over_goes_on(spark: SparkSession, older: BrokerProcess, tmp_path: Path) -> None:
    """Its driver died before the checkpoint had the batch 3: that one is replayed, and then comes what it carried."""
    folder = unpack("query", tmp_path)
    lists = Lists(str(folder / "lists"))
    (id_,) = {found.id for batch in range(4) if (found := lists.read(batch)) is not None}
    last = lists.read(3)
    assert isinstance(last, CarryList)
    assert (last.id, last.seq, last.dead) == (id_, 4, frozenset())
    assert {offset: attempts for offset, (attempts, _) in last.carried["query", 0].items()} == {2: 1, 8: 1, 9: 1}
    assert lists.read(1) == CarryList(1, id_, 2, last.carried, frozenset({("query", 0, 7)}))

    written_now: dict[str, list[int]] = {}

    async def copy(row: Any) -> Any:
        return (row.value, row.offset)

    def write(frame: DataFrame, batch: int) -> None:
        written_now[str(batch)] = sorted(row.offset for row in frame.collect())

    carry = CarryOver(
        str(folder / "lists"), dead_letter=kl.DeadLetter("dead"), kafka={"bootstrap.servers": older.bootstrap}
    )
    step = parallel_map(copy, "value binary, offset bigint", ordering="unordered", carry_over=carry)
    options = {"kafka.bootstrap.servers": older.bootstrap, "kafka.group.id": "query", "subscribe": "query"}
    options |= {"startingOffsets": "committed", "maxOffsetsPerTrigger": "6", "carryOver": carry.folder}
    frame = spark.readStream.format("keylane").options(**options, includeHeaders="true").load().transform(step)
    writer = frame.writeStream.foreachBatch(acknowledged(write, carry_over=carry)).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert query.awaitTermination(120)
    assert written_now == {"3": WRITTEN["rows"]["3"], "4": [2, 8, 9]}
    rows = sorted(offset for some in (WRITTEN["rows"] | written_now).values() for offset in some)
    assert rows == [1, 2, *range(5, 7), *range(8, 20)], "3, 4 and 0 were complete in the group; 7 is a dead letter"
    assert committed(older.bootstrap, "query") == {"query-0": (20, "")}


def test_a_query_with_a_built_in_sink_goes_on(spark: SparkSession, older: BrokerProcess, tmp_path: Path) -> None:
    folder = unpack("query", tmp_path)
    with filling(older.bootstrap) as producer:
        for number in range(20, 23):
            producer.produce(kl.Output("plain", b"k", b"v-%d" % number))
    listener = GroupCommits({"bootstrap.servers": older.bootstrap, "group.id": "plain"}, query="plain")
    spark.streams.addListener(listener)
    try:
        options = {"kafka.bootstrap.servers": older.bootstrap, "subscribe": "plain", "startingOffsets": "earliest"}
        frame = spark.readStream.format("keylane").options(**options, maxOffsetsPerTrigger="6").load()
        writer = frame.writeStream.format("noop").queryName("plain").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "plain")).start()
        assert query.awaitTermination(120)
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    done = [(one.batchId, one.numInputRows) for one in query.recentProgress if one.numInputRows]
    assert done == [(3, 2), (4, 3)], "the batch that the checkpoint did not have, and what is new"


def test_lanes_go_on(spark: SparkSession, older: BrokerProcess, tmp_path: Path) -> None:
    place = str(tmp_path)

    def handler(record: kl.Record) -> None:
        with (Path(place) / f"{record.partition}-{record.offset}").open("x"):
            pass

    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": older.bootstrap, "group.id": "lanes"},
        topics=["lanes"],
        handler=handler,
        ordering="unordered",
    )
    query = kl.spark.start(pipeline, spark, lanes=2, trigger={"availableNow": True})
    assert query.awaitTermination(120)
    ran = {one.name for one in tmp_path.iterdir()}
    assert ran == {f"{partition}-{offset}" for partition in (0, 1) for offset in (4, 5, 13)}
    assert committed(older.bootstrap, "lanes") == {"lanes-0": (20, ""), "lanes-1": (20, "")}
