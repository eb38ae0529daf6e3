"""The small HTTP server of probes and metrics: the addresses where it answers."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack

import pytest

from keylane.consumer.health import Health
from keylane.errors import PeerError
from keylane.metrics.pages import EVERY_ADDRESS, HealthServer

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
