"""What a connection may ask before, while and after it authenticates, and the limits on connections and requests."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.broker.users import add_user
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_UNAUTHENTICATED_BYTES = 2_000
SASL_BYTES = b"\0alice\0wonderland"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("users") / "users.json"
    add_user(path, "alice", "wonderland")
    add_user(path, "bob", "builder")
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "keylane.users.file": str(path),
        "sasl.server.max.receive.size": str(MAX_UNAUTHENTICATED_BYTES),
        "connection.failed.authentication.delay.ms": "0",
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ProtocolClient]:
    with ProtocolClient(broker.bootstrap) as one:
        yield one


def metadata(client: ProtocolClient) -> Any:
    return client.ask("metadata", 1, topics=None)


def authenticate(client: ProtocolClient, said: bytes = SASL_BYTES, version: int = 2) -> Any:
    assert client.ask("sasl_handshake", 1, mechanism="PLAIN").error_code == ErrorCode.none
    return client.ask("sasl_authenticate", version, auth_bytes=said)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_everything_is_open_to_who_has_authenticated(client: ProtocolClient, version: int) -> None:
    assert client.ask("api_versions", 0).error_code == ErrorCode.none
    answer = authenticate(client, version=version)
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (ErrorCode.none, None, b"")
    assert metadata(client).brokers
    large = b"x" * (MAX_UNAUTHENTICATED_BYTES * 2)
    client.send_bytes(struct.pack(">ihhih", len(large) + 10, 18, 0, 7, 0) + large)
    assert client.receive()[:4] == struct.pack(">i", 7)


def test_nothing_but_authentication_is_open_to_others(client: ProtocolClient, broker: BrokerProcess) -> None:
    with pytest.raises(EOFError):
        metadata(client)
    assert "API key 3 was asked before the client authenticated (SASL)" in broker.log.read_text()


@pytest.mark.parametrize("api", ["produce", "fetch", "offset_commit", "offset_fetch"])
def test_what_is_recognised_by_its_bytes_is_not_either(broker: BrokerProcess, api: str) -> None:
    keys = {"produce": 0, "fetch": 1, "offset_commit": 8, "offset_fetch": 9}
    with ProtocolClient(broker.bootstrap) as client:
        client.send_bytes(struct.pack(">ihhih", 10, keys[api], 7, 1, -1))
        assert client.is_closed_by_peer()


def test_requests_are_small_before_it(client: ProtocolClient) -> None:
    client.send_bytes(struct.pack(">ihhih", MAX_UNAUTHENTICATED_BYTES + 1, 18, 0, 7, -1))
    assert client.is_closed_by_peer()


def test_a_mechanism_that_is_not_offered(client: ProtocolClient) -> None:
    answer = client.ask("sasl_handshake", 1, mechanism="GSSAPI")
    assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
    assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert authenticate(client).error_code == ErrorCode.none


def test_authentication_without_a_handshake(client: ProtocolClient) -> None:
    answer = client.ask("sasl_authenticate", 2, auth_bytes=SASL_BYTES)
    assert answer.error_code == ErrorCode.illegal_sasl_state
    assert client.is_closed_by_peer()


@pytest.mark.parametrize(
    "said",
    [
        b"\0alice\0guess",
        b"\0mallory\0wonderland",
        b"bob\0alice\0wonderland",
        b"\0alice\0",
        b"\0\0wonderland",
        b"alice\0wonderland",
        b"\xff\0alice\0wonderland",
        b"",
    ],
)
def test_who_fails_is_told_and_disconnected(client: ProtocolClient, said: bytes) -> None:
    answer = authenticate(client, said)
    assert answer.error_code == ErrorCode.sasl_authentication_failed
    assert answer.error_message.startswith("Authentication failed: ")
    assert client.is_closed_by_peer()


def frames_until_the_end(client: ProtocolClient) -> Iterator[bytes]:
    while True:
        try:
            yield client.receive()
        except (EOFError, ConnectionError):
            return


def test_nothing_gets_in_beside_an_authentication_that_is_under_way(client: ProtocolClient) -> None:
    """All in one piece: a right password, and what is only for those who have shown it."""
    from keylane.wire.versions import request_type
    from kit.protocol import encode_request

    handshake = request_type("sasl_handshake", 1)(mechanism="PLAIN")
    entry = request_type("sasl_authenticate", 2)(auth_bytes=SASL_BYTES)
    listing = request_type("metadata", 1)(topics=None)
    client.send_bytes(
        encode_request("sasl_handshake", handshake, 1)
        + encode_request("sasl_authenticate", entry, 2)
        + encode_request("metadata", listing, 3)
    )
    answered = [frame[:4] for frame in frames_until_the_end(client)]
    assert struct.pack(">i", 3) not in answered


def test_a_listener_without_sasl_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ProtocolClient(broker.bootstrap) as client:
        for answer in (
            client.ask("sasl_handshake", 1, mechanism="PLAIN"),
            client.ask("sasl_authenticate", 2, auth_bytes=SASL_BYTES),
        ):
            assert answer.error_code == ErrorCode.illegal_sasl_state
        assert metadata(client).brokers


def metadata_until_the_end(client: ProtocolClient) -> Iterator[Any]:
    while True:
        try:
            yield metadata(client).brokers
        except (EOFError, ConnectionError):
            return


def test_an_authentication_is_renewed_or_ends(tmp_path: Path, settings: dict[str, str]) -> None:
    lifetime = {"connections.max.reauth.ms": "150"}
    with BrokerProcess(tmp_path / "data", settings=settings | lifetime) as broker:
        with ProtocolClient(broker.bootstrap) as client:
            assert authenticate(client).session_lifetime.total_seconds() == pytest.approx(0.15)
            assert authenticate(client).error_code == ErrorCode.none, "the same user may renew it"
            assert all(metadata_until_the_end(client))
        with ProtocolClient(broker.bootstrap) as client:
            assert authenticate(client).error_code == ErrorCode.none
            answer = authenticate(client, b"\0bob\0builder")
            assert answer.error_code == ErrorCode.sasl_authentication_failed
            assert client.is_closed_by_peer()
        assert "the authentication of 'alice' is over, and was not renewed" in broker.log.read_text()


def test_limits_on_connections_and_requests(tmp_path: Path) -> None:
    settings = {
        "max.connections": "3",
        "max.connections.per.ip": "2",
        "max.connections.per.ip.overrides": "127.0.0.2:0",
        "queued.max.request.bytes": "100",
        "socket.request.max.bytes": "100000",
        "keylane.max.requests.in.flight.per.connection": "3",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        with ProtocolClient(broker.bootstrap) as first, ProtocolClient(broker.bootstrap) as second:
            large = struct.pack(">ihhih", 50_000, 18, 0, 1, 0) + bytes(49_990)
            first.send_bytes(large[:40_000])  # above the memory of requests: it alone goes on
            assert first_is_answered(first, large[40_000:])
            for number in range(20):
                second.send_bytes(struct.pack(">ihhih", 10, 18, 0, number, -1))
            assert [second.receive()[:4] for _ in range(20)] == [struct.pack(">i", number) for number in range(20)]
            with ProtocolClient(broker.bootstrap) as third:
                assert third.is_closed_by_peer()
            assert first.ask("api_versions", 0).error_code == ErrorCode.none
            first.send_bytes(struct.pack(">i", 100_001))
            assert first.is_closed_by_peer()
        said = broker.log.read_text()
        assert "127.0.0.1 has 2 connections already (max.connections.per.ip); closing the connection" in said
        assert "a request of 100001 bytes: the limit is 100000 (socket.request.max.bytes)" in said


def first_is_answered(client: ProtocolClient, rest: bytes) -> bool:
    client.send_bytes(rest)
    return client.receive()[:4] == struct.pack(">i", 1)


def test_while_the_memory_of_requests_is_full_no_other_request_is_read(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings={"queued.max.request.bytes": "1000"}) as broker,
        ProtocolClient(broker.bootstrap) as holder,
        ProtocolClient(broker.bootstrap) as other,
    ):
        holder.ask("api_versions", 0)
        holder.send_bytes(struct.pack(">ihhih", 2_000, 18, 0, 1, 0) + bytes(500))
        answered = 0
        while True:  # until the broker has seen what holder began
            other.send_bytes(struct.pack(">ihhih", 10, 18, 0, answered, -1))
            if not other.has_answer(within_s=0.3):
                break
            other.receive()
            answered += 1
        assert answered < 50
        holder.send_bytes(bytes(1_490))
        assert holder.receive()[:4] == struct.pack(">i", 1)
        assert other.receive()[:4] == struct.pack(">i", answered)


def test_a_client_that_asks_for_much_and_takes_nothing_costs_no_memory(tmp_path: Path) -> None:
    """Three hundred fetches of a megabyte each, pipelined, and none is read."""
    from keylane.wire.batches import NewRecord, encode_batch
    from kit.samples import sample_request

    records = encode_batch([NewRecord(None, b"x" * 1_000_000)], timestamp_ms=1)
    with BrokerProcess(tmp_path / "data") as broker, ProtocolClient(broker.bootstrap) as client:
        metadata_of = sample_request("metadata", 4, name="large", allow_auto_topic_creation=True)
        client.send("metadata", metadata_of)
        client.receive()
        client.send(
            "produce", sample_request("produce", 9, name="large", transactional_id=None, acks=-1, records=records)
        )
        client.receive()
        values = {"topic": "large", "fetch_offset": 0, "partition_max_bytes": 2_000_000, "max_bytes": 2_000_000}
        values |= {"replica_id": -1, "session_epoch": -1, "current_leader_epoch": -1, "last_fetched_epoch": -1}
        fetch = sample_request("fetch", 11, forgotten_topics_data=(), **values)
        before = resident_mb(broker.pid)
        with ProtocolClient(broker.bootstrap) as greedy:
            last = [greedy.send("fetch", fetch) for _ in range(300)][-1]
            greedy.receive()  # the broker is at it
            for _ in range(20):  # and has looked at all that stood before these
                assert client.ask("api_versions", 0).error_code == ErrorCode.none
            assert resident_mb(broker.pid) - before < 100
            for number in range(2, last + 1):
                answer = greedy.receive()
                assert (answer[:4], len(answer) > 1_000_000) == (struct.pack(">i", number), True)


def resident_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) // 1_024 for line in status.splitlines() if line.startswith("VmRSS"))
