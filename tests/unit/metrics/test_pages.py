"""The small HTTP server of probes and metrics: the addresses where it answers."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from contextlib import ExitStack, suppress

import pytest

from keylane.consumer.health import Health
from keylane.errors import PeerError
from keylane.metrics import pages
from keylane.metrics.pages import EVERY_ADDRESS, MOST_CONNECTIONS, HealthServer, Page, PageServer

has_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def answer(host: str, port: int) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


@has_ipv6
def test_every_address_is_ipv6_and_ipv4() -> None:
    with HealthServer(Health, 0, EVERY_ADDRESS) as server:
        assert [answer(host, server.port) for host in ("::1", "127.0.0.1")] == [200, 200]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", pytest.param("::1", marks=has_ipv6)])
def test_one_address_of_either_kind(host: str) -> None:
    with HealthServer(Health, 0, host) as server:
        assert answer(host, server.port) == 200


def test_every_address_of_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with HealthServer(Health, 0, EVERY_ADDRESS) as server:
        assert answer("127.0.0.1", server.port) == 200
        with pytest.raises(OSError, match=r"refused|unreachable|Cannot assign"):
            answer("::1", server.port)


@has_ipv6
def test_a_port_that_is_taken_is_named_as_a_url_has_it() -> None:
    with HealthServer(Health, 0, "::1") as server, pytest.raises(PeerError, match=rf"at \[::1\]:{server.port}: "):
        HealthServer(Health, server.port, "::1")


def test_a_probe_beside_many_others_is_not_late() -> None:
    """Those that wait to be taken are connected."""
    with HealthServer(Health, 0) as server, ExitStack() as connections:
        server._server.shutdown()
        for _ in range(100):
            connections.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=0.5))


def test_a_client_that_leaves_before_its_answer_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    asked, left = threading.Event(), threading.Event()

    def page(_accept: str) -> Page:
        asked.set()
        assert left.wait(10)
        return Page(200, b"x" * 10_000_000)

    with PageServer({"/": page}, 0, "127.0.0.1", "a page") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert asked.wait(10)
            (serving,) = [one for one in threading.enumerate() if "process_request" in one.name]
        left.set()
        serving.join(10)
    assert not serving.is_alive()
    assert capsys.readouterr().err == ""


def serving() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "process_request" in one.name]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing is not ended for that before the test is over."""
    monkeypatch.setattr(pages._Handler, "timeout", 60.0)


@pytest.mark.usefixtures("patient")
def test_silent_connections_take_a_bounded_number_of_threads_and_keep_nobody_out() -> None:
    before = len(serving())
    with HealthServer(Health, 0) as server, ExitStack() as connections:
        silent = [
            connections.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            for _ in range(2 * MOST_CONNECTIONS)
        ]
        assert answer("127.0.0.1", server.port) == 200
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest made room"
        for one in silent[: len(silent) - MOST_CONNECTIONS]:
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
        for thread in serving()[before:-MOST_CONNECTIONS]:
            thread.join(10)  # what was told its client ends
        assert len(serving()) - before <= MOST_CONNECTIONS


@pytest.mark.usefixtures("patient")
def test_where_all_have_asked_one_more_is_closed() -> None:
    asked, done = threading.Semaphore(0), threading.Event()

    def page(_accept: str) -> Page:
        asked.release()
        assert done.wait(10)
        return Page(200, b"done")

    with PageServer({"/": page}, 0, "127.0.0.1", "a page") as server, ExitStack() as connections:
        address = ("127.0.0.1", server.port)
        clients = [
            connections.enter_context(socket.create_connection(address, timeout=10)) for _ in range(MOST_CONNECTIONS)
        ]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert asked.acquire(timeout=10)
        with socket.create_connection(address, timeout=10) as one_more, suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
        done.set()
        for client in clients:
            assert client.recv(12) == b"HTTP/1.0 200"
