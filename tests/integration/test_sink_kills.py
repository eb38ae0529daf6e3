"""Exactly once into Kafka where the driver dies at every step of a batch, and brokers anywhere, on real brokers.

The program does what Spark asks of the sink, so that a kill takes a second; `spark/test_exactly_once_kills.py` kills
Spark. KEYLANE_SINK_KILLS says how many kills (40) each broker's test has.
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

from keylane.kafka.bulk import BulkProducer
from keylane.kafka.open_transaction_producer import OpenTransaction
from keylane.records import Output
from keylane.spark.structured.exact.record import task_prefix
from keylane.testing import EmbeddedBroker
from kit.sink_kills import APACHE, EMBEDDED, THREE_NODES, Storm, place

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("sink_program.py")
KILLS = int(os.environ.get("KEYLANE_SINK_KILLS", "40"))
BATCH = 30
STEPS_A_BATCH = 44
"""About as many as one has: requests before and after, and tasks."""
PATIENCE_S = 180.0


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(EMBEDDED, marks=pytest.mark.soak),
        pytest.param(APACHE, marks=pytest.mark.soak),
        pytest.param(THREE_NODES, marks=pytest.mark.cluster),
    ],
)
def test_each_row_is_seen_once(where: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    chance = random.Random(20261124)
    with place(where, tmp_path) as brokers:
        storm = Storm(brokers.servers, "out", brokers.replication)
        command = [sys.executable, str(PROGRAM), brokers.servers, "out", str(tmp_path), str(BATCH)]

        def start(dies_at: int) -> subprocess.Popen[bytes]:
            environment = os.environ | {"KEYLANE_DIES_AT": str(dies_at)}
            with (tmp_path / "log").open("ab") as log:
                return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

        for kill in range(KILLS):
            storm.more(2 * BATCH)
            (tmp_path / "rows").write_text(str(storm.rows))
            if kill % 4 == 3:
                process = start(0)
                try:
                    time.sleep(1 + 2 * chance.random())  # anywhere in its batches
                    brokers.kill(chance)()
                    ended = "and the program went on" if process.wait(PATIENCE_S) == 0 else "and the program failed"
                finally:
                    process.kill()
                storm.killed("broker", ended)
                continue
            anywhere = chance.randint(1, 24)  # also inside what a start repairs
            at = 1 + kill % STEPS_A_BATCH if kill % 2 else anywhere
            if start(at).wait(PATIENCE_S) == -signal.SIGKILL:
                storm.killed("driver", f"at step {at}")
        assert start(0).wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()[-3_000:]
        storm.judge()
    record_property("kills", dict(storm.kills))
    assert storm.kills["driver"] >= KILLS // 2


def test_the_judge_refuses_what_is_missing_twice_or_open() -> None:
    name = "judged"
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        storm = Storm(servers, name)

        def write(numbers: range) -> None:
            with BulkProducer(servers) as producer:
                for number in numbers:
                    producer.produce(Output(name, None, b"%d" % number))

        write(storm.more(3))
        storm.killed("driver", "nowhere")
        storm.judge()
        storm.more(1)
        with pytest.raises(AssertionError, match="1 rows are missing, 0 too many"):
            storm.judge()
        write(range(2, 4))
        with pytest.raises(AssertionError, match=r"twice after there: \{2\}"):
            storm.killed("driver", "there")
        with pytest.raises(AssertionError, match="0 rows are missing, 1 too many"):
            storm.judge()
        with OpenTransaction(servers, {}, f"{task_prefix(name)}1", 60_000, name) as transaction:
            transaction.produce(Output(name, None, b"5"))
        with pytest.raises(AssertionError, match="a transaction is left open"):
            storm.judge()
