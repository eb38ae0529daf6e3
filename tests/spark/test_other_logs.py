"""What a query keeps beside a log (its checkpoint, a batch to replay, carry-over lists, the group's offsets) when the
log is another one: each record that is in it is read, or the query says by name that it cannot go on."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.spark import CarryOver, GroupCommits, acknowledged, parallel_map
from kit.committed import committed_values
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

TOPIC = "numbers"
RECORDS = 20
"""That a query has read before something happens to the log. Then there are as many again."""
COPIED = 10
"""Those among them that the copy of a folder has."""
LATER = kl.Retries(max_attempts=100, delay_ms=5_000, max_delay_ms=5_000)
"""Longer than a query takes to end, so that a record stays carried."""
FAULTS = {
    "mirrored": r"made anew, or this is another cluster",
    "made anew": r"made anew, or this is another cluster",
    "cut": r"was cut at 10",
    "put back": r"ends at 10|was cut at 10",
}
"""What may happen to a log, and what a query says of it."""


class World:
    """A broker, whose log may become another one, and queries that write what they read into a list."""

    def __init__(self, spark: SparkSession, folder: Path, stack: ExitStack) -> None:
        self.spark, self.folder, self._stack = spark, folder, stack
        self._data, self._copy = folder / "data", folder / "copy"
        self._broker = stack.enter_context(BrokerProcess(self._data))
        self.servers = self._broker.bootstrap
        self.written: list[list[int]] = []
        """By batch."""
        self._create()
        self._fill(range(COPIED))
        self._broker.terminate()
        shutil.copytree(self._data, self._copy)
        self._broker.start()
        self._fill(range(COPIED, RECORDS))

    def change(self, fault: str) -> list[int]:
        """The log becomes another one; returns what is in it."""
        others = range(100, 100 + RECORDS)
        if fault == "mirrored":  # offsets are the mirror's own: the first ten records had gone when it began
            mirror = self._stack.enter_context(BrokerProcess(self.folder / "mirror"))
            self.servers, others = mirror.bootstrap, range(COPIED, COPIED + RECORDS)
            self._create()
        elif fault == "made anew":
            self._admin().delete_topics([TOPIC])
            self._create()
        else:
            self._broker.kill()
            shutil.rmtree(self._data)
            self._copy.rename(self._data)
            self._broker.start()
            others = range(100, 100 + RECORDS - COPIED) if fault == "cut" else range(0)
        self._fill(others)
        return [*others] if fault in ("mirrored", "made anew") else [*range(COPIED), *others]

    def source(self, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.servers, "kafka.group.id": "readers", "subscribe": TOPIC}
        frame = self.spark.readStream.format("keylane").options(**given | {"startingOffsets": "earliest"} | options)
        return frame.load()

    def run(self, frame: DataFrame, carry: CarryOver | None = None, *, all_of_it: bool = True) -> None:
        """Raises what the query failed with. `all_of_it`: until nothing is carried any more."""
        step = acknowledged(self._write, carry_over=carry)
        writer = frame.writeStream.foreachBatch(step).option("checkpointLocation", str(self.folder / "checkpoint"))
        query = (writer.trigger(availableNow=True) if all_of_it else writer).start()
        try:
            if all_of_it:
                assert query.awaitTermination(120), "it does not end"
            else:
                query.processAllAvailable()
        finally:
            query.stop()

    def run_beside_a_listener(self, servers: str | None = None, **options: str) -> None:
        """Raises what the query failed with. `servers`: which the listener has, if they are other ones."""
        listener = GroupCommits({"bootstrap.servers": servers or self.servers, "group.id": "readers"})
        self.spark.streams.addListener(listener)
        try:
            writer = self.source(**options).writeStream.format("noop")
            query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
            try:
                query.processAllAvailable()
            finally:
                query.stop()
        finally:
            self.spark.streams.removeListener(listener)
            listener.close()

    def carrying(self, broken: int | None, **options: str) -> tuple[DataFrame, CarryOver]:
        """A query whose function fails for one number."""
        carry = CarryOver(str(self.folder / "lists"))

        async def function(row: Any) -> Any:
            if int(bytes(row.value)) == broken:
                raise ValueError("busy")
            return (row.value, row.offset)

        step = parallel_map(function, "value binary, offset bigint", carry_over=carry, retries=LATER)
        return self.source(carryOver=carry.folder, **options).transform(step), carry

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died before the checkpoint had the batch."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    def committed(self) -> int | None:
        one = self._admin().committed_offsets("readers").get((TOPIC, 0))
        return None if one is None else one.offset

    def read(self) -> Counter[int]:
        """What was written since the last time."""
        found = Counter(number for batch in self.written for number in batch)
        self.written.clear()
        return found

    def _write(self, frame: DataFrame, _: int) -> None:
        self.written.append([int(bytes(row.value)) for row in frame.collect()])

    def _admin(self) -> Admin:
        return Admin({"bootstrap.servers": self.servers})

    def _create(self) -> None:
        self._admin().create_topics({TOPIC: 1})

    def _fill(self, numbers: range) -> None:
        with filling(self.servers) as producer:
            for number in numbers:
                producer.produce(kl.Output(TOPIC, b"key-%d" % (number % 4), b"%d" % number, (), 0))


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(spark, tmp_path, stack)


EACH_FAULT = pytest.mark.parametrize("fault", FAULTS)
ACCEPTED = {"failOnDataLoss": "false"}


@EACH_FAULT
@pytest.mark.full
def test_a_checkpoint(world: World, fault: str) -> None:
    """Nothing is beyond where it stands, so nothing but the log itself says that it is another one."""
    world.run(world.source())
    assert world.read() == Counter(range(RECORDS))
    there = world.change(fault)
    with pytest.raises(Exception, match=FAULTS[fault]):
        world.run(world.source())
    assert not world.read()
    world.run(world.source(**ACCEPTED))
    assert world.read() == Counter(
        number for number in there if number >= RECORDS or fault in ("mirrored", "made anew")
    )


@EACH_FAULT
@pytest.mark.full
def test_a_batch_that_is_replayed(world: World, fault: str) -> None:
    world.run(world.source())
    world.forget_commit(0)
    world.read()
    there = world.change(fault)
    with pytest.raises(Exception, match=FAULTS[fault]):
        world.run(world.source())
    assert not world.read()
    world.run(world.source(**ACCEPTED))
    assert world.read() == Counter(there)


@EACH_FAULT
@pytest.mark.full
def test_a_list_of_carried_records(world: World, fault: str) -> None:
    """One of them is beyond what a copy of the folder has."""
    frame, carry = world.carrying(broken=15)
    world.run(frame, carry, all_of_it=False)
    assert world.read().keys() == {*range(RECORDS)} - {15}
    there = world.change(fault)
    with pytest.raises(Exception, match=FAULTS[fault]):
        world.run(*world.carrying(broken=None))
    assert not world.read()
    world.run(*world.carrying(broken=None, maxOffsetsPerTrigger="3", **ACCEPTED))
    assert world.read() == Counter(
        number for number in there if number >= RECORDS or fault in ("mirrored", "made anew")
    )


@EACH_FAULT
@pytest.mark.full
def test_the_group_of_a_listener(world: World, fault: str) -> None:
    world.run_beside_a_listener()
    assert world.committed() == RECORDS
    before = world.servers
    there = world.change(fault)
    with pytest.raises(Exception, match=FAULTS[fault]):
        world.run_beside_a_listener()
    world.run_beside_a_listener(before, **ACCEPTED)
    assert world.committed() == (None if fault == "mirrored" else len(there))


class Sunk:
    """A query that copies a topic of one broker, by its exactly-once sink, into a topic of another one, whose folder
    may be put back."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path, stack: ExitStack) -> None:
        self.spark, self.servers, self.checkpoint = spark, servers, folder / "checkpoint"
        self._data, self._copy = folder / "data", folder / "copy"
        self.broker = stack.enter_context(BrokerProcess(self._data))
        self.source = f"sunk-{uuid4().hex}"
        Admin({"bootstrap.servers": servers}).create_topics({self.source: 1})
        self.admin = Admin({"bootstrap.servers": self.broker.bootstrap})
        self.admin.create_topics({"copied": 2})
        self._filled = 0

    def run(self, where: str = "true", **options: str) -> None:
        """A query over ten records more; raises what it failed with."""
        with filling(self.servers) as producer:
            for number in range(self._filled, self._filled + 10):
                producer.produce(kl.Output(self.source, None, b"%d" % number))
        self._filled += 10
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": self.source, "startingOffsets": "earliest"}
        frame = self.spark.readStream.format("keylane").options(**given).load().where(where).select("value")
        writer = frame.writeStream.format("keylane").option("checkpointLocation", str(self.checkpoint))
        writer = writer.options(topic="copied", delivery="exactly_once", sinkName="copied", **options)
        query = writer.option("kafka.bootstrap.servers", self.broker.bootstrap).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "it does not end"

    def copy(self) -> None:
        self.broker.terminate()
        shutil.copytree(self._data, self._copy)
        self.broker.start()

    def put_back(self) -> None:
        self.broker.kill()
        shutil.rmtree(self._data)
        self._copy.rename(self._data)
        self.broker.start()

    def set_back(self, batch: int) -> None:
        """The checkpoint, to before this batch."""
        for folder in ("offsets", "commits"):
            for one in (self.checkpoint / folder).iterdir():
                if int(one.name.removeprefix(".").removesuffix(".crc")) >= batch:
                    one.unlink()

    def written(self) -> list[int]:
        return sorted(map(int, committed_values(self.broker.bootstrap, "copied")))


@pytest.fixture
def sunk(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Iterator[Sunk]:
    with ExitStack() as stack:
        yield Sunk(spark, broker.bootstrap, tmp_path, stack)


@pytest.mark.full
def test_a_sink_that_was_put_back(sunk: Sunk) -> None:
    """Its batches without rows count: none of them is taken for one that is missing."""
    sunk.run()
    sunk.run(where="value IS NULL")
    sunk.run(where="false")
    sunk.copy()
    sunk.run()
    sunk.run()
    sunk.put_back()
    with pytest.raises(Exception, match=r"batch 5 of query .* comes, and the last one that the sink knows is 2"):
        sunk.run()
    assert sunk.written() == [*range(10)]
    sunk.set_back(3)
    sunk.run()
    assert sunk.written() == [*range(10), *range(30, 70)]


@pytest.mark.full
def test_a_sink_whose_topic_is_another_one(sunk: Sunk) -> None:
    sunk.run()
    sunk.admin.delete_topics(["keylane-sink-copied"])
    with pytest.raises(Exception, match="the sink has no record, and batch 1 of query"):
        sunk.run()
    assert sunk.written() == [*range(10)]
    sunk.run(onMissingRecord="begin")
    sunk.run()
    assert sunk.written() == [*range(40)]
