"""A broker in a process of its own, for the demo, for tests, and for programs that want one beside them.

The broker gets its own session, so a Ctrl-C meant for the parent does not reach it. It ends when its parent does,
however that ends: it watches its standard input, whose other end only the parent holds.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from keylane.errors import ERROR_PREFIX, BrokerUnavailableError, PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

READY_TIMEOUT_S = 30.0
"""How long to wait for the ready line: recovering a large data folder takes its time, an empty one 0.3 s."""
STOP_TIMEOUT_S = 15.0
_READY = re.compile(r"keylane broker ready on (?P<host>\S+):(?P<port>\d+) ")


class BrokerProcess:
    """A running broker. Raises `PeerError` with the broker's own words when it does not start."""

    def __init__(
        self,
        data_dir: str | Path,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
        log: str | Path | None = None,
    ) -> None:
        """Start a broker on `data_dir` and wait until it is ready.

        `settings` are options under Kafka's names. The broker's log goes to the file `log`, by default to `broker.log`
        beside the data folder.
        """
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        self.port = port
        self.log = Path(log) if log is not None else self.data_dir.with_name(self.data_dir.name + ".broker.log")
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def bootstrap(self) -> str:
        """`host:port`, for `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UsageError(f"the broker on {self.data_dir} is not running: start() it first")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it (again), on the same port and data as before. Raises `UsageError` when it runs."""
        if self.is_running:
            raise UsageError(f"the broker on {self.data_dir} runs already, as process {self.pid}")
        command = [sys.executable, "-m", "keylane.broker", "--until-stdin-ends"]
        command += ["--data-dir", str(self.data_dir), "--host", self.host, "--port", str(self.port)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log_start = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        line = self._read_line()
        ready = _READY.match(line)
        if ready is None:
            self.kill()
            with self.log.open("rb") as log:
                log.seek(log_start)
                said = log.read().decode(errors="replace").strip().splitlines()
            reason = said[-1].removeprefix(ERROR_PREFIX) if said else "it said nothing"
            raise PeerError(f"the broker on {self.data_dir} did not start: {reason} (log: {self.log})")
        self.port = int(ready["port"])

    def kill(self) -> None:
        """SIGKILL: what a crash of the process is."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM and wait: a clean stop. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: a broker that does not answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: ends `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it still runs, and start it on the same port and data."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.terminate()

    def _read_line(self) -> str:
        """The first line of its output; what there is of it when it ends or takes too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        fd = self._process.stdout.fileno()
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while not line.endswith(b"\n") and selector.select(max(deadline - time.monotonic(), 0)):
                piece = os.read(fd, 4_096)
                if not piece:
                    break
                line += piece
        return line.decode(errors="replace")

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
            if number is not signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerUnavailableError(
                f"the broker on {self.data_dir} did not stop within {STOP_TIMEOUT_S} s and was killed (log: {self.log})"
            ) from None
        finally:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        return code
