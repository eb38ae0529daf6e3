"""`keylane run --spark` while it starts: what its probes are told, and how a stop and the end of Spark end it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.cluster import StandaloneCluster
from kit.processes import Started, Stopwatch, of_session, words
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


ENDS_WITHIN_S = 5.0
SLACK_S = 3.0
"""Of a machine that is busy."""
PATIENCE_S = 120.0
"""For a session on a busy machine."""
PIPELINE = """
import keylane as kl

pipeline = kl.Pipeline(kafka={{"bootstrap.servers": "{servers}", "group.id": "g"}}, topics=["t"], handler=print)
"""


class Run:
    """`keylane run --spark`, and what its probes say. Without its `with` block ended, everything of it is killed."""

    def __init__(self, folder: Path, servers: str, master: str, *arguments: str) -> None:
        (folder / "pipeline.py").write_text(PIPELINE.format(servers=servers))
        self._log = folder / "log"
        command = [sys.executable, "-m", "keylane", "run", str(folder / "pipeline.py"), "--spark", master]
        with self._log.open("w") as log:
            self.process = Started(
                [*command, "--health-port", "0", *arguments],
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.began = time.monotonic()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in of_session(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return self._log.read_text()

    def ask(self, path: str) -> tuple[int, str]:
        """Status and text; 0 while nobody answers."""
        found = re.search(r"health at http://\[::\]:(\d+)/", self.said())
        if found is None:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def waits_for(self, text: str) -> None:
        """It is alive all the time, and not ready, until this is the reason."""

        def is_reason() -> bool:
            assert self.process.poll() is None, self.said()
            status, why = self.ask("/readyz")
            if status != 0:
                assert (status, self.ask("/healthz")) == (503, (200, "alive\n"))
            return text in why

        until(is_reason, self.said, PATIENCE_S)

    def obeys(self) -> None:
        """SIGTERM ends it and its JVM in time, without a word of an error."""
        watch = Stopwatch()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.said()
        assert watch.took_s() < ENDS_WITHIN_S + SLACK_S, self.said()
        assert "before it had partitions: nothing was begun\n" in self.said()
        assert "Traceback" not in self.said()
        until(lambda: not of_session(self.process.pid), "its JVM is left", 30)

    def kill_java(self) -> None:
        for pid in of_session(self.process.pid):
            if b"java" in words(pid)[0]:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def empty(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master without workers: its executors never come."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=0) as cluster:
        yield cluster.url


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"t": 1})
        yield broker.bootstrap


@pytest.mark.full
def test_a_stop_ends_the_start_of_a_session(tmp_path: Path, empty: str, servers: str) -> None:
    with Run(tmp_path, servers, empty) as run:
        run.waits_for(f"Spark starts on {empty}, for ")
        run.obeys()


@pytest.mark.full
def test_a_driver_whose_executors_are_missing_is_alive_and_ends_at_once(
    tmp_path: Path, empty: str, servers: str
) -> None:
    with Run(tmp_path, servers, empty, "--lanes", "1") as run:
        run.waits_for("lanes wait for executors on ")
        run.obeys()


@pytest.mark.full
def test_a_jvm_that_ends_while_executors_are_missing_is_told(tmp_path: Path, empty: str, servers: str) -> None:
    with Run(tmp_path, servers, empty, "--lanes", "1") as run:
        run.waits_for("lanes wait for executors on ")
        run.kill_java()
        assert run.process.wait(60) == 1
        assert "keylane: error: the Spark session ended while lanes started: " in run.said()
        assert "defect" not in run.said()
        assert "Traceback" not in run.said()


@pytest.mark.full
def test_a_stop_ends_the_wait_for_a_broker_that_does_not_answer(tmp_path: Path, java: None) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Run(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", "local[2]", "--lanes", "1") as run,
    ):
        run.waits_for("and for what the brokers say")
        run.obeys()
