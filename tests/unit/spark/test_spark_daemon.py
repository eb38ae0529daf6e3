"""The daemon that forks Spark's Python workers, driven as the JVM drives it."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kit.processes import Started

pytest.importorskip("pyspark", reason="pyspark is not installed")

ENDS_S = 60
"""Many times what it takes."""

PLANNER = """
import keylane.spark.structured.sink

def main(infile, outfile):
    outfile.write(b"planned")
    outfile.flush()
    assert infile.read(1) == b"", "Spark has closed the socket"
    outfile.write(b"there is no next task")
"""
"""A worker of the daemon that Spark has for sources and sinks; its daemon runs modules of such a name alone."""


def test_a_worker_has_keylane_at_once_and_ends_in_silence_when_spark_closes_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": ".",  # a socket's path has at most 107 characters
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "pyspark_keylane.daemon", "pyspark.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Started(command, env=os.environ | settings, **pipes) as daemon:  # type: ignore[call-overload]
        (length,) = struct.unpack(">i", daemon.stdout.read(4))
        address = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.connect(address)  # and goes away before the worker has said that it is there
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.connect(address)
            (worker,) = struct.unpack(">i", jvm.recv(4))
            gone = os.pidfd_open(worker)
        mapped = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "confluent_kafka" in mapped, "keylane is imported before workers are forked"
        assert len(list(Path(f"/proc/{daemon.pid}/task").iterdir())) == 1, "what is forked beside a thread may hang"
        assert "pyarrow" not in mapped
        assert select.select([gone], [], [], ENDS_S)[0], "the worker has ended"
        os.close(gone)
        daemon.stdin.close()  # Spark's word for the end
        assert daemon.stderr.read() == b""


def test_a_worker_that_plans_ends_in_silence_too_though_spark_has_another_daemon_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyspark_planner.py").write_text(PLANNER)
    settings = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": ".",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_planner"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Started(command, env=os.environ | settings, **pipes) as daemon:  # type: ignore[call-overload]
        (length,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.connect(daemon.stdout.read(length).decode())
            (worker,) = struct.unpack(">i", jvm.recv(4))
            gone = os.pidfd_open(worker)
            assert jvm.recv(7, socket.MSG_WAITALL) == b"planned"
        assert select.select([gone], [], [], ENDS_S)[0], "the worker has ended"
        os.close(gone)
        daemon.stdin.close()
        assert daemon.stderr.read() == b""
