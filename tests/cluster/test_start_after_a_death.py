"""What is started right after a node of three has died: it reads everything, and within the time of a fail-over.

The dead node is still in the cluster's own metadata then, as a leader, a coordinator and an address to begin at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

import peers
import pytest

from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS, PARTITIONS = 600, 6
GOES_ON_S = 15.0
GIVEN_UP_S = 90.0
PIPELINE = """
import keylane as kl

pipeline = kl.Pipeline(kafka={kafka!r}, topics=[{topic!r}], handler=lambda record: None, offset_reset="earliest")
"""

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    if what := peers.missing():
        pytest.skip(what)
    nodes = pytest.importorskip("peers.cluster", reason="bench/peers has no cluster")
    with nodes.ApacheCluster() as cluster:
        yield cluster


def filled(cluster: Any, topic: str) -> Admin:
    admin = Admin({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics({topic: PARTITIONS}, replication_factor=3)
    with BulkProducer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.produce(Output(topic, key=b"%d" % (number % 50), value=b"1", partition=number % PARTITIONS))
    cluster.wait_until_in_sync()
    return admin


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("dead", ["leader", "coordinator", "controller"])
def test_a_pipeline_reads_everything(cluster: Any, tmp_path: Path, dead: str, protocol: str) -> None:
    topic = group = f"after-{dead}-{protocol}"
    filled(cluster, topic)
    kafka = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "group.protocol": protocol}
    program = tmp_path / "pipeline.py"
    program.write_text(PIPELINE.format(kafka=kafka, topic=topic))
    node = {
        "leader": lambda: cluster.leader(topic, 0),
        "coordinator": lambda: cluster.coordinator(group),
        "controller": cluster.controller,
    }[dead]()
    cluster.kill(node)
    died_at = monotonic()
    try:
        command = [sys.executable, "-m", "keylane", "run", str(program), "--available-now", "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=GIVEN_UP_S, check=False)
        took_s = monotonic() - died_at
        assert ran.returncode == 0, ran.stderr
        summary = json.loads(ran.stdout.splitlines()[-1])
        assert (summary["processed"], summary["lag"]) == (RECORDS, 0)
        assert took_s < GOES_ON_S
    finally:
        cluster.start(node)
        cluster.wait_until_in_sync()


def test_commands_are_answered(cluster: Any) -> None:
    topic = group = "after-commands"
    admin = filled(cluster, topic)
    admin.commit_offsets(group, {(topic, one): 7 for one in range(PARTITIONS)})
    node = cluster.coordinator(group)
    cluster.kill(node)
    died_at = monotonic()
    try:
        # The list has what living nodes coordinate: this group is missing until another node has taken it over.
        for command in (["list"], ["describe", group], ["offsets", group], ["list"]):
            arguments = [sys.executable, "-m", "keylane", "groups", *command, "--bootstrap", cluster.bootstrap]
            ran = subprocess.run(arguments, capture_output=True, text=True, timeout=GIVEN_UP_S, check=False)
            assert ran.returncode == 0, ran.stderr
        assert group in ran.stdout
        assert monotonic() - died_at < 2 * GOES_ON_S
    finally:
        cluster.start(node)
        cluster.wait_until_in_sync()
