"""`keylane run` in one process while it starts: a stop ends it at once, whoever does not answer."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.testing.embedded import EmbeddedBroker
from kit.processes import Started, Stopwatch
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


def write_pipeline(folder: Path, servers: str) -> None:
    kafka = f'{{"bootstrap.servers": "{servers}", "group.id": "g"}}'
    (folder / "p.py").write_text(f'import keylane as kl\np = kl.Pipeline(kafka={kafka}, topics=["t"], handler=print)\n')


def stopped_within(consumer: kl.ParallelConsumer, thread: threading.Thread) -> float:
    watch = Stopwatch()
    consumer.stop()
    thread.join(30)
    assert not thread.is_alive()
    return watch.took_s()


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
    write_pipeline(tmp_path, silent)
    with Started(
        [sys.executable, "-m", "keylane", "run", str(tmp_path / "p.py")], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert "in this process …" in run.stdout.readline()
        watch = Stopwatch()
        run.send_signal(signal.SIGTERM)
        assert run.wait(30) == 0
        assert watch.took_s() < ENDS_WITHIN_S + SLACK_S
        assert run.stdout.read().endswith("before it had partitions: nothing was begun\n")


class Pod:
    """`keylane run` as a pod's command has it."""

    def __init__(self, folder: Path, servers: str, *arguments: str) -> None:
        write_pipeline(folder, servers)
        command = [sys.executable, "-m", "keylane", "run", str(folder / "p.py"), "--health-port", "0", *arguments]
        self.process = Started(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"health at http://\[::\]:(\d+)/", self.process.stdout.readline())
        assert found is not None
        self._port = int(found[1])

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def test_a_pod_that_starts_before_its_brokers_waits_for_them_alive_and_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"t": 1})
        broker.kill()
        pod = Pod(tmp_path, broker.bootstrap, "--wait-for-brokers", "--client-id", "orders-7")
        with pod.process as process:
            why = f"not ready: it waits for the brokers: no Kafka broker answered at '{broker.bootstrap}' within 10 s"
            until(lambda: pod.ask("/readyz")[1].startswith(why), lambda: pod.ask("/readyz")[1])
            assert pod.ask("/healthz") == (200, "alive\n")
            broker.start()
            until(lambda: pod.ask("/readyz") == (200, "ready\n"), lambda: pod.ask("/readyz")[1])
            until(lambda: bool(members_of(broker.bootstrap)), "it joins")
            assert members_of(broker.bootstrap) == ["orders-7"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_a_stop_ends_the_wait_for_brokers(tmp_path: Path) -> None:
    pod = Pod(tmp_path, "127.0.0.1:1", "--wait-for-brokers")
    with pod.process as process:
        until(lambda: "it waits for the brokers" in pod.ask("/readyz")[1], "it waits")
        watch = Stopwatch()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert watch.took_s() < ENDS_WITHIN_S


def members_of(servers: str) -> list[str]:
    return [one.client_id for one in Admin({"bootstrap.servers": servers}).describe_group("g").members]
