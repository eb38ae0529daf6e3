"""Lanes on a standalone cluster: a master and workers that are real processes, and executors that come and go."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.spark.java import find_java
from kit.cluster import StandaloneCluster
from kit.outputs import covered
from kit.processes import is_alive, parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

AVAILABLE_NOW = {"availableNow": True}
RECORDS = 2_000
MIDDLE = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java: None) -> Iterator[StandaloneCluster]:
    settings = {"spark.decommission.enabled": "true"}
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), cores=3, settings=settings) as made:
        yield made


@pytest.fixture(scope="module")
def spark(jvm: None, cluster: StandaloneCluster, bare_python: Path) -> Iterator[SparkSession]:
    """A session whose executors do not have keylane."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.cores.max": "4",  # the master would give all cores to the first driver
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.decommission.enabled": "true",
        "spark.pyspark.python": str(bare_python),
        "spark.python.daemon.module": "pyspark.daemon",  # a local session before it has ours, which stays with the JVM
    }
    made = kl.spark.session(cluster.url, "keylane cluster tests", **settings)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shipped(spark: SparkSession, zipped: Path) -> None:
    spark.sparkContext.addPyFile(str(zipped))


@pytest.mark.soak
def test_executors_without_keylane_are_told_how_to_get_it(spark: SparkSession, work: Any) -> None:
    """Runs first: what is shipped later stays with the session."""
    query = kl.spark.start(work.pipeline(), spark, lanes=1, trigger=AVAILABLE_NOW)
    with pytest.raises(kl.UsageError, match=r"cannot import keylane .* --py-files or --archives"):
        work.finish(query)


@pytest.mark.soak
def test_lanes_run_on_executors_that_get_keylane_from_the_driver(spark: SparkSession, shipped: None, work: Any) -> None:
    work.fill(RECORDS)
    query = kl.spark.start(work.pipeline(), spark, lanes=2, trigger=AVAILABLE_NOW)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), [])
    assert work.lag() == 0


@pytest.mark.soak
def test_lanes_that_wait_share_a_core(
    spark: SparkSession, shipped: None, work: Any, until: Callable[..., None]
) -> None:
    work.fill(RECORDS)
    with pytest.raises(kl.UsageError, match="leave no task slot free of 4"):
        kl.spark.start(work.pipeline(), spark, lanes=6, members="dynamic")
    query = kl.spark.start(work.pipeline(), spark, lanes=6, members="dynamic", task_cpus=0.25)
    until(lambda: sum(lane.state == "running" for lane in query.lanes) == 6, lambda: query.lanes)
    assert spark.range(10).count() == 10, "a slot is free"
    query.stop()
    assert query.exception() is None


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("executor", marks=pytest.mark.soak),
        pytest.param("node", marks=pytest.mark.soak),
        pytest.param("frozen worker", marks=pytest.mark.soak),
    ],
)
def test_a_lane_whose_place_goes_away_starts_elsewhere(
    spark: SparkSession,
    shipped: None,
    cluster: StandaloneCluster,
    work: Any,
    until: Callable[..., None],
    victim: str,
) -> None:
    work.kafka["session.timeout.ms"] = 6_000
    work.fill(RECORDS * 2)
    query = kl.spark.start(work.pipeline(), spark, lanes=2, trigger=AVAILABLE_NOW)
    until(lambda: query.snapshot().processed > MIDDLE and query.lanes[0].partitions, lambda: query.lanes)
    pid = query.lanes[0].pid
    assert pid is not None
    executor = parent(parent(pid))
    node = next((one for one in cluster.workers if one.pid == parent(executor)), None)
    if victim == "frozen worker":
        os.kill(pid, signal.SIGSTOP)
    elif victim == "executor":
        os.kill(executor, signal.SIGKILL)
    else:
        assert node is not None
        os.killpg(node.pid, signal.SIGKILL)  # Spark's worker and its executors, not the Python workers
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    known = covered(work.admin, work.group)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert {source for source in seen.repeated if source in known} == set()
    assert work.lag() == 0
    assert query.exception() is None
    if victim != "frozen worker":  # its partitions may be through before it is missed
        assert query.lanes[0].failures >= 1
    until(lambda: not is_alive(pid))
    if victim == "node":
        cluster.add_worker()


@pytest.mark.soak
def test_a_driver_under_spark_submit_joins_the_group_and_is_killed(
    spark: SparkSession,
    shipped: None,
    cluster: StandaloneCluster,
    zipped: Path,
    bare_python: Path,
    drivers: Callable[..., Any],
    work: Any,
    until: Callable[..., None],
) -> None:
    """Its own session, keylane by `--py-files`, and one group with the driver of this test; its lanes outlive it by
    less than 30 s, commit, and leave nothing behind."""
    import pyspark

    work.kafka["session.timeout.ms"] = 6_000
    work.fill(RECORDS * 3)
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.url]
    submit += ["--py-files", str(zipped), "--conf", f"spark.pyspark.python={bare_python}"]
    submit += ["--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=512m"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["JAVA_HOME"] = str(find_java().home)
    driver = drivers("-", work, environment, "--lanes", "1", "--name", "submitted", launcher=submit)
    lane = driver.until(lambda now: now["processed"] > 50)["lanes"][0]
    query = kl.spark.start(work.pipeline(), spark, lanes=1)
    until(lambda: query.lanes and query.lanes[0].partitions, lambda: query.lanes)
    driver.until(lambda now: len(now["lanes"][0]["partitions"]) == 2)
    os.killpg(driver.process.pid, signal.SIGKILL)
    until(lambda: not is_alive(lane["pid"]))
    until(lambda: work.lag() == 0, lambda: query.lanes)
    query.stop()
    assert (work.outputs().lost, work.outputs().out_of_order("key")) == (set(), [])
    assert len(query.lanes[0].partitions) == 0, "it has ended"


@pytest.mark.soak
def test_a_decommissioned_node_drains(
    spark: SparkSession, shipped: None, cluster: StandaloneCluster, work: Any, until: Callable[..., None]
) -> None:
    work.fill(RECORDS * 2)
    query = kl.spark.start(work.pipeline(), spark, lanes=1, trigger=AVAILABLE_NOW)
    until(lambda: query.snapshot().processed > MIDDLE, lambda: query.lanes)
    first = query.lanes[0]
    assert first.pid is not None
    node = next(one for one in cluster.workers if one.pid == parent(parent(parent(first.pid or 0))))
    cluster.decommission(node)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), []), "it drained: nothing ran twice"
    lane = query.lanes[0]
    assert (lane.launches, lane.failures) == (2, 0)
    until(lambda: not is_alive(first.pid or 0))
