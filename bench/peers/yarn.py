"""`Yarn`: a real Hadoop YARN 3.5.0 on free ports of 127.0.0.1: a ResourceManager, and NodeManagers with containers.

There is no HDFS: `file:///` is the default file system, which all nodes of one machine share. `python -m peers.yarn`
starts one, prints what a shell needs for `spark-submit --master yarn`, and ends with Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self
from xml.sax.saxutils import escape

from keylane.spark.java import find_java
from peers import START_TIMEOUT_S, free_ports, jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # Guice's, which YARN brings
)
POLL_S = 0.1
_ANSWER_S = 5.0
_SERVER = "org.apache.hadoop.yarn.server"
RESOURCE_MANAGER = f"{_SERVER}.resourcemanager.ResourceManager"
NODE_MANAGER = f"{_SERVER}.nodemanager.NodeManager"
_SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}


class Yarn:
    """A context manager: all files live in a temporary folder, and go with it, as do containers that still run.

    `nodes` of them have `memory_mb` and `cores` each. Thread safety: one thread at a time.
    """

    def __init__(self, *, nodes: int = 1, memory_mb: int = 8_192, cores: int = 8) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keylane-yarn-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.configuration = self.folder / "conf"
        """What clients take as `HADOOP_CONF_DIR`."""
        client, scheduler, tracker, admin, self._web = free_ports(5)
        self._nodes = nodes
        self._java_home = str(find_java().home)
        self._processes: list[subprocess.Popen[bytes]] = []
        host = "yarn.resourcemanager"
        self._shared = {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            f"{host}.address": f"127.0.0.1:{client}",
            f"{host}.scheduler.address": f"127.0.0.1:{scheduler}",
            f"{host}.resource-tracker.address": f"127.0.0.1:{tracker}",
            f"{host}.admin.address": f"127.0.0.1:{admin}",
            f"{host}.webapp.address": f"127.0.0.1:{self._web}",
            f"{host}.nodemanagers.heartbeat-interval-ms": "100",  # a container starts with a heartbeat: a second else
            f"{host}.am.max-attempts": "20",  # the most that an application may ask for
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.maximum-allocation-mb": str(memory_mb),
            "yarn.nodemanager.resource.memory-mb": str(memory_mb),
            "yarn.nodemanager.resource.cpu-vcores": str(cores),
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",  # it takes a disk that is nearly full for a bad one
            "yarn.nodemanager.bind-host": "127.0.0.1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """What a client's process needs beside its own."""
        return {"HADOOP_CONF_DIR": str(self.configuration), "YARN_CONF_DIR": str(self.configuration)}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for leader in self._containers():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        self._folder.cleanup()

    def start(self) -> None:
        """Returns when all nodes have registered. Raises `RuntimeError` with the end of a log when they do not."""
        _write(self.configuration / "core-site.xml", {"fs.defaultFS": "file:///"})
        _write(self.configuration / "yarn-site.xml", self._shared)
        _write(self.configuration / "capacity-scheduler.xml", _SCHEDULER)
        self._spawn("resourcemanager", RESOURCE_MANAGER, self.configuration)
        for number in range(self._nodes):
            self._spawn(f"node-{number}", NODE_MANAGER, self._configuration_of(number))
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._registered() < self._nodes:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                logs = (path.read_text(errors="replace")[-1_000:] for path in self.folder.glob("*.log"))
                raise RuntimeError("YARN did not come up: " + "\n".join(logs))
            time.sleep(POLL_S)

    def application(self, identifier: str) -> Mapping[str, str]:
        """What the ResourceManager tells of an application: its `state`, `finalStatus`, and so on."""
        found: dict[str, dict[str, str]] = self._ask(f"apps/{identifier}")
        return found["app"]

    def applications(self) -> list[str]:
        """The ids of all, oldest first."""
        found = self._ask("apps").get("apps") or {}
        return sorted(one["id"] for one in found.get("app", ()))

    def attempts(self, identifier: str) -> int:
        """How many ApplicationMasters the application has had."""
        found: dict[str, dict[str, list[object]]] = self._ask(f"apps/{identifier}/appattempts")
        return len(found["appAttempts"]["appAttempt"])

    def logs(self, name: str = "stderr") -> Iterator[Path]:
        """What containers have written, of all applications."""
        return self.folder.glob(f"node-*/logs/*/*/{name}")

    def log_tails(self) -> str:
        """The ends of all containers' logs, for the message of a test that fails."""
        return "\n".join(f"{one}:\n{one.read_text(errors='replace')[-3_000:]}" for one in sorted(self.logs()))

    def masters(self) -> list[int]:
        """The process ids of Spark's ApplicationMasters; in cluster mode the driver is in there."""
        package = b"org.apache.spark.deploy.yarn."
        return self._jvms(package + b"ApplicationMaster", package + b"ExecutorLauncher")

    def executors(self) -> list[int]:
        """The process ids of Spark executors."""
        return self._jvms(b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend")

    def _jvms(self, *main_classes: bytes) -> list[int]:
        found = []
        for pid in self._of_these():
            words = _words(pid)  # the shells that start a container name its class, too
            if words[:1] and words[0].endswith(b"/java") and any(one in words for one in main_classes):
                found.append(pid)
        return found

    def _configuration_of(self, node: int) -> Path:
        """Two nodes on one machine share no folder, and no port."""
        folder = self.folder / f"node-{node}"
        address, localizer, web, collector = free_ports(4)
        own = {
            "yarn.nodemanager.address": f"127.0.0.1:{address}",
            "yarn.nodemanager.localizer.address": f"127.0.0.1:{localizer}",
            "yarn.nodemanager.webapp.address": f"127.0.0.1:{web}",
            "yarn.nodemanager.collector-service.address": f"127.0.0.1:{collector}",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
        }
        shutil.copytree(self.configuration, folder / "conf")
        _write(folder / "conf" / "yarn-site.xml", self._shared | own)
        return folder / "conf"

    def _spawn(self, name: str, main_class: str, configuration: Path) -> None:
        path = f"{configuration}:{jars('yarn')}/*"
        log = [f"-Dlog4j.configuration=file:{_log4j(configuration)}", f"-Dhadoop.tmp.dir={self.folder / name / 'tmp'}"]
        with (self.folder / f"{name}.log").open("wb") as output:
            made = subprocess.Popen(
                [f"{self._java_home}/bin/java", *OPTIONS, *log, "-cp", path, main_class],
                env={**os.environ, "JAVA_HOME": self._java_home, "HADOOP_CONF_DIR": str(configuration)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(made)

    def _registered(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, dict[str, int]] = self._ask("metrics")
            return found["clusterMetrics"]["activeNodes"]
        return 0

    def _ask(self, what: str) -> dict:  # type: ignore[type-arg]
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._web}/ws/v1/cluster/{what}", headers={"Accept": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            made: dict = json.load(answer)  # type: ignore[type-arg]
            return made

    def _of_these(self) -> Iterator[int]:
        """Processes whose command line names this cluster's folder: containers are in sessions of their own."""
        for entry in Path("/proc").glob("[0-9]*"):
            if any(str(self.folder).encode() in word for word in _words(int(entry.name))):
                yield int(entry.name)

    def _containers(self) -> set[int]:
        leaders = set()
        for pid in self._of_these():
            with contextlib.suppress(ProcessLookupError):
                leaders.add(os.getpgid(pid))
        return leaders - {os.getpgid(0)}


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _write(file: Path, properties: Mapping[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in properties.items()
    ]
    file.write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")


def _log4j(configuration: Path) -> Path:
    """Warnings go to the process's standard error."""
    file = configuration / "log4j.properties"
    file.write_text(
        "log4j.rootLogger=WARN, console\n"
        "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.console.target=System.err\n"
        "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n\n"
    )
    return file


def main() -> None:
    with Yarn() as yarn:
        for name, value in yarn.environment.items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
