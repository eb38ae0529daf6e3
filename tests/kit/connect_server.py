"""`ConnectServer`: a Spark Connect server in a process of its own, on a free port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

PROGRAM = """
import signal, sys
from keylane.spark import session

settings = {
    "spark.ui.enabled": "false",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
if len(sys.argv) == 2:
    server = session(sys.argv[1], "keylane connect", **settings)
else:
    import os
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.argv[2]
    server = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
service = getattr(server.sparkContext._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print("port", getattr(service, "MODULE$").localPort(), flush=True)
signal.pause()
"""
"""A session with Spark's plugin."""


class ConnectServer:
    """`url` is what a client takes, once the block is entered. `log` takes what the server writes."""

    def __init__(self, log: Path, master: str = "local[4]", python: str | None = None) -> None:
        """`python`: what it plans and works with; None: this interpreter."""
        self.log = log
        self.url = ""
        self._arguments = [master] if python is None else [master, python]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("port "):
                self.url = f"sc://127.0.0.1:{line.split()[1]}"
                return self
        self.close()
        raise AssertionError(f"the Connect server did not start: {self.log.read_text()[-3_000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client(self) -> Any:
        """A session of this process, beside one that it may have of its own."""
        from pyspark.sql.connect.session import SparkSession

        return SparkSession(self.url)

    def close(self) -> None:
        """Ends the server, its JVM and their workers."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
