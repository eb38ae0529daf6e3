"""Questions to a cluster of which a node has died: as long as others are there, they are answered."""

from __future__ import annotations

import gc
import threading
from itertools import permutations
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from keylane.errors import BrokerUnavailableError
from keylane.kafka import logs as logs_module
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.kafka.faults import Faults, client_of
from keylane.kafka.leaders import learn_leaders
from keylane.kafka.logs import Logs, Patience
from keylane.kafka.questions import LastError, Questions, RefusedError
from kit.mock_cluster import MockCluster
from kit.processes import Stopwatch, thread_names

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "t"
SOON_S = 8.0
"""Far less than the minute after which a question about a log is given up."""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create(TOPIC)
        yield cluster


def logs_of(servers: list[str], **settings: Any) -> tuple[Consumer, Logs]:
    faults = Faults()
    text = ",".join(servers)
    made = {"bootstrap.servers": text, "group.id": "g", "log_level": 0, "error_cb": faults.report} | settings
    client = client_of(Consumer, made)
    return client, Logs(client, Patience(text), faults)


def test_a_log_whose_leader_died_is_asked_of_the_next_one(cluster: MockCluster) -> None:
    cluster.lead(TOPIC, 1)
    cluster.kill(1)
    client, logs = logs_of(cluster.servers)
    watch = Stopwatch()
    threading.Timer(1.5, cluster.lead, [TOPIC, 2]).start()  # a cluster takes some time to see that it died
    assert logs.bounds(TOPIC, 0) == (0, 0)
    assert logs.offset_at(TOPIC, 0, 1) is None
    assert watch.took_s() < SOON_S
    client.close()


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_one_dead_node_of_three_does_not_matter_to_who_starts(cluster: MockCluster, dead: int) -> None:
    cluster.lead(TOPIC, dead % 3 + 1)
    cluster.kill(dead)
    for order in permutations(cluster.servers):
        client, logs = logs_of(list(order))
        watch = Stopwatch()
        assert list(logs.metadata()) == [TOPIC]
        assert logs.bounds(TOPIC, 0) == (0, 0)
        assert watch.took_s() < SOON_S
        client.close()


class Topics:
    """A client that asks nodes which die, for so many times."""

    cluster_id = "c"

    def __init__(self, deaths: int, code: int) -> None:
        self._errors = [KafkaException(KafkaError(code))] * deaths
        self.topics = {TOPIC: "known"}
        self.given: list[float] = []

    def list_topics(self, timeout: float) -> Topics:
        self.given.append(timeout)
        if self._errors:
            raise self._errors.pop()
        return self

    def poll(self, _: float) -> None:
        pass


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._DESTROY_BROKER])
def test_a_node_that_dies_while_it_is_asked_for_topics_is_not_all_nodes(code: int) -> None:
    client: Any = Topics(2, code)
    assert Logs(client, Patience("h:1"), Faults()).metadata() == client.topics
    assert client.given[0] <= 5, "there has to be time for another node"


def test_what_cannot_help_is_not_asked_again_for_topics() -> None:
    client: Any = Topics(2, KafkaError._AUTHENTICATION)
    with pytest.raises(BrokerUnavailableError, match="_AUTHENTICATION"):
        Logs(client, Patience("h:1"), Faults()).metadata()
    assert len(client.given) == 1


def test_no_node_at_all_is_told_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "FIRST_ANSWER_S", 2.0)
    client, logs = logs_of(["127.0.0.1:1", "127.0.0.1:2"])
    watch = Stopwatch()
    with pytest.raises(
        BrokerUnavailableError, match=r"no Kafka broker answered at '127\.0\.0\.1:1,.* within 2 s \(.*:"
    ):
        logs.metadata()
    assert watch.took_s() < 3
    client.close()


def test_a_consumer_that_closes_asks_for_topics_no_more() -> None:
    client: Any = Topics(2, KafkaError._TRANSPORT)
    patience = Patience("h:1")
    patience.close()
    with pytest.raises(BrokerUnavailableError):
        Logs(client, patience, Faults()).metadata()
    assert len(client.given) == 1


def test_leaders_are_learned_in_a_callback_and_the_next_callback_of_that_poll_comes(cluster: MockCluster) -> None:
    """confluent-kafka's `list_topics` there ends the process, on an assertion."""
    came: list[int] = []

    def on_statistics(_: str) -> None:
        came.append(len(came))
        learn_leaders(client, TOPIC, 5)

    client, _ = logs_of(cluster.servers, **{"statistics.interval.ms": 50, "stats_cb": on_statistics})
    threading.Event().wait(0.5)  # several are there, for one poll
    client.poll(0.5)
    assert len(came) > 2
    client.close()


def test_leaders_of_a_name_that_no_topic_has_are_an_error(cluster: MockCluster) -> None:
    client, _ = logs_of(cluster.servers)
    with pytest.raises(KafkaException, match="is no topic's name"):
        learn_leaders(client, "x" * 600, 5)
    client.close()


