"""Clients that stop at each step of TLS and SASL, or connect and say nothing: others are served, memory is bounded."""

from __future__ import annotations

import resource
import socket
import ssl
import struct
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.broker.listener import TLS_HANDSHAKE_TIMEOUT_S
from keylane.broker.process import BrokerProcess
from keylane.broker.users import add_user
from keylane.kafka.admin import Admin
from kit.processes import memory_mb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Certificates

USER, PASSWORD = "alice", "wonderland"
EACH = 20
"""Connections that stop at one step."""
WAIT_S = 60.0
MOST_BYTES_EACH = 160 * 1024
"""Of the broker's memory, for a connection with TLS that is held."""
HANDSHAKE = struct.pack(">hhih", 17, 1, 1, 1) + b"c" + struct.pack(">h", 13) + b"SCRAM-SHA-256"
FIRST = b"n,,n=alice,r=0123456789"
AUTHENTICATE = struct.pack(">hhih", 36, 0, 2, 1) + b"c" + struct.pack(">i", len(FIRST)) + FIRST


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def descriptors(broker: BrokerProcess) -> int:
    """How many it has open."""
    return sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir())


def client_hello() -> bytes:
    """What a client says first."""
    said = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    return said.read()


def answer(connection: socket.socket) -> bytes:
    """A whole frame."""
    with connection.makefile("rb") as file:
        return file.read(int.from_bytes(file.read(4), "big"))


BEFORE_TLS = {"nothing is sent": b"", "half a hello": client_hello()[:40], "a hello alone": client_hello()}
BEHIND_TLS = {
    "nothing": [],
    "half a length": [b"\0\0"],
    "half a request": [framed(HANDSHAKE)[:9]],
    "a handshake of SASL alone": [framed(HANDSHAKE)],
    "half a proof": [framed(HANDSHAKE), framed(AUTHENTICATE)[:20]],
    "no final proof": [framed(HANDSHAKE), framed(AUTHENTICATE)],
}


@pytest.fixture
def broker(tmp_path: Path, certificates: Certificates) -> Iterator[BrokerProcess]:
    users = tmp_path / "users.json"
    add_user(users, USER, PASSWORD)
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "keylane.users.file": str(users),
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        yield process


@pytest.fixture
def is_served(broker: BrokerProcess, certificates: Certificates) -> Callable[[], bool]:
    """Whether a client that logs in now is answered."""

    def ask() -> bool:
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER}
        settings |= {"sasl.password": PASSWORD, "ssl.ca.location": certificates.authority}
        return Admin(settings | {"bootstrap.servers": broker.bootstrap}).topics() == {}

    return ask


def test_who_stops_at_a_step_keeps_nobody_out(
    broker: BrokerProcess, certificates: Certificates, is_served: Callable[[], bool]
) -> None:
    assert is_served()
    before_mb, open_before = memory_mb(broker.pid), descriptors(broker)
    context = ssl.create_default_context(cafile=certificates.authority)
    with ExitStack() as open_ones:
        unfinished = []
        for said in BEFORE_TLS.values():
            for _ in range(EACH):
                plain = open_ones.enter_context(socket.create_connection((broker.host, broker.port), WAIT_S))
                plain.sendall(said)
                unfinished.append(plain)
        for pieces in BEHIND_TLS.values():
            for _ in range(EACH):
                plain = socket.create_connection((broker.host, broker.port), WAIT_S)
                safe = open_ones.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
                for number, piece in enumerate(pieces):
                    safe.sendall(piece)
                    if len(piece) == struct.unpack(">i", piece[:4].rjust(4))[0] + 4:
                        assert answer(safe), number
        held = EACH * (len(BEFORE_TLS) + len(BEHIND_TLS))
        assert is_served()
        assert memory_mb(broker.pid) - before_mb < held * MOST_BYTES_EACH // 2**20 + 8
        for one in unfinished:  # within the time of a handshake, as the broker counts it
            one.settimeout(TLS_HANDSHAKE_TIMEOUT_S + WAIT_S)
            with suppress(ConnectionResetError):
                while one.recv(65_536):
                    pass
        assert descriptors(broker) <= open_before + EACH * len(BEHIND_TLS) + 4, "those are closed"
        assert is_served()


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_idle_connections_keep_nobody_out(
    tmp_path: Path, count: int, record_property: Callable[[str, object], None]
) -> None:
    """Without TLS they are all held, or as many as there are descriptors for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as open_ones:
        open_ones.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        broker = open_ones.enter_context(BrokerProcess(tmp_path / "data"))
        admin = Admin({"bootstrap.servers": broker.bootstrap})
        assert admin.topics() == {}
        before_mb = memory_mb(broker.pid)
        for _ in range(count):
            open_ones.enter_context(socket.create_connection((broker.host, broker.port), WAIT_S))
        assert Admin({"bootstrap.servers": broker.bootstrap}).topics() == {}, "who comes last is served"
        grown_mb = memory_mb(broker.pid) - before_mb
        record_property("MB in all", grown_mb)
        assert grown_mb < count // 64 + 8, "16 KiB each"
        assert descriptors(broker) < hard
