"""Spark Connect: lanes, source, sink, `parallel_map` and `GroupCommits`; what a client cannot have is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.kafka.admin import Admin
from kit.connect_server import ConnectServer
from kit.no_pandas import SHOWN
from kit.outputs import covered

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.process import BrokerProcess

pytestmark = pytest.mark.cluster

RECORDS = 3_000
MIDDLE = 600
"""Records done when the kill comes."""
PROGRAM = Path(__file__).with_name("connect_program.py")


def test_a_client_without_a_jvm(connect_server: ConnectServer, broker: BrokerProcess, tmp_path: Path) -> None:
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.create_topics({"in": 2, "out": 1})
    command = [sys.executable, str(PROGRAM), connect_server.url, broker.bootstrap, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["values"]) == [2 * number for number in range(60)]
    assert sum(one.offset for one in admin.committed_offsets("connect").values()) == 60
    refused = found["refused"]
    assert refused["carry_over"] == (
        "carry_over needs a Spark session in this process; it does not work through Spark Connect"
    )
    assert refused["snapshot"].startswith("snapshot() needs a Spark session in this process")
    assert "acknowledged(…) works inside foreachBatch, with a Spark session in this process" in refused["acknowledged"]


def test_a_killed_lane_starts_again(connect_server: ConnectServer, work: Any, until: Callable[..., None]) -> None:
    """Its client sees it by its progress, and nothing is lost."""
    work.fill(RECORDS)
    query = kl.spark.start(work.pipeline(), connect_server.client(), lanes=2, trigger={"availableNow": True})
    until(lambda: query.snapshot().processed > MIDDLE and query.lanes[0].partitions, lambda: query.lanes)
    assert query.status["isTriggerActive"]
    victim = query.lanes[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    known = covered(work.admin, work.group)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert {source for source in seen.repeated if source in known} == set()
    assert work.lag() == 0
    assert [lane.launches for lane in query.lanes] == [2, 1]
    assert query.lastProgress is not None
    assert not query.isActive


def test_a_lane_that_cannot_be_asked_is_interrupted_and_starts_again(
    connect_server: ConnectServer, work: Any, until: Callable[..., None]
) -> None:
    """A process that stands still says nothing: its query is interrupted by its tag, and no other is."""
    work.fill(RECORDS)
    query = kl.spark.start(work.pipeline(), connect_server.client(), lanes=2, trigger={"availableNow": True})
    until(lambda: all(lane.partitions for lane in query.lanes), lambda: query.lanes)
    victim = query.lanes[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.foreign) == (set(), set())
    assert [lane.launches for lane in query.lanes] == [2, 1]


def test_a_killed_client_leaves_lanes_that_drain_and_another_client_goes_on(
    connect_server: ConnectServer, work: Any, drivers: Callable[..., Any]
) -> None:
    work.fill(RECORDS)
    first = drivers(connect_server.url, work, dict(os.environ), "--until-done")
    first.until(lambda now: now["processed"] > MIDDLE and all(lane["partitions"] for lane in now["lanes"]))
    first.close()
    second = drivers(connect_server.url, work, dict(os.environ), "--until-done")
    last = second.until(lambda now: not now["active"])
    assert last["error"] is None
    outputs = work.outputs()
    assert (outputs.lost, outputs.foreign, outputs.out_of_order("key")) == (set(), set(), [])
    assert work.lag() == 0


def test_what_a_client_cannot_have_is_refused_by_name(connect_server: ConnectServer, work: Any) -> None:
    client = connect_server.client()
    with pytest.raises(kl.UsageError, match=r"lanes=4 on local\[4\] would take more than its task slots but one"):
        kl.spark.start(work.pipeline(), client, lanes=4)
    with pytest.raises(kl.UsageError, match=r"task_cpus=0.5: not through Spark Connect"):
        kl.spark.start(work.pipeline(), client, lanes=1, task_cpus=0.5)
    client.stop()
    with pytest.raises(kl.UsageError, match="the Spark session is stopped"):
        kl.spark.start(work.pipeline(), client, lanes=1)


ARTIFACTS = """
import os
import sys
import keylane as kl
from keylane.spark import parallel_map
from pyspark.sql import SparkSession

