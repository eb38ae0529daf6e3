"""`keylane.testing.broker()` as others use it: three clients, faults, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import keylane.testing
from keylane.broker import server
from keylane.errors import PeerError, UsageError
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.records import Output
from keylane.testing.faults import api_names
from keylane.wire.versions import request_type
from kit.protocol import ProtocolClient, part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.testing.embedded import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with keylane.testing.broker(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture(autouse=True)
def no_faults_left(kafka: EmbeddedBroker) -> Iterator[None]:
    yield
    kafka.clear_faults()


def traces(folder: Path) -> Counter[str]:
    """Threads, open files and sockets, and what is in the folder."""
    gc.collect()  # so that nothing of earlier tests goes meanwhile
    threads = [f"thread {thread.name}" for thread in threading.enumerate()]
    return Counter([*threads, *open_files(), *map(str, folder.iterdir())])


def alone(check: Callable[[Path], None], folder: Path) -> None:
    """Run it in a process of its own, whose temporary folders are in `folder`: clients that other tests have left to
    end by themselves open and close files meanwhile."""
    call = f"[{check.__name__!r}](Path({str(folder)!r}))"
    code = f"import runpy; from pathlib import Path; runpy.run_path({__file__!r}){call}"
    environment = os.environ | {"TMPDIR": str(folder)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def open_files() -> Iterator[str]:
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            yield str(path.readlink())


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    alone(leaves_nothing_behind, tmp_path)


def leaves_nothing_behind(folder: Path) -> None:
    with keylane.testing.broker():
        pass
    before = traces(folder)
    with keylane.testing.broker(topics={"t": 3}, users={"alice": "x"}) as broker:
        assert traces(folder) - before
        with ProtocolClient(broker.bootstrap_servers) as client:
            client.ask("api_versions", 0)
    assert traces(folder) - before == Counter()


def test_it_leaves_no_connection_behind(tmp_path: Path) -> None:
    alone(leaves_no_connection_behind, tmp_path)


def leaves_no_connection_behind(folder: Path) -> None:
    """Of a client that does not take what it has asked for."""
    wanted = part("fetch", 4, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=10_000_000)
    topics = (part("fetch", 4, "FetchTopic", topic="t", partitions=(wanted,)),)
    limits = {"max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 10_000_000, "isolation_level": 0}
    request = request_type("fetch", 4)(replica_id=-1, topics=topics, **limits)
    with warnings.catch_warnings(record=True) as told, mock.patch.object(server, "DRAIN_TIMEOUT_S", 0.2):
        warnings.simplefilter("always", ResourceWarning)
        with keylane.testing.broker(topics={"t": 1}) as broker:
            with BulkProducer(broker.bootstrap_servers) as producer:
                for _ in range(20):
                    producer.produce(Output("t", value=bytes(500_000)))
            client = ProtocolClient(broker.bootstrap_servers)
            for _ in range(20):
                client.send("fetch", request)
            client.receive()
        gc.collect()
        client.close()
    assert [str(one.message) for one in told] == []


def test_it_leaves_nothing_behind_when_it_does_not_start(tmp_path: Path) -> None:
    alone(leaves_nothing_behind_when_it_does_not_start, tmp_path)


def leaves_nothing_behind_when_it_does_not_start(folder: Path) -> None:
    before = traces(folder)
    wrong: tuple[dict[str, Any], ...] = (
        {"settings": {"num.partition": "3"}},
        {"topics": {"a/b": 1}},
        {"topics": {"t": 0}},
        {"settings": {"listeners": "SSL://:0"}},
    )
    for arguments in wrong:
        with pytest.raises(UsageError), keylane.testing.broker(**arguments):
            pytest.fail("it started")
    assert traces(folder) - before == Counter()


def test_records_are_there_after_a_stop_and_a_start_on_the_same_port() -> None:
    with keylane.testing.broker(topics={"orders": 1}) as broker:
        address = broker.bootstrap_servers
        with BulkProducer(address) as producer:
            producer.produce(Output("orders", value=b"one"))
        broker.stop()
        with pytest.raises(OSError, match="refused"):
            ProtocolClient(address)
        broker.start()
        assert broker.bootstrap_servers == address
        assert [record.value for batch in read_to_end(address, "orders") for record in batch] == [b"one"]


def test_brokers_beside_each_other_in_asynchronous_code() -> None:
    async def main() -> set[str]:
        async with keylane.testing.broker() as one, keylane.testing.broker() as other:
            return {one.bootstrap_servers, other.bootstrap_servers}

    assert len(asyncio.run(main())) == 2


def test_users_have_to_authenticate() -> None:
    with keylane.testing.broker(users={"alice": "wonderland"}) as broker:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice"}
        with BulkProducer(broker.bootstrap_servers, settings | {"sasl.password": "wonderland"}) as producer:
            producer.produce(Output("t", value=b"one"))
        with ProtocolClient(broker.bootstrap_servers) as client, pytest.raises(EOFError):
            client.ask("metadata", 1, topics=None)


def test_misuse_is_told(kafka: EmbeddedBroker) -> None:
    with pytest.raises(UsageError, match="topic 'orders' already exists"):
        kafka.create_topics({"orders": 1})
    with pytest.raises(UsageError, match="runs already"):
        kafka.start()
    idle = keylane.testing.broker()
    with pytest.raises(UsageError, match="use it in a `with` block"):
        _ = idle.bootstrap_servers
    with pytest.raises(UsageError, match="use it in a `with` block"):
        idle.create_topics({"t": 1})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"api": "Commit", "delay_ms": 1}, "api 'Commit': give one of Produce, Fetch"),
        ({"api": "Fetch"}, "give delay_ms, error or disconnect"),
        ({"api": "Fetch", "delay_ms": -1}, "delay_ms=-1"),
        ({"api": "Fetch", "delay_ms": 1, "times": 0}, "times=0"),
        ({"api": "Fetch", "error": "NO_SUCH_ERROR"}, "error 'NO_SUCH_ERROR': give one of Kafka's error codes"),
        ({"api": "Fetch", "error": 9_999}, "error 9999"),
        ({"api": "Fetch", "disconnect": "later"}, "disconnect='later'"),
        ({"api": "Fetch", "error": 3, "disconnect": "after"}, "nobody hears an error"),
    ],
)
def test_a_wrong_fault_is_told(kafka: EmbeddedBroker, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        kafka.fault(**arguments)


def test_every_api_may_meet_a_fault(kafka: EmbeddedBroker) -> None:
    for name in api_names():
        fault = kafka.fault(name, error="UNKNOWN_SERVER_ERROR", client_id="nobody")
        fault.remove()
        assert fault.met == 0


def commit(kafka: EmbeddedBroker, group: str, offset: int, client_id: str = "me") -> None:
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "client.id": client_id, "log_level": 0}
    )
    try:
        consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed(kafka: EmbeddedBroker, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        return consumer.committed([TopicPartition("orders", 0)], timeout=TIMEOUT_S)[0].offset
    finally:
        consumer.close()


def test_an_error_means_that_nothing_was_done(kafka: EmbeddedBroker) -> None:
    fault = kafka.fault("OffsetCommit", error="OFFSET_METADATA_TOO_LARGE")
    with pytest.raises(KafkaException) as raised:
        commit(kafka, "refused", 5)
    assert raised.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert committed(kafka, "refused") < 0
    assert fault.met == 1
    commit(kafka, "refused", 6)
    assert committed(kafka, "refused") == 6


def test_disconnected_before_nothing_is_done_and_after_it_is(kafka: EmbeddedBroker) -> None:
    kafka.fault("OffsetCommit", disconnect="before", times=None)
    with pytest.raises(KafkaException):
        commit(kafka, "before", 5)
    kafka.clear_faults()
    assert committed(kafka, "before") < 0
    fault = kafka.fault("OffsetCommit", disconnect="after", times=None)
    with pytest.raises(KafkaException):
        commit(kafka, "after", 5)
    assert fault.met >= 1
    assert committed(kafka, "after") == 5


def test_a_fault_of_one_client_is_not_another_ones(kafka: EmbeddedBroker) -> None:
    kafka.fault("OffsetCommit", error="OFFSET_METADATA_TOO_LARGE", client_id="bad", times=None)
    commit(kafka, "of-good", 5, client_id="good")
    with pytest.raises(KafkaException):
        commit(kafka, "of-bad", 5, client_id="bad")


def test_what_follows_a_delayed_request_waits_with_it(kafka: EmbeddedBroker) -> None:
    from kit.samples import sample_request

    fault = kafka.fault("Heartbeat", delay_ms=200, client_id="keylane-testing")
    with ProtocolClient(kafka.bootstrap_servers) as client:
        began = time.monotonic()
        client.send("heartbeat", sample_request("heartbeat", 4))
        client.send("api_versions", sample_request("api_versions", 0))
        assert client.receive()[:4] == b"\0\0\0\1"
        assert time.monotonic() - began >= 0.2
        assert client.receive()[:4] == b"\0\0\0\2"
    assert fault.met == 1


def test_a_producer_survives_an_error_that_can_be_retried(kafka: EmbeddedBroker) -> None:
    fault = kafka.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", times=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "retry.backoff.ms": 10})
    producer.produce("orders", b"one", partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    assert fault.met == 3
    assert len([record for batch in read_to_end(kafka.bootstrap_servers, "orders", [1]) for record in batch]) == 1


def test_a_topic_that_has_no_leader(kafka: EmbeddedBroker) -> None:
    kafka.fault("Metadata", error="LEADER_NOT_AVAILABLE", client_id="admin", times=None)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "admin"})
    found = admin.list_topics("orders", timeout=TIMEOUT_S)
    assert found.brokers
    error = found.topics["orders"].error
    assert error is not None
    assert error.code() == KafkaError.LEADER_NOT_AVAILABLE


PLUGIN_TEST = """
import sys

