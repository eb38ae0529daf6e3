"""The weather service as a child process: started, asked for its counts, ended. Needs no aiohttp in this process."""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import PeerError

if TYPE_CHECKING:
    from types import TracebackType

START_TIMEOUT_S = 30
"""To print its address; it takes under a second on an idle machine."""

STOP_TIMEOUT_S = 5
"""From closing its standard input to SIGKILL."""

STATS_TIMEOUT_S = 5


class ServiceStats(NamedTuple):
    """The service's own counts, see `keylane.demo.service.Stats`."""

    in_flight: int
    peak_in_flight: int
    recent_peak: int
    total: int


class ServiceProcess:
    """Starts the service in a session of its own (a terminal's Ctrl-C does not reach it) on a free port."""

    def __init__(self, latency_ms: int = 50) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        command = [sys.executable, "-P", "-m", "keylane.demo.service", "--until-stdin-closes"]
        self._process = subprocess.Popen(
            [*command, "--latency-ms", str(latency_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        try:
            self.address = self._read_address()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def stats(self) -> ServiceStats:
        """Raises `PeerError` when the service does not answer."""
        connection = HTTPConnection(self.address, timeout=STATS_TIMEOUT_S)
        try:
            connection.request("GET", "/stats")
            counts: dict[str, Any] = json.loads(connection.getresponse().read())
            return ServiceStats(**counts)
        except (OSError, HTTPException, ValueError) as error:
            raise PeerError(f"the weather service at {self.address} does not answer: {error!r}") from error
        finally:
            connection.close()

    def stop(self) -> None:
        """Idempotent; kills when it does not end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read_address(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PeerError(f"the weather service did not start within {START_TIMEOUT_S} s")
                piece = self._process.stdout.read1()  # type: ignore[attr-defined]
                if not piece:
                    raise PeerError(f"the weather service did not start: {self._last_error()}")
                line += piece
        return line.decode().strip()

    def _last_error(self) -> str:
        self._process.wait(STOP_TIMEOUT_S)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