def test_the_admin_asks_the_next_leader(cluster: MockCluster) -> None:
    cluster.lead(TOPIC, 1)
    admin = Admin({"bootstrap.servers": ",".join(cluster.servers)})
    assert admin.log_ends([(TOPIC, 0)], read_committed=False) == {(TOPIC, 0): 0}
    cluster.kill(1)
    threading.Timer(1.5, cluster.lead, [TOPIC, 2]).start()
    assert admin.log_ends([(TOPIC, 0)], read_committed=False) == {(TOPIC, 0): 0}
    assert admin.offsets_at({(TOPIC, 0): 1}) == {(TOPIC, 0): None}


def test_a_whole_topic_is_read_after_its_leader_died(cluster: MockCluster) -> None:
    cluster.lead(TOPIC, 1)
    cluster.kill(1)
    threading.Timer(1.5, cluster.lead, [TOPIC, 2]).start()
    assert list(read_to_end(",".join(cluster.servers), TOPIC)) == []


class Broker:
    """An admin's client: a cluster that answers who asks for its topics, or does not."""

    def __init__(self, *, there: bool) -> None:
        self.there = there
        self.looks = 0

    def poll(self, _: float) -> int:
        return 0

    def list_topics(self, timeout: float) -> None:
        assert timeout <= 1
        self.looks += 1
        if not self.there:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_an_admin_that_nobody_holds_ends_its_client() -> None:
    """Its threads and connections go with it at once, and not when the garbage is collected."""
    gc.collect()  # those of other tests
    gc.disable()
    try:
        before = clients()
        admin = Admin({"bootstrap.servers": "127.0.0.1:1"}, timeout_ms=100)
        with pytest.raises(BrokerUnavailableError):
            admin.topics()
        assert clients() > before  # a new thread has the name of the one that started it until it gives itself another
        del admin
        assert clients() == before
    finally:
        gc.enable()


def clients() -> int:
    """How many clients librdkafka runs in this process: each has one main thread."""
    return thread_names().count("rdk:main")


def questions(client: Any, timeout_s: float = 0.3) -> Questions:
    return Questions(client, LastError(), "h:1", timeout_s)


def failing(code: int, times: int | None = None) -> tuple[list[float], Any]:
    """A question that fails at once, and the times that it was given."""
    given: list[float] = []

    def attempt(timeout_s: float) -> str:
        given.append(timeout_s)
        if times is None or len(given) <= times:
            raise KafkaException(KafkaError(code))
        return "answer"

    return given, attempt


def test_no_attempt_takes_all_of_the_time() -> None:
    given, attempt = failing(KafkaError._TIMED_OUT, 2)
    assert questions(Broker(there=True), 10.0).ask("look", attempt) == "answer"
    assert given[0] <= 5
    assert len(given) == 3


def test_an_absent_cluster_is_told_within_the_timeout() -> None:
    _, attempt = failing(KafkaError._TIMED_OUT)
    watch = Stopwatch()
    with pytest.raises(BrokerUnavailableError, match=r"no Kafka broker answered at 'h:1' within 0\.3 s"):
        questions(Broker(there=False)).ask("look", attempt)
    assert watch.took_s() < 0.6


def test_a_cluster_that_is_there_is_given_the_time_of_a_fail_over() -> None:
    _, attempt = failing(KafkaError._DESTROY_BROKER)
    began, watch = monotonic(), Stopwatch()
    with pytest.raises(BrokerUnavailableError, match=r"cannot look at 'h:1' within 1 s \(_DESTROY_BROKER"):
        questions(Broker(there=True)).ask("look", attempt)
    assert monotonic() - began > 0.7
    assert watch.took_s() < 1.5


def test_what_a_broker_has_said_is_told_and_not_that_the_last_attempt_had_no_time() -> None:
    codes = [KafkaError.KAFKA_STORAGE_ERROR]

    def attempt(timeout_s: float) -> str:
        raise KafkaException(KafkaError(codes.pop() if codes else KafkaError._TIMED_OUT))

    with pytest.raises(BrokerUnavailableError, match=r"cannot make it at 'h:1' within 1 s \(KAFKA_STORAGE_ERROR"):
        questions(Broker(there=True)).ask("make it", attempt)
    codes.append(KafkaError.KAFKA_STORAGE_ERROR)
    with pytest.raises(BrokerUnavailableError, match=r"no Kafka broker answered at 'h:1' within 0\.3 s"):
        questions(Broker(there=False)).ask("make it", attempt)


def test_a_refusal_is_told_at_once() -> None:
    given, attempt = failing(KafkaError.GROUP_ID_NOT_FOUND)
    with pytest.raises(RefusedError):
        questions(Broker(there=True), 10.0).ask("do", attempt)
    assert len(given) == 1