import pytest


def test_nothing_is_imported_before_it_is_used():
    assert "keylane.broker" not in sys.modules
    assert "keylane.testing.embedded" not in sys.modules


@pytest.mark.kafka_broker(topics={"orders": 4}, settings={"node.id": "7"})
def test_the_mark_is_heard(kafka_broker):
    from confluent_kafka.admin import AdminClient

    found = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers}).list_topics(timeout=10)
    assert len(found.topics["orders"].partitions) == 4
    assert list(found.brokers) == [7]


def test_without_a_mark(kafka_broker):
    assert kafka_broker.bootstrap_servers.startswith("127.0.0.1:")
"""


def test_the_plugin_and_the_examples_of_the_page_in_a_project_of_somebody_elses(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    (tmp_path / "test_a_plugin.py").write_text(PLUGIN_TEST)
    (tmp_path / "test_examples.py").write_text("\n\n".join(blocks))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--strict-markers",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed" in done.stdout


def test_each_record_of_many_goes_to_the_partition_that_it_names(kafka: EmbeddedBroker) -> None:
    """`produce_batch` leaves a message's own partition out of account."""
    kafka.create_topics({"placed": 2})
    given = [
        Output("placed", b"k", b"%d" % number, partition=number % 2 if number % 3 else None) for number in range(30)
    ]
    with BulkProducer(kafka.bootstrap_servers) as producer:
        producer.produce_all(given)
    found = [one for some in read_to_end(kafka.bootstrap_servers, "placed") for one in some]
    where = {int(one.value or b""): one.partition for one in found}
    assert len(found) == len(where) == 30
    assert all(where[number] == one.partition for number, one in enumerate(given) if one.partition is not None)
    with pytest.raises(PeerError, match="UNKNOWN_PARTITION"), BulkProducer(kafka.bootstrap_servers) as producer:
        producer.produce_all([Output("placed", value=b"1", partition=7)])
