"""The peers that keylane is measured against and tested with, run as real processes on this machine.

Apache Kafka and its tools come as jars through Maven, once, into a cache folder (`KEYLANE_PEERS`, default
`~/.cache/keylane/peers`), in one of the releases `KAFKAS` (`KEYLANE_KAFKA`, default the first). Nothing here is needed
to use keylane; what needs it asks `missing()` first and says why it is left out.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_HERE = Path(__file__).parent
KAFKAS = ("4.3.1", "4.4.0")
"""The releases of Apache Kafka that run here: brokers, tools, clients and Streams."""
_RELEASE = "${kafka.version}"
"""What stands for the chosen one in the files that pin versions."""
START_TIMEOUT_S = 90
"""A cold JVM on a busy machine takes some 10 s; beyond this it is not coming."""


def missing() -> str | None:
    """What this machine lacks to run the peers (Java 17+ and Maven), in one line; None when it lacks nothing."""
    if os.environ.get("KEYLANE_NO_PEERS") == "1":
        return "`make test` fetches nothing by Maven: `make test-full` runs it"
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not on the PATH"
    return None


def kafka_release() -> str:
    """The one of `KAFKAS` that runs. Raises `ValueError` for another."""
    chosen = os.environ.get("KEYLANE_KAFKA") or KAFKAS[0]
    if chosen not in KAFKAS:
        raise ValueError(f"KEYLANE_KAFKA={chosen}: give one of {', '.join(KAFKAS)}")
    return chosen


def older_than(release: str) -> str | None:
    """In one line that the Apache Kafka that runs here is older than this release; None when it is not."""
    have, wanted = ([int(part) for part in one.split(".")] for one in (kafka_release(), release))
    return f"Apache Kafka {kafka_release()} is older than {release}: set KEYLANE_KAFKA" if have < wanted else None


def jars(name: str) -> Path:
    """The folder with the jars that `<name>.xml` names; fetched by Maven on first use."""
    pom = _HERE / f"{name}.xml"
    release = kafka_release() if _RELEASE in pom.read_text() else ""

    def fetch(folder: Path) -> None:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", f"-Dkafka.version={release}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True, stdin=subprocess.DEVNULL)

    return cached(name, [pom], fetch, release.encode())


def cached(name: str, sources: Iterable[Path], make: Callable[[Path], None], what: bytes = b"") -> Path:
    """A folder of the cache that `make` fills on first use, whole or not at all; another one for other sources, and
    for `what` else it is made of."""
    digest = hashlib.sha256(what)
    for source in sources:
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("KEYLANE_PEERS") or Path.home() / ".cache/keylane/peers")
    folder = cache / f"{name}-{digest.hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as part:
                made = Path(part, "made")
                made.mkdir()
                make(made)
                made.rename(folder)
    return folder


def version(name: str, artifact: str) -> str:
    """Of an artifact, as `<name>.xml` pins it."""
    text = (_HERE / f"{name}.xml").read_text()
    pin = re.search(rf"<artifactId>{re.escape(artifact)}</artifactId><version>(.*?)</version>", text)
    assert pin is not None, f"{name}.xml has no {artifact}"
    return kafka_release() if pin[1] == _RELEASE else pin[1]


def kafka_tool(main_class: str, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run one of Apache Kafka's own Java tools and return what it printed; the exit code is the caller's to judge."""
    command = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars('kafka')}/*", main_class]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def config_command() -> str:
    """The class of kafka-configs.sh."""
    return "kafka.admin.ConfigCommand" if older_than("4.4") else "org.apache.kafka.tools.ConfigCommand"


class Node:
    """One process of Apache Kafka on 127.0.0.1, with its server properties, its data and its log in a folder."""

    def __init__(self, folder: Path, properties: Mapping[str, str], port: int, *, options: Sequence[str]) -> None:
        """`port` is the one that clients connect to; `options` are the JVM's."""
        self.port = port
        self._folder = folder
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        lines = [f"{name}={value}" for name, value in ({"log.dirs": str(self._data)} | dict(properties)).items()]
        self._properties.write_text("\n".join(lines) + "\n")

    def format(self, cluster_id: str) -> None:
        """Make an empty data folder, as a node of this cluster; what was in it is gone."""
        shutil.rmtree(self._data, ignore_errors=True)
        arguments = ("format", "-t", cluster_id, "-c", str(self._properties))
        command = _java("kafka.tools.StorageTool", *arguments, options=["-Xmx64m"])
        subprocess.run(command, check=True, capture_output=True)

    def launch(self) -> None:
        """Start the process on its data, and do not wait for it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                _java("kafka.Kafka", str(self._properties), options=self._options),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers. Raises `RuntimeError` with the end of its log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"Apache Kafka did not come up: {self._log.read_text(errors='replace')[-800:]}")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the process; after SIGTERM it has 20 s to shut down."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def processor_s(self) -> float:
        assert self._process is not None, "the node is down"
        return processor_s(self._process.pid)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, and nothing answers, when this returns."""
        assert self._process is not None, "the node is down"
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        """SIGCONT."""
        assert self._process is not None, "the node is down"
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"


class ApacheKafka:
    """A real Apache Kafka (KRaft, one node, default durability: no sync) on free ports of 127.0.0.1.

    A context manager: its data lives in a temporary folder and goes with it. `settings` are Kafka's own server
    properties and win over the few that a single node needs.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, heap_mb: int = 768) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keylane-kafka-", ignore_cleanup_errors=True)
        self.port, controller_port = free_ports(2)
        properties = single_node(self.port, controller_port) | dict(settings or {})
        self._node = Node(Path(self._folder.name, "node"), properties, self.port, options=[f"-Xmx{heap_mb}m"])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._node.format(new_cluster_id())
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
        self._node.launch()
        self._node.wait()

    def processor_s(self) -> float:
        """What the process has used of processors, by Linux's count."""
        return self._node.processor_s()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the broker; after SIGTERM it has 20 s to shut down."""
        self._node.kill(how)


def new_cluster_id() -> str:
    """As `kafka-storage random-uuid` makes them: 16 bytes in the URL-safe base 64, without a `-` in front."""
    first, *others = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, below those that the system gives to outgoing connections: while a broker is
    down, no client's connection may take the port that it is to come back on."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, highest)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [port] if port not in found else []
    return found


def free_row(count: int) -> int:
    """The first of so many such ports, one after the other."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(10_000, highest - count)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first


def processor_s(pid: int) -> float:
    """User and system time of a process so far (proc(5): fields 14 and 15, in clock ticks)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def single_node(port: int, controller_port: int) -> dict[str, str]:
    ones = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor",
            "transaction.state.log.min.isr", "share.coordinator.state.topic.replication.factor",
            "share.coordinator.state.topic.min.isr", "node.id")  # fmt: skip
    fours = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")
    return listening(port, controller_port) | dict.fromkeys(ones, "1") | dict.fromkeys(fours, "4") | {
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "group.initial.rebalance.delay.ms": "0",
    }  # fmt: skip


def listening(port: int, controller_port: int) -> dict[str, str]:
    """The properties of a node that is a broker and a controller, and where it listens as which."""
    client = f"PLAINTEXT://127.0.0.1:{port}"
    both = f"{client},CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "listeners": both,
        "advertised.listeners": client,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def _java(main_class: str, *arguments: str, options: Sequence[str]) -> list[str]:
    log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", *options, log_level, "-cp", f"{jars('kafka')}/*", main_class, *arguments]