remote, folder, servers, group, topic, output, *artifacts = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
spark.addArtifacts(*artifacts, pyfile=True)

def on_lane(record):
    from rules import doubled
    return kl.Output(output, value=b"%d" % doubled(int(record.value)))

def of_row(row):
    from rules import doubled
    return {"n": doubled(row.id)}

pipeline = kl.Pipeline(kafka={"bootstrap.servers": servers, "group.id": group}, topics=[topic], handler=on_lane,
                       offset_reset="earliest")
query = kl.spark.start(pipeline, spark, lanes=2, trigger={"availableNow": True})
query.awaitTermination()
spark.range(20).write.parquet(folder + "/in")
rows = spark.readStream.schema("id long").parquet(folder + "/in").transform(parallel_map(of_row, "n long"))
stream = rows.writeStream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
stream.format("parquet").start(folder + "/out").awaitTermination()
print(query.snapshot().processed, sorted(row.n for row in spark.read.parquet(folder + "/out").collect()))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("has_keylane", [True, False])
def test_lanes_and_rows_of_streams_import_what_came_as_an_artifact(
    java: None, work: Any, tmp_path: Path, bare_python: Path, zipped: Path, has_keylane: bool
) -> None:
    """A module of one's own, and keylane itself where the server has all packages but this one."""
    (tmp_path / "rules.py").write_text("def doubled(number):\n    return 2 * number\n")
    artifacts = [str(tmp_path / "rules.py"), *([] if has_keylane else [str(zipped)])]
    work.fill(40)
    with ConnectServer(tmp_path / "server.log", python=None if has_keylane else str(bare_python)) as server:
        names = [server.url, str(tmp_path), work.servers, work.group, work.topic, work.output]
        command = [sys.executable, "-c", ARTIFACTS, *names, *artifacts]
        done = subprocess.run(
            command, env=os.environ | {SHOWN: "1"}, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"40 {[2 * number for number in range(20)]}"


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("keylane", "pyspark_keylane"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
"""


def test_a_server_without_keylane_is_named(tmp_path: Path, work: Any) -> None:
    """Its client has it, so that Spark's own words would have the user look there."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    program = """
import sys
import keylane.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for use in (lambda: spark.read.format("keylane"), lambda: spark.readStream.format("keylane"),
            lambda: spark.range(1).write.format("keylane")):
    try:
        use()
    except keylane.UsageError as error:
        print(error)
kafka = {"bootstrap.servers": sys.argv[2], "group.id": "g"}
pipeline = keylane.Pipeline(kafka=kafka, topics=[sys.argv[3]], handler=print)
try:
    keylane.spark.start(pipeline, spark, lanes=1).awaitTermination()
except keylane.UsageError as error:
    print(error)
"""
    with ConnectServer(tmp_path / "server.log", python=str(python)) as server:
        command = [sys.executable, "-c", program, server.url, work.servers, work.topic]
        done = subprocess.run(
            command, env=os.environ | {SHOWN: "1"}, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    planned = "the server of this Spark Connect session plans it, and its Python does not have"
    assert [planned in one for one in lines] == [True, True, True, False], lines
    assert lines[3].startswith("the executors' Python cannot import keylane")


LOCAL = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[1]").getOrCreate()
import keylane.spark
print("rows", spark.range(3).count())
"""


def test_the_import_after_a_local_connect_session_leaves_it_alone(java: None) -> None:
    """Its server runs in this process's JVM, and the session has no context."""
    pytest.importorskip("grpc", reason="grpc is not installed: pip install 'pyspark[connect]'")
    environment = os.environ | {SHOWN: "1"}
    command = [sys.executable, "-c", LOCAL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1:] == ["rows 3"], done.stderr[-2000:]
