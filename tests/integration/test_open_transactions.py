"""Transactions that other processes end, on a real broker: what a producer leaves behind, and what the client reads."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keylane.errors import PeerError
from keylane.kafka.open_transaction_producer import OpenTransaction
from keylane.kafka.open_transactions import TransactionsClient
from keylane.records import Output
from keylane.testing import EmbeddedBroker
from keylane.wire import codes
from kit.committed import committed_values

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker(topics={"rows": 2, "killed": 1, "record": 1, "failed": 1}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def client(servers: str) -> Iterator[TransactionsClient]:
    with TransactionsClient({"bootstrap.servers": servers}) as made:
        yield made


def test_a_transaction_outlives_its_producer(servers: str, client: TransactionsClient) -> None:
    with OpenTransaction(servers, {}, "outlives/1", TIMEOUT_MS, "rows") as transaction:
        for number in range(10):
            transaction.produce(Output("rows", b"%d" % number, b"%d" % number))
    del transaction
    assert committed_values(servers, "rows", now=True) == []
    assert client.open_ids("outlives/", "rows") == (codes.NONE, ["outlives/1"])
    _, held = client.describe(["outlives/1", "outlives/none"])
    (one,) = held.values()
    assert one.is_open
    assert one.timeout_ms == TIMEOUT_MS
    for _ in range(3):
        assert client.end("outlives/1", one.producer_id, one.epoch, committed=True) == codes.NONE
    assert client.end("outlives/1", one.producer_id, one.epoch, committed=False) == codes.INVALID_TXN_STATE
    assert committed_values(servers, "rows") == [b"%d" % number for number in range(10)]
    assert client.open_ids("outlives/", "rows") == (codes.NONE, [])


def test_a_transaction_outlives_its_process(servers: str, client: TransactionsClient) -> None:
    program = f"""
import os, signal
from keylane.kafka.open_transaction_producer import OpenTransaction
from keylane.records import Output
with OpenTransaction({servers!r}, {{}}, "killed/1", {TIMEOUT_MS}, "killed") as transaction:
    transaction.produce(Output("killed", None, b"x"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    (one,) = client.describe(["killed/1"])[1].values()
    assert one.is_open
    assert client.end("killed/1", one.producer_id, one.epoch, committed=True) == codes.NONE
    assert committed_values(servers, "killed") == [b"x"]


def test_an_error_in_the_block_aborts(servers: str, client: TransactionsClient) -> None:
    def fail() -> None:
        with OpenTransaction(servers, {}, "fails/1", TIMEOUT_MS, "failed") as transaction:
            transaction.produce(Output("failed", None, b"x"))
            transaction.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (one,) = client.describe(["fails/1"])[1].values()
    assert not one.is_open
    assert client.end("fails/1", one.producer_id, one.epoch, committed=True) == codes.INVALID_TXN_STATE
    assert committed_values(servers, "failed") == []


def test_an_id_that_was_given_anew_is_fenced(client: TransactionsClient) -> None:
    error, *first = client.init("fenced", TIMEOUT_MS)
    assert error == codes.NONE
    error, *second = client.init("fenced", TIMEOUT_MS, (first[0], first[1]))
    assert (error, second[1]) == (codes.NONE, first[1] + 1)
    assert client.add_topic("fenced", first[0], first[1], "record") == codes.PRODUCER_FENCED
    assert client.end("fenced", first[0], first[1], committed=True) == codes.PRODUCER_FENCED
    client.init("fenced", TIMEOUT_MS)
    assert client.init("fenced", TIMEOUT_MS, (first[0], first[1]))[0] == codes.PRODUCER_FENCED
    assert client.end("unknown", 1, 0, committed=True) == codes.INVALID_PRODUCER_ID_MAPPING


def test_the_newest_committed_record_is_read_whatever_was_aborted(client: TransactionsClient) -> None:
    _, *producer = client.init("writer", TIMEOUT_MS)
    who = (producer[0], producer[1])
    assert client.newest("record") == (codes.NONE, None)
    for sequence in range(70):
        value = b"%d" % sequence
        assert client.add_topic("writer", *who, "record") in (codes.NONE, codes.CONCURRENT_TRANSACTIONS)
        while client.add_topic("writer", *who, "record") == codes.CONCURRENT_TRANSACTIONS:
            pass
        for _ in range(2):  # the second is one whose answer was lost
            args = {"transactional_id": "writer", "producer": who, "sequence": sequence}
            assert client.append("record", b"sink", value, **args) == codes.NONE  # type: ignore[arg-type]
        if sequence == 0:
            assert client.newest("record") == (codes.OFFSET_NOT_AVAILABLE, None)
        assert client.end("writer", *who, committed=sequence == 2) == codes.NONE
    while (found := client.newest("record"))[0] == codes.OFFSET_NOT_AVAILABLE:
        pass  # the last marker
    assert found == (codes.NONE, b"2")


def test_a_broker_that_is_gone_is_no_answer() -> None:
    with TransactionsClient({"bootstrap.servers": "127.0.0.1:1"}) as client:
        assert client.end("a", 1, 0, committed=True) == codes.NETWORK_EXCEPTION
        assert client.describe(["a"])[0] == client.newest("a")[0] == client.partitions("a")[0]
        assert client.open_ids("a", "b") == (codes.NETWORK_EXCEPTION, [])


def test_an_id_that_cannot_be_had_is_told(servers: str) -> None:
    with pytest.raises(PeerError, match="transactional id 'long/1' cannot be had from"):
        OpenTransaction(servers, {}, "long/1", 10**9, "rows")
