"""Kills in the middle of the demo on Spark lanes: it finishes by itself, and runs again only what no commit covered.

What the group has committed is read by another client, right before the broker is the last to die. After the run the
kept broker is started once more, and both topics are held against each other.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.outputs import Outputs, covered
from kit.processes import Started, is_alive, parent, words

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = 1_200
TIMEOUT_S = 300
"""Ten times what it takes on an idle machine of two cores."""

DAEMON = b"pyspark.daemon"
"""Of Python workers, on a cluster."""
MASTER = "local-cluster[2,2,1024]"
LEAST_THREADS = 6
"""A Python worker that runs a lane has the threads of the engine and of its clients; an idle one has few."""


class Demo:
    """A demo on lanes that has come to the middle of its work."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self._process = process
        self._place = place
        self._told = ""
        bootstrap = self._read_until(r"embedded broker: .* (127\.0\.0\.1:\d+), data in")
        self.admin = Admin({"bootstrap.servers": bootstrap})
        self._read_until(rf"Spark lanes: [1-9][\d,]* of {RECORDS:,}.* lag (?!{RECORDS:,})")

    def finish(self) -> dict[str, Any]:
        out, told = self._process.communicate(timeout=TIMEOUT_S)
        assert self._process.returncode == 0, self._told + told
        report: dict[str, Any] = json.loads(out.splitlines()[-1])
        return report

    def worker(self) -> int:
        """A Python worker that runs a lane."""
        workers = [
            pid
            for pid, command in self._processes()
            if DAEMON in command and len(list(Path(f"/proc/{pid}/task").glob("*"))) >= LEAST_THREADS
        ]
        assert workers, "no lane runs"
        return workers[0]

    def executor(self) -> int:
        """The executor's JVM above that worker: its parent is the workers' daemon."""
        executor = parent(parent(self.worker()))
        assert any(b"CoarseGrainedExecutorBackend" in word for word in words(executor))
        return executor

    def broker(self) -> int:
        return next(pid for pid, command in self._processes() if b"keylane.broker" in command)

    def _read_until(self, pattern: str) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._told += line
            if found := re.search(pattern, line):
                return found.group(found.lastindex or 0)
        raise AssertionError(f"the demo never said {pattern!r}: {self._told}")

    def _processes(self) -> list[tuple[int, list[bytes]]]:
        """The processes that this demo has started: all have its folder for temporary files in their environment."""
        mine = f"TMPDIR={self._place / 'tmp'}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mine in (process / "environ").read_bytes().split(b"\0"):
                    found.append((int(process.name), (process / "cmdline").read_bytes().split(b"\0")))
            except OSError:
                continue  # it has ended, or is not ours to look at
        return found


@contextmanager
def demo(place: Path) -> Iterator[Demo]:
    home = place / "spark-home"  # executors work below it, and not in the installed package
    home.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        (home / one.name).symlink_to(one)
    (place / "tmp").mkdir()
    command = [sys.executable, "-m", "keylane", "demo", "--json", "--keep", "kept", "--records", str(RECORDS)]
    with Started(
        [*command, "--lanes", "2", "--master", MASTER, "--latency-ms", "400", "--max-concurrency", "60"],
        cwd=place,
        env=os.environ | {"TMPDIR": str(place / "tmp"), "SPARK_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Demo(process, place)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def kill(pid: int) -> None:
    """Returns when it is gone: nobody takes it for another one that still runs."""
    os.kill(pid, signal.SIGKILL)
    while is_alive(pid):
        time.sleep(0.01)


@pytest.mark.full
def test_kills_in_the_middle_lose_nothing_and_the_run_finishes_by_itself(tmp_path: Path) -> None:
    """First the worker of one lane, then the executor of the other one, and while both come back the broker."""
    with demo(tmp_path) as run:
        kill(run.worker())
        kill(run.executor())
        embedded = run.broker()
        known = covered(run.admin, "weather")
        kill(embedded)
        report = run.finish()
    assert [report[name] for name in ("records", "lost", "out_of_order", "altered", "foreign", "lag")] == [
        RECORDS, 0, 0, 0, 0, 0
    ]  # fmt: skip
    assert report["broker_restarts"] == 1
    with BrokerProcess(tmp_path / "kept" / "broker") as broker:
        seen = Outputs.read(broker.bootstrap, "flights", "flights.enriched")
    assert len(seen.inputs) == RECORDS
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    done = {source for source in seen.inputs if source in known}
    assert 0 < len(done) < RECORDS, "it was killed in the middle"
    assert seen.repeated & done == set(), "what an acknowledged commit covers does not run again"
