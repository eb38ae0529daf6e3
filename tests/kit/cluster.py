"""`StandaloneCluster`: a Spark standalone cluster of real processes on 127.0.0.1, from PySpark's own jars.

A master and its workers, each a JVM of its own on a free port, that start executors as on any cluster. It is what a
test needs to lose a node, to decommission one, or to send code to executors that do not have it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from keylane.errors import PeerError
from keylane.spark.java import find_java, launch_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

START_TIMEOUT_S = 60.0
"""For a JVM that takes two seconds on an idle machine."""
POLL_S = 0.05


def home_in(folder: Path) -> Path:
    """A SPARK_HOME of links, below which the executors of a `local-cluster` work, and not in the installed package."""
    import pyspark

    home = folder / "spark-home"
    home.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        (home / one.name).symlink_to(one)
    return home


class StandaloneCluster:
    """A master and `workers` workers of `cores` task slots each. Thread safety: one thread at a time.

    `folder` takes logs and what executors write. `settings` are Spark settings of master and workers, for example
    `{"spark.decommission.enabled": "true"}`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 2,
        memory_mb: int = 1_024,
        settings: Mapping[str, str] | None = None,
        hosts: Sequence[str] = ("127.0.0.1",),
    ) -> None:
        """`hosts` are the workers', in turn: Spark speculates on another host only."""
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""
        """What a session takes as its master, once `start` has returned."""
        self._host_of: dict[int, str] = {}
        """By the worker's process id."""
        self._count = workers
        self._hosts = hosts
        self._cores = cores
        self._memory_mb = memory_mb
        self._master: subprocess.Popen[bytes] | None = None
        properties = " ".join(f"-D{name}={value}" for name, value in (settings or {}).items())
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(launch_home(find_java())),
            "SPARK_DAEMON_JAVA_OPTS": properties,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Returns when all workers are registered. Raises `PeerError` when a process does not start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._master = self._spawn("master", "127.0.0.1", "--webui-port", "0")
        self.url = self._told("master", r"Starting Spark master at (spark://\S+)", self._master)
        for _ in range(self._count):
            self.add_worker(wait=False)
        for number, worker in enumerate(self.workers):
            self._told(f"worker-{number}", "Successfully registered with master (.*)", worker)

    def add_worker(self, *, wait: bool = True, host: str | None = None) -> subprocess.Popen[bytes]:
        """One more node; without `host` on the next one."""
        name = f"worker-{len(self.workers)}"
        size = ["--cores", str(self._cores), "--memory", f"{self._memory_mb}m"]
        host = host or self._hosts[len(self.workers) % len(self._hosts)]
        made = self._spawn(name, host, "--webui-port", "0", "--work-dir", str(self.folder / name), *size, self.url)
        self.workers.append(made)
        self._host_of[made.pid] = host
        if wait:
            self._told(name, "Successfully registered with master (.*)", made)
        return made

    def replace_dead(self) -> None:
        """Each host whose node has died and that has none now gets another one."""
        alive = {self._host_of[one.pid] for one in self.workers if one.poll() is None}
        for host in set(self._hosts) - alive:
            self.add_worker(host=host)

    def decommission(self, worker: subprocess.Popen[bytes]) -> None:
        """What a cluster manager does to a node that it takes away (`spark.decommission.enabled` must be set)."""
        worker.send_signal(signal.SIGPWR)

    def close(self) -> None:
        """Ends all processes, and the executors with them."""
        processes = [*self.workers, *([self._master] if self._master is not None else [])]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # executors are in their worker's process group
            process.wait()

    def log(self, name: str) -> str:
        """What the master (`master`) or a worker (`worker-0`) has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _spawn(self, name: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        role = "master.Master" if name == "master" else "worker.Worker"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--host", host, "--port", "0", *arguments],
                env=self._environment | {"SPARK_HOME": str(home)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _told(self, name: str, pattern: str, process: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := re.search(pattern, self.log(name))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"Spark's {name} did not start on 127.0.0.1: {self.log(name)[-1_000:]}")
            time.sleep(POLL_S)
        return found[1]
