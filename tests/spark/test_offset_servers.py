"""Lanes and queries whose group is at offset servers, one of which is killed; their records are at the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.coordinator.formats import partition_for
from keylane.kafka.admin import Admin
from keylane.spark import GroupCommits, acknowledged
from kit.offset_servers import OffsetServers
from kit.outputs import covered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keylane.broker.process import BrokerProcess
    from kit.offset_servers import OffsetServer

PARTITIONS = 4
OPTIONS = ("--allow-unreplicated-log", "--set", f"offsets.topic.num.partitions={PARTITIONS}")
RECORDS = 3_000


@pytest.fixture(scope="module")
def servers(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetServers]:
    with OffsetServers(broker.bootstrap, tmp_path_factory.mktemp("servers"), 2, *OPTIONS) as made:
        made.settled()
        yield made


@pytest.fixture
def apart(work: Any, servers: OffsetServers) -> Any:
    """Its group is at the servers."""
    work.kafka["offsets.servers"] = servers.bootstrap
    work.admin = Admin({"bootstrap.servers": work.servers, "offsets.servers": servers.bootstrap})
    return work


def leader_of(servers: OffsetServers, group: str) -> OffsetServer:
    leads = servers.settled()
    return next(one for one in servers.running if partition_for(group, PARTITIONS) in leads[one.address])


def groups_at(bootstrap: str) -> set[str]:
    return {one.group for one in Admin({"bootstrap.servers": bootstrap}).groups()}


@pytest.mark.full
def test_lanes_go_on_when_their_server_dies(
    spark: SparkSession, apart: Any, servers: OffsetServers, until: Callable[..., None]
) -> None:
    apart.fill(RECORDS)
    apart.kafka["session.timeout.ms"] = 6_000
    query = kl.spark.start(apart.pipeline(), spark, lanes=2, trigger={"availableNow": True})
    try:
        until(lambda: apart.lag() < RECORDS - 200)
        victim = leader_of(servers, apart.group)
        known = covered(apart.admin, apart.group)
        servers.kill(victim)
        servers.add(victim.port)
        apart.finish(query)
    finally:
        query.stop()
    assert query.exception() is None
    assert apart.left() == 0
    seen = apart.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert {source for source in seen.repeated if source in known} == set(), "acknowledged, and run again"
    assert apart.group in groups_at(servers.bootstrap)
    assert apart.group not in groups_at(apart.servers)


@pytest.mark.full
def test_a_query_commits_there_and_begins_there(spark: SparkSession, apart: Any, tmp_path: Path) -> None:
    apart.fill(40)
    seen: list[int] = []

    def sink(frame: DataFrame, _batch: int) -> None:
        seen.extend(int(bytes(row.value)) for row in frame.collect())

    def run(checkpoint: str) -> None:
        options = {
            "kafka.bootstrap.servers": apart.servers,
            "kafka.offsets.servers": str(apart.kafka["offsets.servers"]),
            "kafka.group.id": apart.group,
            "subscribe": apart.topic,
            "startingOffsets": "committed",
        }
        frame = spark.readStream.format("keylane").options(**options).load()
        writer = frame.writeStream.foreachBatch(acknowledged(sink)).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).start()
        assert query.awaitTermination(120)
        query.stop()

    run("first")
    assert sorted(seen) == list(range(40))
    assert apart.lag() == 0
    run("another")
    assert len(seen) == 40, "a new checkpoint begins at the group's offsets"
    assert apart.group not in groups_at(apart.servers)


@pytest.mark.full
def test_a_listener_commits_there(spark: SparkSession, apart: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    apart.fill(10)
    places = {"bootstrap.servers": apart.servers, "offsets.servers": apart.kafka["offsets.servers"]}
    listener = GroupCommits(places | {"group.id": apart.group}, query=apart.group)
    spark.streams.addListener(listener)
    try:
        options = {"kafka.bootstrap.servers": apart.servers, "subscribe": apart.topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format("keylane").options(**options).load()
        writer = frame.writeStream.format("noop").queryName(apart.group).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        until(lambda: apart.lag() == 0)
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    assert apart.group not in groups_at(apart.servers)
