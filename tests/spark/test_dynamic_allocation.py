"""Lanes on a cluster that has no executor before somebody asks for task slots."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.spark.slots import executors
from kit.cluster import StandaloneCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def spark(jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """From none to two executors, of two cores each."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "0",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
    }
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        made = kl.spark.session(cluster.url, "keylane dynamic allocation", **settings)
        yield made
        made.stop()


def test_lanes_come_as_executors_do(spark: SparkSession, work: Any, until: Callable[..., None]) -> None:
    assert sum(tasks for tasks, _ in executors(spark.sparkContext)) == 0
    work.fill(500)
    query = kl.spark.start(work.pipeline(), spark)
    assert len(query.lanes) == 3, "four partitions, and one of four slots stays free"
    until(lambda: [lane.state for lane in query.lanes] == ["running"] * 3, lambda: query.lanes)
    until(lambda: work.lag() == 0, lambda: query.lanes)
    assert spark.range(10).count() == 10, "a slot is free"
    query.stop()
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), [])
