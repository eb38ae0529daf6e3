"""Lanes on a standalone cluster: a master and workers that are real processes, and executors that come and go."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.testing.cluster import LIGHT_JVM, StandaloneCluster
from keylane.testing.outputs import covered
from keylane.testing.processes import is_alive, parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

AVAILABLE_NOW = {"availableNow": True}
RECORDS = 2_000
MIDDLE = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java: None) -> Iterator[StandaloneCluster]:
    settings = {"spark.decommission.enabled": "true"}
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as made:
        yield made


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with every package of this one but keylane."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    made = tmp_path_factory.mktemp("python") / "python"
    made.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    made.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def spark(cluster: StandaloneCluster, bare_python: Path) -> Iterator[SparkSession]:
    """A session whose executors do not have keylane."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": LIGHT_JVM,
        "spark.executor.extraJavaOptions": LIGHT_JVM,
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.decommission.enabled": "true",
        "spark.pyspark.python": str(bare_python),
    }
    made = kl.spark.session(cluster.url, "keylane cluster tests", **settings)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shipped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """keylane goes to the executors as one zip file, as a wheel renamed for `--py-files` does."""
    archive = tmp_path_factory.mktemp("zip") / "keylane.zip"
    package = Path(kl.__file__).parent
    with zipfile.ZipFile(archive, "w") as made:
        for file in package.rglob("*.py"):
            made.write(file, Path("keylane") / file.relative_to(package))
    spark.sparkContext.addPyFile(str(archive))


def test_executors_without_keylane_are_told_how_to_get_it(spark: SparkSession, work: Any) -> None:
    """Runs first: what is shipped later stays with the session."""
    query = kl.spark.start(work.pipeline(), spark, lanes=1, trigger=AVAILABLE_NOW)
    with pytest.raises(kl.UsageError, match=r"cannot import keylane .* --py-files or --archives"):
        work.finish(query)


def test_lanes_run_on_executors_that_get_keylane_from_the_driver(spark: SparkSession, shipped: None, work: Any) -> None:
    work.fill(RECORDS)
    query = kl.spark.start(work.pipeline(), spark, lanes=2, trigger=AVAILABLE_NOW)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), [])
    assert work.lag() == 0


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


@pytest.mark.parametrize("victim", ["executor", "node", "frozen worker"])
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
    assert query.lanes[0].failures >= 1
    until(lambda: not is_alive(pid))
    if victim == "node":
        cluster.add_worker()


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
