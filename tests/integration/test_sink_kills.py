"""Exactly once into Kafka where the driver dies at every step of a batch, and brokers anywhere, on real brokers.

The program does what Spark asks of the sink, so that a kill takes a second; `spark/test_exactly_once.py` kills Spark.
KEYLANE_SINK_KILLS says how many kills (40) each broker's test has.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.committed import committed_values

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("sink_program.py")
KILLS = int(os.environ.get("KEYLANE_SINK_KILLS", "40"))
BATCH = 30
STEPS_A_BATCH = 44
"""About as many as one has: requests before and after, and tasks."""
PATIENCE_S = 180.0


def storm(servers: str, folder: Path, replication: int, break_a_broker: Callable[[random.Random], None]) -> None:
    chance = random.Random(20261124)
    Admin({"bootstrap.servers": servers}).create_topics({"out": 2}, replication_factor=replication)
    command = [sys.executable, str(PROGRAM), servers, "out", str(folder), str(BATCH)]
    rows, died, broken, failed = 0, 0, 0, 0

    def start(dies_at: int) -> subprocess.Popen[bytes]:
        environment = os.environ | {"KEYLANE_DIES_AT": str(dies_at)}
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    for kill in range(KILLS):
        rows += 2 * BATCH
        (folder / "rows").write_text(str(rows))
        if kill % 4 == 3:
            process = start(0)
            try:
                time.sleep(1 + 2 * chance.random())  # anywhere in its batches
                break_a_broker(chance)
                broken += 1
                failed += process.wait(PATIENCE_S) != 0
            finally:
                process.kill()
        else:
            at = (
                1 + kill % STEPS_A_BATCH if kill % 2 else chance.randint(1, 24)
            )  # the latter also inside what a start repairs
            died += start(at).wait(PATIENCE_S) == -signal.SIGKILL
        print(f"{kill + 1} of {KILLS}: {died} drivers, {broken} brokers, {failed} runs failed", flush=True)  # noqa: T201
    assert start(0).wait(PATIENCE_S) == 0, (folder / "log").read_text()[-3_000:]
    assert sorted(map(int, committed_values(servers, "out"))) == list(range(rows))
    assert died >= KILLS // 2


@pytest.mark.soak
def test_each_row_is_seen_once_on_the_embedded_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        def again(_: random.Random) -> None:
            broker.kill()
            broker.start()

        storm(broker.bootstrap, tmp_path, 1, again)


@pytest.mark.soak
def test_each_row_is_seen_once_on_apache_kafka(tmp_path: Path) -> None:
    import peers

    if missing := peers.missing():
        pytest.skip(missing)
    with peers.ApacheKafka({}) as kafka:

        def again(_: random.Random) -> None:
            kafka.kill()
            kafka.start()

        storm(kafka.bootstrap, tmp_path, 1, again)


@pytest.mark.cluster
def test_each_row_is_seen_once_on_three_nodes(tmp_path: Path) -> None:
    import peers
    from peers.cluster import ApacheCluster

    if missing := peers.missing():
        pytest.skip(missing)
    with ApacheCluster() as cluster:

        def another(chance: random.Random) -> None:
            node = chance.choice(cluster.running)
            cluster.kill(node)
            cluster.start(node)
            cluster.wait_until_in_sync()

        storm(cluster.bootstrap, tmp_path, 3, another)
