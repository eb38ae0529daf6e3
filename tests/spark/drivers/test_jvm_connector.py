"""The listener alone, with a query on Spark's own Kafka connector: `GroupCommits` gives that its group's lag."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import peers
import pytest

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

if TYPE_CHECKING:
    from pathlib import Path

    from keylane.broker.process import BrokerProcess

PROGRAM = """
import sys
import keylane as kl

servers, jars, checkpoint = sys.argv[1:]
spark = kl.spark.session("local[2]", **{"spark.ui.enabled": "false", "spark.jars": jars})
listener = kl.spark.GroupCommits({"bootstrap.servers": servers, "group.id": "watched"}, query="watched")
spark.streams.addListener(listener)
options = {"kafka.bootstrap.servers": servers, "subscribe": "rows", "startingOffsets": "earliest"}
frame = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="30").load()
writer = frame.writeStream.format("noop").queryName("watched").option("checkpointLocation", checkpoint)
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()  # after all of its events
"""


@pytest.mark.soak
def test_a_query_on_the_connector_commits_for_its_group(java: None, broker: BrokerProcess, tmp_path: Path) -> None:
    if reason := peers.missing():
        pytest.skip(f"Spark's Kafka connector cannot be fetched: {reason}")
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.create_topics({"rows": 2})
    with BulkProducer(broker.bootstrap) as producer:
        for number in range(100):
            producer.produce(kl.Output("rows", None, b"%d" % number, partition=number % 2))
    jars = ",".join(map(str, peers.jars("spark_kafka").glob("*.jar")))
    command = [sys.executable, "-c", PROGRAM, broker.bootstrap, jars, str(tmp_path / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    commits = admin.committed_offsets("watched")
    assert {name: one.offset for name, one in commits.items()} == {("rows", 0): 50, ("rows", 1): 50}
