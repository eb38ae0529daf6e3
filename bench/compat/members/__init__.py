"""Members of groups, and producers, each a small program with somebody else's client.

A program is given BOOTSTRAP TOPIC ROLE WHAT. With the role `produce`, WHAT is how many records it produces, with
idempotence where the client has it. With `classic`, `consumer` (KIP-848) or `share` (KIP-932), WHAT is a group: it is a
member of it from the beginning of the topic on, tells `PARTITION OFFSET` in a line of each record when its commit or
acknowledgement is answered, and leaves the group when its standard input ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import peers
from peers import jvm

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
END_S = 60
KRAFKA, FRANZ, SARAMA, KAFKAJS = "0.28.1", "1.22.3", "1.61.1", "2.2.4"
"""As their folders pin them."""


class Client(NamedTuple):
    """Somebody else's client."""

    name: str
    version: str
    protocols: tuple[str, ...]
    missing: Callable[[], str | None]
    """What this machine lacks to build and run its program, in one line; None when it lacks nothing."""
    command: Callable[[], list[str]]
    """What runs its program; built on first use."""


def lacking(*tools: str) -> str | None:
    """The first of them that this machine does not have, in a sentence."""
    return next((f"{tool} is not on the PATH" for tool in tools if shutil.which(tool) is None), None)


def _python(client: str) -> list[str]:
    return [sys.executable, str(HERE / "python.py"), client]


def _java() -> list[str]:
    jars, source = peers.jars("kafka"), HERE / "Member.java"
    classes = peers.cached("compat-java", [source], lambda folder: jvm.compile_into(folder, jars, [source]))
    options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return ["java", *options, "-cp", f"{classes}:{jars}/*", "Member"]


def _go(program: str) -> list[str]:
    source = HERE / "go"

    def build(folder: Path) -> None:
        _run(["go", "build", "-o", str(folder), "./..."], source)

    files = [source / "go.mod", source / "go.sum", *source.glob("*/main.go")]
    return [str(peers.cached("compat-go", sorted(files), build) / program)]


def _rust() -> list[str]:
    source = HERE / "krafka"

    def build(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        _run(["cargo", "build", "--quiet"], folder)
        (folder / "target" / "debug" / "krafka-member").rename(folder / "member")
        shutil.rmtree(folder / "target")

    return [str(peers.cached("compat-krafka", [source / "Cargo.toml", source / "src" / "main.rs"], build) / "member")]


def _node() -> list[str]:
    def install(folder: Path) -> None:
        _run(["npm", "install", "--silent", "--prefix", str(folder), f"kafkajs@{KAFKAJS}"], folder)
        shutil.copy(HERE / "kafkajs" / "member.js", folder)

    folder = peers.cached("compat-kafkajs", [HERE / "kafkajs" / "member.js"], install, KAFKAJS.encode())
    return ["node", str(folder / "member.js")]


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL)


_ALL = (CLASSIC, CONSUMER, SHARE)
CONFLUENT = Client(
    "confluent-kafka", version("confluent-kafka"), _ALL, lambda: None, partial(_python, "confluent-kafka")
)
CLIENTS = (
    CONFLUENT,
    Client("kafka-python", version("kafka-python"), (CLASSIC,), lambda: None, partial(_python, "kafka-python")),
    Client("aiokafka", version("aiokafka"), (CLASSIC,), lambda: None, partial(_python, "aiokafka")),
    Client("Java's clients", peers.version("kafka", "kafka-tools"), _ALL, jvm.missing, _java),
    Client("franz-go", FRANZ, _ALL, partial(lacking, "go"), partial(_go, "franz")),
    Client("sarama", SARAMA, (CLASSIC,), partial(lacking, "go"), partial(_go, "sarama")),
    Client("krafka", KRAFKA, _ALL, partial(lacking, "cargo", "cc"), _rust),
    Client("kafkajs", KAFKAJS, (CLASSIC,), partial(lacking, "node", "npm"), _node),
)


class Member:
    """A running member of a group. A context manager: leaving it ends the process. `told` are partition and offset of
    the records that it has told of; it grows on a thread of its own."""

    def __init__(self, client: Client, bootstrap: str, topic: str, protocol: str, group: str) -> None:
        self.told: set[tuple[int, int]] = set()
        self._process = subprocess.Popen(
            [*client.command(), bootstrap, topic, protocol, group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._name = f"{client.name} ({protocol})"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, offset = map(int, line.split())
            self.told.add((partition, offset))

    def check(self) -> None:
        """Raises `AssertionError` when it has ended by itself."""
        code = self._process.poll()
        assert code is None, f"{self._name} has ended with {code}"

    def end(self) -> None:
        """Let it leave its group, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(END_S)
        assert code == 0, f"{self._name} ends with {code}"
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def produce(client: Client, bootstrap: str, topic: str, count: int) -> None:
    """With the client's own producer."""
    command = [*client.command(), bootstrap, topic, "produce", str(count)]
    done = subprocess.run(
        command, env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 0, done.stderr[-300:]
