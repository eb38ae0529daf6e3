"""A Spark session and an embedded broker a module, and what all Spark tests do with them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit import environment_archive
from kit.connect_server import ConnectServer
from kit.filling import filling
from kit.no_pandas import SHOWN
from kit.outputs import Outputs, covered, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from keylane.spark import LaneQuery

PARTITIONS = 4
PROGRAM = Path(__file__).with_name("driver_program.py")
SHIPPED = ("__init__.py", "outputs.py")
"""Of the test kit: what that program imports."""
EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
PATIENCE_S = 180.0
"""For what takes a second or two on an idle machine."""


@pytest.fixture(scope="session")
def java() -> None:
    """What a Spark session needs."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from keylane.spark.java import find_java

    try:
        find_java()
    except kl.PeerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def jvm(java: None) -> None:
    """The one JVM of this process without a session, for one with settings of its own. Those of the first session stay
    for all that come: so the first has none of its own."""
    kl.spark.session("local[4]", "keylane tests", **SETTINGS).stop()


@pytest.fixture(scope="module")
def spark(java: None) -> SparkSession:
    """The local session. It stays for the modules that follow, with its Python workers, unless one needs another."""
    return kl.spark.session("local[4]", "keylane tests", **SETTINGS)


@pytest.fixture(autouse=True)
def no_job_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed leaves its lanes in the session, and the next one would wait for their slots."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").sparkContext.cancelAllJobs()


@pytest.fixture(scope="module")
def connect_server(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHOWN, "1")
        for name in [name for name in sys.modules if name.startswith("pyspark.testing")]:
            patch.delitem(sys.modules, name)  # it has looked for pandas once, and PySpark's client goes by what it saw
        for name in ("grpc", "grpc_status", "pandas"):  # of PySpark's client
            pytest.importorskip(name, reason=f"{name} is not installed: pip install 'pyspark[connect]'")
        with ConnectServer(tmp_path_factory.mktemp("connect") / "server.log") as made:
            yield made


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with every package of this one but keylane."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    made = tmp_path_factory.mktemp("python") / "python"
    made.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    made.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """keylane as one zip file, as a wheel that was renamed for `--py-files` is."""
    archive = tmp_path_factory.mktemp("zip") / "keylane.zip"
    package = Path(kl.__file__).parent
    with zipfile.ZipFile(archive, "w") as made:
        for file in package.rglob("*.py"):
            made.write(file, Path("keylane") / file.relative_to(package))
    return archive


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that jobs are submitted from: a virtual environment, its archive, and modules of the program's own."""
    folder = tmp_path_factory.mktemp("submit")
    environment_archive.make(folder)
    with zipfile.ZipFile(folder / "modules.zip", "w") as made:
        for name in SHIPPED:
            made.write(PROGRAM.parents[1] / "kit" / name, f"kit/{name}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as made:
        yield made


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The examples in a folder of their own, talking to a broker of their own that holds the orders."""
    folder = tmp_path_factory.mktemp("examples")
    with BrokerProcess(folder / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"orders": 4, "orders.scored": 4})
        for file in EXAMPLES.glob("*.py"):
            (folder / file.name).write_text(file.read_text().replace("127.0.0.1:9092", broker.bootstrap))
        subprocess.run([sys.executable, "produce_orders.py"], cwd=folder, check=True, timeout=PATIENCE_S)
        yield folder


@dataclass
class Work:
    """A topic full of records on a broker, and a pipeline that copies each to an output topic in its own time."""

    servers: str
    group: str
    topic: str
    output: str
    admin: Admin
    kafka: dict[str, Any] = field(default_factory=dict)

    def fill(self, records: int) -> None:
        """Records with 37 keys, very uneven."""
        with filling(self.servers) as producer:
            for number in range(records):
                key = f"key-{min(number % 37, number % 11)}".encode()
                producer.produce(kl.Output(self.topic, key=key, value=str(number).encode()))

    def pipeline(self, handler: Callable[..., Any] | None = None, **options: Any) -> kl.Pipeline:
        settings = {"bootstrap.servers": self.servers, "group.id": self.group, **self.kafka}
        defaults: dict[str, Any] = {"ordering": "key", "max_concurrency": 20, "commit": kl.Commit(interval_ms=300)}
        return kl.Pipeline(
            kafka=settings,
            topics=[self.topic],
            handler=handler or copies(self.output),
            offset_reset="earliest",
            **(defaults | options),
        )

    def finish(self, query: LaneQuery) -> None:
        """Waits for the end of the query, and tells what it does when that does not come."""
        if query.awaitTermination(PATIENCE_S):
            return
        seen = f"{query}: {query.snapshot()}, lanes {query.lanes}, {self.admin.describe_group(self.group)}"
        query.stop()
        raise AssertionError(f"it does not end: {seen}")

    def outputs(self) -> Outputs:
        return Outputs.read(self.servers, self.topic, self.output)

    def left(self) -> int:
        """Records that the group's commits do not cover, by offset and map."""
        has = covered(self.admin, self.group)
        ends = self.admin.log_ends([(self.topic, partition) for partition in range(PARTITIONS)], read_committed=False)
        return sum((*name, offset) not in has for name, end in ends.items() for offset in range(end or 0))

    def lag(self) -> int:
        """By another client than the lanes'."""
        commits = self.admin.committed_offsets(self.group)
        ends = self.admin.log_ends([(self.topic, partition) for partition in range(PARTITIONS)], read_committed=False)
        return sum((end or 0) - (commits[name].offset if name in commits else 0) for name, end in ends.items())


def copies(output: str, usual_ms: float = 5, slow_ms: float = 60) -> Callable[[kl.Record], Any]:
    """A handler that takes `usual_ms`, and for one record in 50 `slow_ms`: what is complete then has holes."""

    async def copy(record: kl.Record) -> kl.Output:
        await asyncio.sleep((slow_ms if record.offset % 50 == 7 else usual_ms) / 1000)
        return kl.Output(output, record.key, record.value, headers=[source_of(record)], partition=record.partition)

    return copy


class Driver:
    """A Spark driver in a process of its own. It prints what its lanes do, a JSON object a line."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, folder: Path | None) -> None:
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        self.log = log

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and not line.startswith(b"{"):
            pass  # spark-submit sends what is meant for standard error there too
        assert line, f"the driver ended: {self.log.read_text()[-3000:]}"
        made: dict[str, Any] = json.loads(line)
        return made

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        while not condition(seen := self.next()):
            pass
        return seen

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # the JVM of a driver that was killed ends by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(
        master: str,
        work: Work,
        environment: dict[str, str],
        *arguments: str,
        launcher: Sequence[str] = (sys.executable,),
        folder: Path | None = None,
    ) -> Driver:
        command = [*launcher, str(PROGRAM), master, work.servers, work.group, work.topic, work.output, *arguments]
        made.append(Driver(command, environment, tmp_path / f"driver-{len(made)}.log", folder))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


_numbers = itertools.count()


def make_work(servers: str) -> Work:
    number = next(_numbers)
    work = Work(servers, f"group-{number}", f"in-{number}", f"out-{number}", Admin({"bootstrap.servers": servers}))
    work.admin.create_topics({work.topic: PARTITIONS, work.output: PARTITIONS})
    return work


@pytest.fixture
def work(broker: BrokerProcess) -> Work:
    return make_work(broker.bootstrap)


@pytest.fixture
def works() -> Callable[[str], Work]:
    """Makes work on a broker of the test's own."""
    return make_work


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits for a condition, at most `PATIENCE_S`."""

    def wait(condition: Callable[[], object], what: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, what()
            time.sleep(0.01)

    return wait
