"""Our Java programs beside the JVM Parallel Consumer: compiled once, spoken to line by line.

The sources in `java/` are compiled on first use into the peers' cache folder, under a name that holds the hash of
what they were compiled from. A program reads commands from its standard input, answers on its standard output, and
ends when its input does: a parent that dies takes it along.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

import peers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OFFSET_MAP_ORACLE = "io.confluent.parallelconsumer.offsets.OffsetMapOracle"
HAND_OVER = "keylane.peers.HandOver"
BENCH = "keylane.peers.Bench"
TRANSACTIONS = "keylane.peers.Transactions"

_SOURCES = Path(__file__).parent / "java"
_JARS = "parallel_consumer"
_STOP_TIMEOUT_S = 20
_LOG = "-Dorg.slf4j.simpleLogger"
_QUIET = [
    f"{_LOG}.defaultLogLevel=error",
    # It logs a stack trace at most of its normal closes.
    f"{_LOG}.log.io.confluent.parallelconsumer.internal.AbstractParallelEoSStreamProcessor=off",
]


def missing() -> str | None:
    """What this machine lacks to compile and run the programs (a JDK 17+ and Maven); None when it lacks nothing."""
    return peers.missing() or (None if shutil.which("javac") else "javac is not on the PATH")


def classes() -> Path:
    """The folder with the compiled programs; compiled on first use."""
    jars = peers.jars(_JARS)
    sources = sorted(_SOURCES.glob("*.java"))
    return peers.cached(
        f"{_JARS}-classes", sources, lambda folder: compile_into(folder, jars, sources), jars.name.encode()
    )


def compile_into(folder: Path, jars: Path, sources: Iterable[Path]) -> None:
    """Any warning is an error."""
    options = ["-Xlint:all,-processing,-classfile", "-Werror", "-proc:none", "-cp", f"{jars}/*"]
    subprocess.run(["javac", *options, "-d", str(folder), *map(str, sources)], check=True, stdin=subprocess.DEVNULL)


class LineProcess:
    """A process that is asked and answers line by line. A context manager: leaving it ends the process.

    Thread safety: one thread at a time.
    """

    def __init__(self, command: list[str], log: str | Path | None = None) -> None:
        """Start `command`; what it says on its standard error goes to the file `log`, or to ours."""
        with contextlib.ExitStack() as stack:
            error = None if log is None else stack.enter_context(Path(log).open("ab"))
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, text=True, start_new_session=True
            )
        self._command = command

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """What it says from here on, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip("\n")

    def ask(self, line: str) -> str:
        """Send one line and return the line that answers it. Raises `RuntimeError` when the process ended instead."""
        self.tell(line)
        for answer in self.lines():
            return answer
        raise RuntimeError(f"{self._command[-1]} ended with {self._process.wait()} on {line[:80]!r}")

    def kill(self) -> None:
        """SIGKILL, from any thread: its lines end."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its input and wait for its end; after 20 s it is killed."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def command(main_class: str, *arguments: str, heap_mb: int = 256) -> list[str]:
    """The command line that runs one of the programs."""
    path = f"{classes()}:{peers.jars(_JARS)}/*"
    return ["java", f"-Xmx{heap_mb}m", "-Xshare:auto", *_QUIET, "-cp", path, main_class, *arguments]


def streams(*arguments: str, heap_mb: int = 256) -> list[str]:
    """The command line that runs our application of Kafka Streams, which Java compiles as it starts it."""
    path = f"{peers.jars('kafka_streams')}/*"
    source = str(_SOURCES / "streams" / "Streams.java")
    return ["java", f"-Xmx{heap_mb}m", f"{_LOG}.defaultLogLevel=error", "-cp", path, source, *arguments]


def transactions(*arguments: str, heap_mb: int = 128) -> list[str]:
    """The command line that runs `TRANSACTIONS` with today's Java client."""
    source = str(_SOURCES / "Transactions.java")
    options = [f"-Xmx{heap_mb}m", f"{_LOG}.defaultLogLevel=error"]
    return ["java", *options, "-cp", f"{peers.jars('kafka')}/*", source, *arguments]


def admin(bootstrap: str, *, heap_mb: int = 256) -> list[str]:
    """The command line that calls each method of Java's Admin, and tells of each in a line."""
    source = str(_SOURCES / "clients" / "AllOfAdmin.java")
    options = [f"-Xmx{heap_mb}m", f"{_LOG}.defaultLogLevel=off"]
    return ["java", *options, "-cp", f"{peers.jars('kafka')}/*", source, bootstrap]


def offset_client(*arguments: str, heap_mb: int = 128) -> list[str]:
    """The command line that runs a group's member with today's Java client: BOOTSTRAP TOPIC GROUP COUNT PROTOCOL."""
    source = str(_SOURCES / "clients" / "OffsetClient.java")
    options = [f"-Xmx{heap_mb}m", f"{_LOG}.defaultLogLevel=error"]
    return ["java", *options, "-cp", f"{peers.jars('kafka')}/*", source, *arguments]
