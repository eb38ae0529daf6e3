"""Spark Connect: source, sink, `parallel_map` and `GroupCommits` work; what needs the driver's process is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.broker.process import BrokerProcess

PROGRAM = Path(__file__).with_name("connect_program.py")


@pytest.fixture
def remote(jvm: None) -> Iterator[str]:
    """A Connect server: a session of the one JVM, whose settings it has, with Spark's plugin."""
    for name in ("grpc", "grpc_status", "pandas"):  # of PySpark's client
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'pyspark[connect]'")
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    server = kl.spark.session("local[4]", "keylane connect", **settings)
    service: Any = getattr(server.sparkContext._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    yield f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"
    server.stop()


@pytest.mark.soak
def test_a_client_without_a_jvm(remote: str, broker: BrokerProcess, tmp_path: Path) -> None:
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.create_topics({"in": 2, "out": 1})
    command = [sys.executable, str(PROGRAM), remote, broker.bootstrap, str(tmp_path)]
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
