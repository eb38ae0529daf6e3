"""The sink's driver on real brokers, without Spark: what times out, who comes too late, what a failed commit does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.login import LoginError
from keylane.kafka.open_transaction_producer import OpenTransaction
from keylane.kafka.open_transactions import TransactionsClient
from keylane.spark.structured.exact import driver, protocol
from keylane.spark.structured.exact.digest import Digest
from keylane.spark.structured.exact.record import Entry, task_prefix, topic_of
from keylane.spark.structured.sink_rows import SinkRows
from keylane.testing import EmbeddedBroker
from kit.committed import committed_values

if TYPE_CHECKING:
    from collections.abc import Iterator

QUERY = "query"
TIMEOUT_MS = 60_000


PACE = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=PACE) as made:
        yield made


@pytest.fixture(scope="module", params=["embedded", pytest.param("apache", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "embedded":
        yield request.getfixturevalue("broker").bootstrap_servers
        return
    import peers

    if missing := peers.missing():
        pytest.skip(missing)
    with peers.ApacheKafka(PACE) as kafka:
        yield kafka.bootstrap


def sink_at(servers: str) -> driver.Sink:
    """Its rows go to a topic of the same name."""
    name, settings = f"sink-{uuid4().hex[:8]}", {"bootstrap.servers": servers}
    Admin(settings).create_topics({name: 1})
    return driver.Sink(name, settings)


@pytest.fixture
def sink(servers: str) -> driver.Sink:
    return sink_at(servers)


def write(sink: driver.Sink, partition: int, timeout_ms: int = TIMEOUT_MS, rows: int = 5) -> Entry:
    digest, name = Digest(), task_prefix(sink.name) + uuid4().hex
    servers = sink.settings["bootstrap.servers"]
    with OpenTransaction(servers, {}, name, timeout_ms, sink.name) as transaction:
        made = SinkRows(sink.name, [None] * rows, [b"%d-%d" % (partition, number) for number in range(rows)])
        for row in made.outputs():
            transaction.produce(row)
        digest.add(made)
    held = driver.described(sink, name)
    return Entry(partition, name, *held.producer, digest.rows, digest.sum, held.started_ms)


def committed(sink: driver.Sink) -> list[str]:
    return [one.decode() for one in committed_values(sink.settings["bootstrap.servers"], sink.name)]


def rows(*partitions: int) -> list[str]:
    return sorted(f"{partition}-{number}" for partition in partitions for number in range(5))


def dies_at(sink: driver.Sink, plan: protocol.Plan, entries: list[Entry], end: int) -> None:
    """A driver that dies before it has asked for this end of a transaction of its batch."""
    steps = protocol.commit(plan, QUERY, 0, entries, int(time.time() * 1000))
    with TransactionsClient(sink.settings) as client:
        request = next(steps)
        while not isinstance(request, protocol.End) or (end := end - 1) >= 0:
            request = steps.send(driver._asked(request, sink, client))


def is_open(sink: driver.Sink, name: str) -> bool:
    with TransactionsClient(sink.settings) as client:
        return client.describe([name])[1][name].is_open


def test_what_a_query_left_open_is_ended_when_it_is_asked_for(sink: driver.Sink) -> None:
    """What it had decided is committed, and the rest is aborted."""
    driver.end_transactions("never-written", sink.settings)
    assert topic_of("never-written") not in Admin(sink.settings).topics()
    plan = driver.start(sink)
    entries = [write(sink, 0), write(sink, 1)]
    driver.end_transactions(sink.name, sink.settings)
    assert [is_open(sink, entry.id) for entry in entries] == [False, False]
    assert committed(sink) == []
    with pytest.raises(protocol.FencedError):  # it was not stopped after all
        driver.commit(sink, plan, QUERY, 0, [write(sink, 0)])
    driver.end_transactions(sink.name, sink.settings)
    dies_at(sink, driver.start(sink), [write(sink, 0), write(sink, 1)], 1)
    driver.end_transactions(sink.name, sink.settings)
    assert committed(sink) == rows(0, 1)


@pytest.mark.parametrize(
    ("name", "kafka", "says"),
    [
        ("a/b", {"bootstrap.servers": "h:1"}, r"end_transactions\('a/b'\): give the sinkName of the query"),
        ("orders", {"client.id": "x"}, "kafka has no bootstrap.servers: give HOST:PORT"),
    ],
)
def test_ending_needs_a_name_and_brokers(name: str, kafka: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        driver.end_transactions(name, kafka)


def test_what_times_out_between_two_ends_is_written_again_and_nothing_else(sink: driver.Sink) -> None:
    plan = driver.start(sink)
    entries = [write(sink, 0), write(sink, 1, timeout_ms=2_000)]
    dies_at(sink, plan, entries, 1)
    while is_open(sink, entries[1].id):
        time.sleep(0.05)
    assert committed(sink) == rows(0)
    plan = driver.start(sink)
    assert [protocol.writes(plan, QUERY, 0, partition) for partition in (0, 1)] == [False, True]
    with pytest.raises(protocol.ReplayDiffersError, match="partitions 1 timed out"):
        driver.commit(sink, plan, QUERY, 0, [write(sink, 1, rows=4)])
    driver.abort(sink, plan)
    plan = driver.start(sink)
    driver.commit(sink, plan, QUERY, 0, [write(sink, 1)])
    assert committed(sink) == rows(0, 1)
    plan = driver.start(sink)
    assert plan.record is not None
    assert plan.record.is_done


def test_a_commit_that_fails_after_the_list_is_finished_by_its_abort(sink: driver.Sink) -> None:
    plan = driver.start(sink)
    entries = [write(sink, 0), write(sink, 1)]
    loser = write(sink, 1)
    dies_at(sink, plan, entries, 1)
    driver.abort(sink, plan)
    assert committed(sink) == rows(0, 1)
    assert not is_open(sink, loser.id)


def test_a_commit_that_fails_before_its_list_is_undone_by_its_abort(sink: driver.Sink) -> None:
    plan = driver.start(sink)
    entries = [write(sink, 0), write(sink, 1)]
    steps = protocol.commit(plan, QUERY, 0, entries, int(time.time() * 1000))
    with TransactionsClient(sink.settings) as client:
        request = next(steps)
        while not isinstance(request, protocol.Decide):
            request = steps.send(driver._asked(request, sink, client))
    driver.abort(sink, plan)
    assert not any(is_open(sink, one.id) for one in entries)
    assert committed(sink) == []
    assert driver.start(sink).record is None


def test_an_older_driver_decides_nothing_beside_a_newer_one(sink: driver.Sink) -> None:
    old = driver.start(sink)
    of_old = [write(sink, 0)]
    new = driver.start(sink)
    of_new = [write(sink, 0)]
    with pytest.raises(protocol.NotOpenError):
        driver.commit(sink, old, QUERY, 0, of_old)
    with pytest.raises(protocol.FencedError):
        driver.commit(sink, old, QUERY, 0, [write(sink, 1)])
    driver.abort(sink, old)
    assert is_open(sink, of_new[0].id)
    driver.commit(sink, new, QUERY, 0, of_new)
    assert committed(sink) == rows(0)


def test_lost_answers_are_asked_again(broker: EmbeddedBroker) -> None:
    sink = sink_at(broker.bootstrap_servers)
    for api in ("InitProducerId", "ListTransactions", "Fetch", "FindCoordinator"):
        broker.fault(api, client_id="keylane", disconnect="after")
    plan = driver.start(sink)
    entries = [write(sink, 0), write(sink, 1)]
    for api in ("DescribeTransactions", "AddPartitionsToTxn", "Produce", "EndTxn", "EndTxn"):
        broker.fault(api, client_id="keylane", disconnect="after")
    broker.fault("EndTxn", client_id="keylane", error="NOT_COORDINATOR", times=2)
    driver.commit(sink, plan, QUERY, 0, entries)
    assert committed(sink) == rows(0, 1)
    broker.clear_faults()


def test_a_sinks_topic_is_compacted_and_of_one_partition(sink: driver.Sink) -> None:
    driver.start(sink)
    admin = Admin(sink.settings)
    assert admin.topic_configs(topic_of(sink.name))["cleanup.policy"] == "compact"
    admin.create_topics({topic_of("wide"): 2})
    with pytest.raises(UsageError, match="'keylane-sink-wide' has 2 partitions"):
        driver.start(sink._replace(name="wide"))


def test_the_login_is_the_clients() -> None:
    with EmbeddedBroker(users={"writer": "secret"}) as broker:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-256", "sasl.username": "writer"}
        settings = {"bootstrap.servers": broker.bootstrap_servers, **login}
        sink = driver.Sink("login", settings | {"sasl.password": "secret"})
        assert driver.start(sink).record is None
        with pytest.raises(LoginError, match="the broker refuses the login"):
            driver.start(sink._replace(settings=settings | {"sasl.password": "wrong"}))
