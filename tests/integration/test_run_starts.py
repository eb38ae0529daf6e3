"""`keylane run` in one process while it starts: a stop ends it at once, whoever does not answer."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.testing.embedded import EmbeddedBroker
from kit.processes import Started
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDS_WITHIN_S = 5.0
SLACK_S = 3.0
"""Of a machine that is busy."""
JOINS = [
    pytest.param("JoinGroup", {}, id="joins"),
    pytest.param("SyncGroup", {}, id="waits for its assignment"),
    pytest.param("OffsetFetch", {}, id="asks for commits"),
    pytest.param("ConsumerGroupHeartbeat", {"group.protocol": "consumer"}, id="joins by KIP-848"),
]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def pipeline(servers: str, **kafka: Any) -> kl.Pipeline:
    return kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": "g"} | kafka, topics=["t"], handler=lambda _: None
    )


def stopped_within(consumer: kl.ParallelConsumer, thread: threading.Thread) -> float:
    began = time.monotonic()
    consumer.stop()
    thread.join(30)
    assert not thread.is_alive()
    return time.monotonic() - began


@pytest.mark.parametrize(("api", "kafka"), JOINS)
def test_a_stop_ends_the_first_join_of_a_group_that_does_not_answer(api: str, kafka: dict[str, Any]) -> None:
    with EmbeddedBroker(topics={"t": 2}) as broker:
        held = broker.fault(api, delay_ms=30_000, times=None)
        consumer = kl.ParallelConsumer(pipeline(broker.bootstrap_servers, **kafka))
        thread = threading.Thread(target=consumer.run)
        thread.start()
        until(lambda: held.met > 0, f"{api} is asked")
        assert stopped_within(consumer, thread) < ENDS_WITHIN_S + SLACK_S


def test_a_stop_ends_the_wait_for_a_broker_that_does_not_answer(silent: str) -> None:
    consumer = kl.ParallelConsumer(pipeline(silent))
    thread = threading.Thread(target=consumer.run)
    thread.start()
    until(lambda: any(one.name == "keylane-start" for one in threading.enumerate()), "it starts")
    assert stopped_within(consumer, thread) < ENDS_WITHIN_S
    assert consumer.health().unready == "it has ended"


def test_the_command_says_that_nothing_was_begun(tmp_path: Path, silent: str) -> None:
    (tmp_path / "p.py").write_text(
        "import keylane as kl\n"
        f'p = kl.Pipeline(kafka={{"bootstrap.servers": "{silent}", "group.id": "g"}}, topics=["t"], handler=print)\n'
    )
    with Started(
        [sys.executable, "-m", "keylane", "run", str(tmp_path / "p.py")], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert "in this process …" in run.stdout.readline()
        began = time.monotonic()
        run.send_signal(signal.SIGTERM)
        assert run.wait(30) == 0
        assert time.monotonic() - began < ENDS_WITHIN_S + SLACK_S
        assert run.stdout.read().endswith("before it had partitions: nothing was begun\n")
