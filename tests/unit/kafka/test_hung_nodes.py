"""A node that hangs or dies while the cluster goes on without it: so do clients, long before librdkafka's 60 s."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from keylane.coordinator.transactions.transactional_ids import Producer as LogProducer
from keylane.kafka import exact_transactions
from keylane.kafka.admin import Admin
from keylane.kafka.faults import client_of
from keylane.kafka.fenced_log import ANSWER_S
from keylane.kafka.log_group import LogGroup
from keylane.kafka.settings import (
    consumer_settings,
    fetcher_settings,
    member_settings,
    producer_settings,
    transactional_settings,
)
from kit.log_writer import LogWriter
from kit.mock_cluster import MockCluster
from kit.processes import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOPIC, LED = "t", "led"
SOON_S = 20.0
"""A third of librdkafka's patience."""
FAIL_OVER_S = 2.0


class Entry(NamedTuple):
    name: tuple[str, int]
    offset: int
    metadata: str
    leader_epoch: int = -1


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create(TOPIC)
        cluster.lead(TOPIC, 1)
        yield cluster


def kafka(cluster: MockCluster, **changes: Any) -> dict[str, Any]:
    return {"bootstrap.servers": ",".join(cluster.servers), "group.id": "g", "log_level": 0} | changes


def produce(producer: Producer, times: int = 1) -> None:
    for _ in range(times):
        producer.produce(TOPIC, b"v", partition=0)
    assert producer.flush(SOON_S) == 0


@pytest.mark.full
def test_reading_goes_on_when_a_leader_hangs(cluster: MockCluster) -> None:
    producer = client_of(Producer, producer_settings(kafka(cluster), None))
    reader = client_of(Consumer, fetcher_settings(consumer_settings(kafka(cluster), None)))
    produce(producer)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    assert read(reader) == 0
    cluster.hang(1)
    cluster.lead(TOPIC, 2)
    other = client_of(Producer, producer_settings(kafka(cluster, **{"bootstrap.servers": cluster.servers[1]}), None))
    produce(other)
    watch = Stopwatch()
    assert read(reader) == 1
    assert watch.took_s() < SOON_S
    reader.close()


def test_outputs_and_commits_go_on_when_their_node_hangs(cluster: MockCluster) -> None:
    cluster.coordinate("group", "g", 1)
    producer = client_of(Producer, producer_settings(kafka(cluster), None))
    produce(producer)
    member = client_of(Consumer, member_settings(consumer_settings(kafka(cluster), None)))
    commit = [TopicPartition(TOPIC, 0, 1)]
    member.commit(offsets=commit, asynchronous=False)
    cluster.hang(1)
    threading.Timer(FAIL_OVER_S, cluster.lead, [TOPIC, 2]).start()
    threading.Timer(FAIL_OVER_S, cluster.coordinate, ["group", "g", 2]).start()
    watch = Stopwatch()
    with ThreadPoolExecutor(1) as pool:
        delivered = pool.submit(produce, producer)
        member.commit(offsets=commit, asynchronous=False)
        delivered.result()
    assert watch.took_s() < SOON_S
    member.close()


def test_offsets_of_a_transaction_go_on_when_the_coordinator_that_was_told_is_dead(cluster: MockCluster) -> None:
    """librdkafka asks who coordinates, is told of the dead one, and waits for that one without an end."""
    cluster.lead(TOPIC, 2)
    cluster.coordinate("group", "g", 1)
    cluster.coordinate("transaction", "x", 2)
    cluster.kill(1)
    settings = transactional_settings(kafka(cluster), None) | {"transactional.id": "x"}
    producer = client_of(Producer, settings)
    producer.init_transactions(SOON_S)
    producer.begin_transaction()
    produce(producer)
    consumer = client_of(Consumer, consumer_settings(kafka(cluster), None))
    threading.Timer(FAIL_OVER_S, cluster.coordinate, ["group", "g", 3]).start()
    sending = threading.Thread(target=send, args=(producer, consumer), daemon=True)
    sending.start()
    sending.join(SOON_S)
    assert not sending.is_alive(), "the call stands still"
    consumer.close()


