"""Offset servers as processes, for tests that kill them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from peers import free_row

if TYPE_CHECKING:
    from collections.abc import Sequence

READY_S = 60.0
SETTLE_S = 300.0
"""For what takes ten seconds on an idle machine."""
BROKERS = 4
"""Ids of the log's brokers are below this."""
_STOOD_STILL = re.compile(r"this server stood still for ([0-9.]+) s")
_READY = re.compile(rb"keylane offset server ready on 127\.0\.0\.1:(\d+) ")


class OffsetServer:
    """One process. `--until-stdin-ends`: it ends with the test."""

    def __init__(
        self,
        log: str,
        file: Path,
        *arguments: str,
        protocol: str = "PLAINTEXT",
        port: int | None = None,
        brokers: int = 4,
    ) -> None:
        """`log` are the brokers; `file` takes what it logs; `brokers`: ids of the log's brokers are below this."""
        self.port = port or free_row(1 + brokers)
        command = [sys.executable, "-m", "keylane", "-v", "offsets", "serve", "--until-stdin-ends", "--log", log]
        with file.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--listen", f"{protocol}://127.0.0.1:{self.port}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert _READY.match(line), f"{line!r}, and in {file}: {file.read_text()[-2_000:]}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def second_line(self) -> str:
        """What it says after it is ready; once."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
        code = self._process.wait(SETTLE_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return code


class OffsetServers:
    """Several of one log. A context manager: at its end all are killed."""

    def __init__(self, log: str, folder: Path, count: int, *arguments: str, protocol: str = "PLAINTEXT") -> None:
        self.log = log
        self._folder = folder
        self._arguments = arguments
        self._protocol = protocol
        self.running: list[OffsetServer] = []
        self._stack = ExitStack()
        for _ in range(count):
            self.add()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(one.address for one in self.running)

    def add(self, port: int | None = None) -> OffsetServer:
        """One more."""
        number = len(list(self._folder.glob("server-*.log")))
        made = OffsetServer(
            self.log, self._folder / f"server-{number}.log", *self._arguments, protocol=self._protocol, port=port
        )
        self._stack.callback(made.kill)
        self.running.append(made)
        return made

    def kill(self, one: OffsetServer) -> None:
        self.remove(one)
        one.kill()

    def stop(self, one: OffsetServer) -> None:
        """SIGTERM."""
        self.remove(one)
        assert one.stop() == 0

    def remove(self, one: OffsetServer) -> None:
        """It is not to be counted on."""
        self.running.remove(one)

    def status(self) -> dict[str, Any]:
        """What `keylane offsets status` says."""
        found, errors = self._ask_status()
        assert found is not None, errors
        return found

    def _ask_status(self) -> tuple[dict[str, Any] | None, str]:
        """None, and why, where no broker has answered."""
        options = [one for one in self._arguments if one == "--allow-unreplicated-log"]
        for name in ("--command-config", "--servers-config"):
            if name in self._arguments:
                at = self._arguments.index(name)
                options += self._arguments[at : at + 2]
        command = [sys.executable, "-m", "keylane", "offsets", "status", "--json", "--log", self.log, *options]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode in (0, 1), ran.stderr
        return json.loads(ran.stdout) if ran.stdout else None, ran.stderr

    def settled(self) -> dict[str, list[int]]:
        """What each leads, once exactly the running ones lead everything."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            found, errors = self._ask_status()
            if found is not None:
                leads = {one["server"]: one["leads"] for one in found["servers"]}
                names = sorted(one.address for one in self.running)
                if sorted(leads) == names and not found["without_leader"] and found["state"] == "stable":
                    return leads
            assert time.monotonic() < deadline, found or errors
            time.sleep(0.1)

    def told(self) -> str:
        """What all of them have logged."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("server-*.log")))

    def stood_still_s(self) -> Counter[float]:
        """For how long servers had no turn, as they have logged it: frozen, or without a processor."""
        return Counter(map(float, _STOOD_STILL.findall(self.told())))


def pace(heartbeat_ms: int, session_ms: int) -> tuple[str, ...]:
    """Options of a server, for groups of KIP-848: its default of 5 s makes a rebalance take some 15 s."""
    found: list[str] = []
    for what, value in (("heartbeat.interval.ms", heartbeat_ms), ("session.timeout.ms", session_ms)):
        for name in (f"group.consumer.min.{what}", f"group.consumer.{what}"):
            found += ["--set", f"{name}={value}"]
    return tuple(found)


def peers_of(pid: int) -> set[int]:
    """The ports on this machine that a process is connected to; none once it has ended."""
    inodes = set()
    with suppress(OSError):  # it ends, or closes one of them
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = link.readlink().name
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    return {int(fields[2].rpartition(":")[2], 16) for fields in rows if fields[9] in inodes}


def ports_of(addresses: str | Sequence[str]) -> set[int]:
    """Of `host:port,…`."""
    names = addresses.split(",") if isinstance(addresses, str) else addresses
    return {int(one.rpartition(":")[2]) for one in names}
