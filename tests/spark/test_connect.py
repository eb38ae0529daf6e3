"""Spark Connect: source, sink and `parallel_map` work, what needs the driver's process is refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.kafka.admin import Admin
from keylane.spark.java import find_java, launch_home

if TYPE_CHECKING:
    from keylane.broker.process import BrokerProcess

PROGRAM = Path(__file__).with_name("connect_program.py")


@pytest.mark.soak
def test_a_connect_session(java: None, broker: BrokerProcess) -> None:
    for name in ("grpc", "grpc_status", "pandas"):  # of PySpark's Connect client
        pytest.importorskip(name, reason=f"{name} is not installed")
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"in": 2, "out": 1})
    environment = {"JAVA_HOME": str(launch_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), broker.bootstrap],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == (
        "carry_over needs a Spark session in this process; it does not work through Spark Connect"
    )