@pytest.mark.full
def test_questions_go_on_when_the_only_node_that_is_connected_hangs(cluster: MockCluster) -> None:
    for node in (1, 2):
        cluster.kill(node)
    admin = Admin(kafka(cluster))
    assert admin.topics() == {TOPIC: 1}
    for node in (1, 2):
        cluster.start(node)
    cluster.hang(3)
    assert admin.topics() == {TOPIC: 1}


def test_appends_to_a_log_go_on_when_its_leader_hangs(cluster: MockCluster) -> None:
    cluster.coordinate("transaction", TOPIC, 2)
    with LogWriter(",".join(cluster.servers), TOPIC) as writer:
        assert isinstance(writer.init(), LogProducer)
        writer.append(b"first")
        assert writer.answer() == 0
        cluster.hang(1)
        threading.Timer(FAIL_OVER_S, cluster.lead, [TOPIC, 2]).start()
        watch = Stopwatch()
        writer.append(b"second")
        assert isinstance(writer.answer(), int)
        assert watch.took_s() < ANSWER_S, "it was waited for until nobody would have answered"


def test_leaders_of_a_log_lead_on_while_their_groups_coordinator_hangs(cluster: MockCluster) -> None:
    cluster.create(LED, 3)
    cluster.coordinate("group", "leaders", 1)
    told: queue.SimpleQueue[tuple[str, list[int]]] = queue.SimpleQueue()

    def tell(what: str) -> Callable[[Sequence[int]], None]:
        return lambda partitions: told.put((what, list(partitions)))

    group = LogGroup(
        {"bootstrap.servers": ",".join(cluster.servers), "log_level": 0},
        LED,
        group="leaders",
        name="a server",
        failed=lambda text: told.put((text, [])),
        session_timeout_ms=4_000,
        given=tell("given"),
        taken=tell("taken"),
        lost=tell("lost"),
    )
    group.start()
    everything = [0, 1, 2]
    assert told.get(timeout=SOON_S) == ("given", everything)
    cluster.hang(1)
    assert told.get(timeout=SOON_S) == ("lost", everything)
    cluster.coordinate("group", "leaders", 2)
    assert told.get(timeout=SOON_S) == ("given", everything)
    group.close()
    assert told.get(timeout=0) == ("taken", everything)


def send(producer: Producer, consumer: Consumer) -> None:
    # It may come too late for this call: the transaction is aborted then, and the next one succeeds.
    with suppress(KafkaException):
        exact_transactions.send_offsets(producer, consumer, [Entry((TOPIC, 0), 1, "")], 5.0)


def read(reader: Consumer) -> int | None:
    """The offset of the next record."""
    give_up_at = monotonic() + SOON_S
    while monotonic() < give_up_at:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            return message.offset()
    return None


def test_what_the_user_says_wins() -> None:
    given = {"bootstrap.servers": "h:1", "group.id": "g", "socket.timeout.ms": 700}
    consumer = consumer_settings(given, None)
    assert member_settings(consumer)["socket.timeout.ms"] == 700
    assert producer_settings(given, None)["socket.timeout.ms"] == 700
    assert transactional_settings(given, None)["socket.timeout.ms"] == 700


@pytest.mark.parametrize(("transaction_ms", "silent_ms"), [(60_000, 5_000), (3_000, 2_900), (1_000, 900)])
def test_a_request_is_given_up_while_its_transaction_can_go_on(transaction_ms: int, silent_ms: int) -> None:
    settings = transactional_settings({"transaction.timeout.ms": transaction_ms}, None)
    assert settings["socket.timeout.ms"] == silent_ms
    client_of(Producer, settings | {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "x", "log_level": 0})
