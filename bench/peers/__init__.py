"""The peers that keylane is measured against and tested with, run as real processes on this machine.

Apache Kafka and its tools come as jars through Maven, once, into a cache folder (`KEYLANE_PEERS`, default
`~/.cache/keylane/peers`). Nothing here is needed to use keylane; what needs it asks `missing()` first and says why
it is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = Path(__file__).parent
START_TIMEOUT_S = 90
"""A cold JVM on a busy machine takes some 10 s; beyond this it is not coming."""


def missing() -> str | None:
    """What this machine lacks to run the peers (Java 17+ and Maven), in one line; None when it lacks nothing."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not on the PATH"
    return None


def jars(name: str) -> Path:
    """The folder with the jars that `<name>.xml` names; fetched by Maven on first use, whole or not at all."""
    pom = _HERE / f"{name}.xml"
    cache = Path(os.environ.get("KEYLANE_PEERS") or Path.home() / ".cache/keylane/peers")
    folder = cache / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as part:
                goal = ["dependency:copy-dependencies", f"-DoutputDirectory={part}/jars"]
                subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True, stdin=subprocess.DEVNULL)
                Path(part, "jars").rename(folder)
    return folder


def version(name: str, artifact: str) -> str:
    """Of an artifact, as `<name>.xml` pins it."""
    text = (_HERE / f"{name}.xml").read_text()
    pin = re.search(rf"<artifactId>{re.escape(artifact)}</artifactId><version>(.*?)</version>", text)
    assert pin is not None, f"{name}.xml has no {artifact}"
    return pin[1]


def kafka_tool(main_class: str, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run one of Apache Kafka's own Java tools and return what it printed; the exit code is the caller's to judge."""
    command = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars('kafka')}/*", main_class]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


class ApacheKafka:
    """A real Apache Kafka 4.3.1 (KRaft, one node, default durability: no sync) on free ports of 127.0.0.1.

    A context manager: its data lives in a temporary folder and goes with it. `settings` are Kafka's own server
    properties and win over the few that a single node needs.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, heap_mb: int = 768) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keylane-kafka-", ignore_cleanup_errors=True)
        self._settings = dict(settings or {})
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._controller_port = _free_ports(2)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._format()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(signal.SIGTERM)
        self._folder.cleanup()

    def start(self) -> None:
        """Start the broker on its data; returns when it answers. Raises `RuntimeError` with the end of its log."""
        log = Path(self._folder.name, "broker.log")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties), heap_mb=self._heap_mb),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"Apache Kafka did not come up: {log.read_text(errors='replace')[-800:]}")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the broker; after SIGTERM it has 20 s to shut down."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def _properties(self) -> Path:
        return Path(self._folder.name, "server.properties")

    def _java(self, main_class: str, *arguments: str, heap_mb: int) -> list[str]:
        log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", f"-Xmx{heap_mb}m", log_level, "-cp", f"{jars('kafka')}/*", main_class, *arguments]

    def _format(self) -> None:
        lines = [f"{name}={value}" for name, value in (self._single_node() | self._settings).items()]
        self._properties.write_text("\n".join(lines) + "\n")
        tool = "kafka.tools.StorageTool"
        cluster = subprocess.run(
            self._java(tool, "random-uuid", heap_mb=64), check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        arguments = ("format", "-t", cluster, "-c", str(self._properties))
        subprocess.run(self._java(tool, *arguments, heap_mb=64), check=True, capture_output=True)

    def _single_node(self) -> dict[str, str]:
        ones = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor",
                "transaction.state.log.min.isr", "share.coordinator.state.topic.replication.factor",
                "share.coordinator.state.topic.min.isr", "node.id")  # fmt: skip
        fours = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")
        listener, controller = f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://127.0.0.1:{self._controller_port}"
        return dict.fromkeys(ones, "1") | dict.fromkeys(fours, "4") | {
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"{listener},{controller}",
            "advertised.listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(Path(self._folder.name, "data")),
            "group.initial.rebalance.delay.ms": "0",
        }  # fmt: skip


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]
