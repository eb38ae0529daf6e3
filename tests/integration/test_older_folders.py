"""What an older keylane left behind opens on today's (docs/adr/0082): data folders of format 1, and offset maps.

A kept folder grows old, and its groups, transactions and records are kept for days: so today's broker is given the
time at which it was written.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import keylane as kl
from keylane.broker.checkup import check_folder
from keylane.broker.data_folder import REGISTRY, read_identity
from keylane.broker.topic_settings import LONG_MAX
from keylane.offsets import OffsetMap, decode, encoding_of
from keylane.offsets.codec import Encoding
from keylane.storage.filesystem import OsFileSystem
from keylane.testing.embedded import EmbeddedBroker
from keylane.wire.batches import batches
from kit.older import TIMEOUT_S, WAITING, committed, look, records, unpack, written
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Serve = Callable[..., EmbeddedBroker]

WRITTEN = written()
FOLDERS = ("killed", "stopped")
"""By SIGKILL with a transaction open, and cleanly after another start."""
USER = ("ann", "of the fixture")
LEDGER, LOGS = ("ledger", 0), ("logs", 0)


@pytest.fixture(params=FOLDERS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path).rename(tmp_path / "data")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A broker of today on a folder."""
    since = time.monotonic()
    monkeypatch.setattr(
        "keylane.storage.filesystem.now_ms", lambda: WRITTEN["written_ms"] + int(1000 * (time.monotonic() - since))
    )
    made = []

    def on(data: Path, **settings: str) -> EmbeddedBroker:
        # Its time is that of the folder, and clients' records are of today.
        late = {"log.message.timestamp.after.max.ms": str(LONG_MAX)}
        broker = EmbeddedBroker(settings=late | settings)
        broker._folder = str(data.parent)
        broker.start()
        made.append(broker)
        return broker

    yield on
    for broker in made:
        broker.stop()


def highest_producer_id(data: Path) -> int:
    """Of all that ever appended and are in a log."""
    return max(header.producer_id for file in data.glob("topics/*/*.log") for _, header in batches(file.read_bytes()))


def version(data: Path) -> int:
    return read_identity(OsFileSystem(), str(data)).version


def test_a_broker_shows_what_the_older_one_showed(data: Path, serve: Serve) -> None:
    assert version(data) == 1
    assert [found for found in check_folder(OsFileSystem(), str(data)) if found.is_bad] == []
    broker = serve(data)
    assert look(broker.bootstrap_servers) == WRITTEN["seen"]
    broker.stop()
    assert version(data) == 3
    assert [found for found in check_folder(OsFileSystem(), str(data)) if found.is_bad] == []
    broker.start()
    assert look(broker.bootstrap_servers) == WRITTEN["seen"], "after its own stop and start"


def test_topics_keep_the_ids_that_the_older_one_gave_them(data: Path, serve: Serve) -> None:
    ids = {one["name"]: one["id"] for one in json.loads((data / REGISTRY).read_text().split("\n", 1)[1])}
    with ProtocolClient(serve(data).bootstrap_servers) as client:
        options = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        topics = client.ask("metadata", 12, topics=None, **options).topics
    assert {topic.name: str(topic.topic_id) for topic in topics if not topic.is_internal} == ids


