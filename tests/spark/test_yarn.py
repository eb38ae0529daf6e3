"""keylane on a real YARN: what the page docs/clusters.md says to run, and what of it is killed.

The executors' Python, with all its packages, is that of an archive. Nothing is believed but the topics.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
import pytest
from peers.yarn import Yarn

from keylane.kafka.bulk import read_to_end
from keylane.spark.java import find_java
from kit.jvms import LIGHT
from kit.kills import Kills
from kit.submit import command_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 600
"""For what takes half a minute on an idle machine."""
POLL_S = 0.2
RECORDS = 3_000
PARTITIONS = 4
SOAK_KILLS = int(os.environ.get("KEYLANE_SOAK_KILLS", "20"))
SOAK_RECORDS = 1_500
"""Added before each kill."""
VICTIMS = {
    "client": ("executor", "ApplicationMaster", "executor", "driver"),
    "cluster": ("executor", "executor", "driver"),
}
"""Who is killed, in turn. In cluster mode the driver is in the ApplicationMaster."""
PROGRAM = Path(__file__).with_name("driver_program.py")
TINY = {  # for many JVMs on a small machine, on loopback, in a hurry
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.yarn.am.memory": "384m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.yarn.am.extraJavaOptions": LIGHT,
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.yarn.scheduler.heartbeat.interval-ms": "500",
    "spark.yarn.scheduler.initial-allocation.interval": "100ms",
    "spark.sql.shuffle.partitions": "4",
}


@pytest.fixture
def yarn(java: None) -> Iterator[Yarn]:
    if (lack := peers.missing()) is not None:
        pytest.skip(lack)
    with Yarn() as made:
        yield made


class Job:
    """One `spark-submit`, which waits for the end of its application. In client mode it is the driver, too."""

    def __init__(self, mode: str, yarn: Yarn, folder: Path, work: Any, *arguments: str, **settings: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self._yarn, self._work = yarn, work
        self._log = yarn.folder / f"{mode}-{len(yarn.applications())}.log"
        command, settings = command_of("yarn "), {**TINY, **settings}
        command[command.index("cluster")] = mode
        settings["spark.yarn.jars"] = f"local:{home}/jars/*"  # else each job uploads them
        settings["spark.yarn.stagingDir"] = f"file:{yarn.folder}/staging"
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(PROGRAM), "yarn", work.servers, work.group, work.topic, work.output, *arguments]
        own = {"JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1", **yarn.environment}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=inherited | own, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL to `spark-submit` and to what it has started on this side."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def until_left(self, count: int) -> None:
        """Waits until no more records than these are to be done; it may not end before."""
        deadline = time.monotonic() + PATIENCE_S
        while self._work.left() > count:
            assert not self.has_ended, self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(POLL_S)

    def result(self) -> int:
        """Its exit code, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        assert self.has_ended, self.told()
        return self.process.returncode

    def told(self) -> str:
        return f"{self._log.read_text(errors='replace')[-3_000:]}\n{self._yarn.log_tails()}"


def judge(work: Any, kills: Kills) -> None:
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert kills.ran_again() == []
    assert work.lag() == 0


def kill_one(of: Callable[[], list[int]], choose: random.Random, job: Job) -> None:
    """SIGKILL to one of these processes, once there is any."""
    deadline = time.monotonic() + PATIENCE_S
    while not (pids := of()):
        assert time.monotonic() < deadline, job.told()
        time.sleep(POLL_S)
    os.kill(choose.choice(sorted(pids)), signal.SIGKILL)


def by_key(servers: str, topic: str) -> dict[bytes | None, list[bytes | None]]:
    """The values of each key, in the order of the log."""
    found = defaultdict(list)
    records = [one for batch in read_to_end(servers, topic) for one in batch]
    for one in sorted(records, key=lambda one: (one.partition, one.offset)):
        found[one.key].append(one.value)
    return dict(found)


@pytest.fixture
def kills(work: Any) -> Kills:
    return Kills(work.admin, work.servers, work.group, work.output, PARTITIONS)


@pytest.mark.cluster
def test_an_executor_and_the_driver_are_killed(yarn: Yarn, environment: Path, work: Any, kills: Kills) -> None:
    """In cluster mode: YARN's second attempt does the rest."""
    die_and_go_on("cluster", yarn, environment, work, kills)
    (application,) = yarn.applications()
    assert yarn.attempts(application) == 2


@pytest.mark.soak  # two drivers, half a minute more
def test_an_executor_and_the_driver_are_killed_in_client_mode(
    yarn: Yarn, environment: Path, work: Any, kills: Kills
) -> None:
    """Another `spark-submit` does the rest."""
    die_and_go_on("client", yarn, environment, work, kills)


def die_and_go_on(mode: str, yarn: Yarn, environment: Path, work: Any, kills: Kills) -> None:
    """First an executor, then the driver; whoever goes on also copies all outputs as a DataFrame."""
    work.fill(RECORDS)
    rows = f"{work.output}-rows"
    work.admin.create_topics({rows: PARTITIONS})
    arguments = ("--lanes", "3", "--until-done", "--rows-to", rows)
    with contextlib.ExitStack() as jobs:
        job = jobs.enter_context(Job(mode, yarn, environment, work, *arguments))
        job.until_left(RECORDS * 4 // 5)
        os.kill(yarn.executors()[0], signal.SIGKILL)
        kills.note("executor")
        job.until_left(RECORDS * 3 // 5)
        if mode == "client":
            job.kill()
        else:
            (driver,) = yarn.masters()
            os.kill(driver, signal.SIGKILL)
        kills.note("driver")
        assert work.left() > 0, "killed in the middle"
        if mode == "client":
            job = jobs.enter_context(Job(mode, yarn, environment, work, *arguments))
        assert job.result() == 0, job.told()
    judge(work, kills)
    outputs = by_key(work.servers, work.output)
    assert by_key(work.servers, rows) == {key: [(value or b"") + b"!" for value in outputs[key]] for key in outputs}


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_many_kills(mode: str, yarn: Yarn, environment: Path, work: Any, kills: Kills, record_property: Any) -> None:
    """Executors, ApplicationMasters and drivers die in turn, half of all kills in each mode."""
    choose = random.Random(20_26)
    arguments = ("--lanes", "3", "--failure-window-ms", "5000")
    settings = {"spark.yarn.maxAppAttempts": "20", "spark.executor.maxNumFailures": "1000"}
    work.fill(SOAK_RECORDS)
    job = Job(mode, yarn, environment, work, *arguments, **settings)
    try:
        for number in range(SOAK_KILLS // 2):
            work.fill(SOAK_RECORDS)
            job.until_left(work.left() - SOAK_RECORDS // 2)
            what = VICTIMS[mode][number % len(VICTIMS[mode])]
            print(f"{mode}: {number + 1} of {SOAK_KILLS // 2}: {what}, {work.left()} left", flush=True)  # noqa: T201
            if what == "driver" and mode == "client":
                job.kill()
            else:
                kill_one(yarn.executors if what == "executor" else yarn.masters, choose, job)
            kills.note(what)
            if job.has_ended:
                job = Job(mode, yarn, environment, work, *arguments, **settings)
        job.until_left(0)
    finally:
        job.kill()
    judge(work, kills)
    seen = work.outputs()
    record_property("kills", len(kills))
    record_property("records", len(seen.inputs))
    record_property("run again", len(seen.outputs) - len(seen.inputs))