def test_the_open_transaction_is_ended_by_its_producer(data: Path, serve: Serve) -> None:
    broker = serve(data)
    servers = broker.bootstrap_servers
    (before,) = WRITTEN["seen"]["topics"]["ledger"]["partitions"]
    assert before["stable"] < before["end"]
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "ledger-stay"})
    producer.init_transactions(TIMEOUT_S)  # aborts what it left open
    assert committed(servers, WAITING) == {"logs-0": (31, "")}
    producer.begin_transaction()
    producer.produce("ledger", b"new", b"k")
    group = Consumer({"bootstrap.servers": servers, "group.id": WAITING})
    producer.send_offsets_to_transaction([TopicPartition("logs", 0, 39)], group.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    group.close()
    assert committed(servers, WAITING) == {"logs-0": (39, "")}
    values = [one[3] for one in records(servers, [LEDGER], "read_committed")[LEDGER]]
    assert values == ["commit-0", "commit-1", "commit-2", "new"]


def test_it_takes_records_commits_and_deletions(data: Path, serve: Serve) -> None:
    last_id = highest_producer_id(data)
    assert last_id > 0
    broker = serve(data)
    servers = broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce("logs", b"new", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    assert records(servers, [LOGS], "read_committed")[LOGS][-1][0] == 40
    assert highest_producer_id(data) > last_id, "a producer id is given to nobody twice"
    member = Consumer({"bootstrap.servers": servers, "group.id": "plain-0"})
    member.commit(offsets=[TopicPartition("logs", 0, 41, "new")], asynchronous=False)
    member.close()
    admin = AdminClient({"bootstrap.servers": servers})
    for future in [*admin.delete_topics(["packed"]).values(), *admin.delete_consumer_groups(["plain-1"]).values()]:
        future.result(TIMEOUT_S)
    broker.stop()
    broker.start()
    seen = look(servers)
    assert seen["groups"]["plain-0"]["committed"] == {"logs-0": [41, "new"], "logs-1": [32, ""]}
    assert seen["topics"].keys() == WRITTEN["seen"]["topics"].keys() - {"packed"}
    assert seen["groups"].keys() == WRITTEN["seen"]["groups"].keys() - {"plain-1"}


@pytest.mark.parametrize("data", ["killed"], indirect=True)
def test_a_user_of_the_older_one_logs_in(data: Path, serve: Serve) -> None:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "keylane.users.file": str(data / "users.json")}
    broker = serve(data, **settings)
    name, password = USER

    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        sasl: dict[str, Any] = {"sasl.mechanisms": mechanism, "sasl.username": name, "sasl.password": password}
        client = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT", **sasl}
        assert "logs" in AdminClient(client).list_topics(timeout=TIMEOUT_S).topics


def incomplete_by(group: str) -> set[tuple[str, int]]:
    """What the group's commits leave to run, of 24 or 20 records a partition."""
    left = set()
    for name, (offset, metadata) in WRITTEN["seen"]["groups"][group]["committed"].items():
        found = decode(metadata, offset)
        end = WRITTEN["seen"]["topics"][group]["partitions"][int(name.rpartition("-")[2])]["end"]
        left |= {(name, one) for one in (*found.incomplete, *range(found.highest_completed + 1, end))}
    return left


def test_the_maps_mean_what_they_meant() -> None:
    """In each encoding that is written, by a client; by one process and by lanes, in the one that was shortest."""
    found = WRITTEN["seen"]["groups"]
    encodings = []
    for base, (name, (offset, metadata)) in enumerate(sorted(found["encodings"]["committed"].items()), start=3):
        assert (name, offset) == (f"encodings-{base - 3}", base)
        assert decode(metadata, offset) == OffsetMap(base, [base, base + 2, range(base + 5, base + 7)], base + 10)
        encodings.append(encoding_of(metadata))
    assert encodings == [one.label for one in Encoding if one.is_written]
    assert incomplete_by("process") == {("process-0", one) for one in (2, 3, 11)}
    assert incomplete_by("lanes") == {(f"lanes-{lane}", one) for lane in (0, 1) for one in (4, 5, 13)}


@pytest.mark.parametrize("data", ["killed"], indirect=True)
@pytest.mark.parametrize("group", ["encodings", "process", "lanes"])
def test_a_consumer_goes_on_where_the_older_one_stood(data: Path, serve: Serve, group: str) -> None:
    ran: list[tuple[str, int]] = []
    lock = threading.Lock()

    def handler(record: kl.Record) -> None:
        with lock:
            ran.append((f"{record.topic}-{record.partition}", record.offset))

    servers = serve(data).bootstrap_servers
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": group}, topics=[group], handler=handler, ordering="unordered"
    )
    with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()
    assert len(ran) == len(set(ran))
    assert set(ran) == incomplete_by(group)
    ends = {
        f"{group}-{index}": (one["end"], "") for index, one in enumerate(WRITTEN["seen"]["topics"][group]["partitions"])
    }
    assert committed(servers, group) == ends
