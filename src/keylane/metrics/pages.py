"""A small HTTP server on a thread of its own: the pages that it was given, and 404 for every other path.

`/healthz` and `/readyz` are for the probes of whatever runs the process, Kubernetes for one: 200 and a line when all is
well, 503 and a line with the reason when it is not.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.consumer.health import Health

TEXT = "text/plain; charset=utf-8"

MOST_CONNECTIONS = 64
"""At a time, each with a thread. One more ends the oldest that has sent no whole request, or is closed itself."""

EVERY_ADDRESS = "::"
"""Where a probe comes from outside of its container: IPv6 and IPv4, or IPv4 alone on a machine without the other."""


class Page(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: str = TEXT


class PageServer:
    """Serves `pages`, by path, while its `with` block runs; each is made when it is asked for, from the value of the
    request's `Accept` header. `::` is every address.

    Raises `PeerError` when the port cannot be had. Port 0 takes a free one; `port` says which. Thread safety: pages are
    made on threads of their own, several at a time.
    """

    def __init__(self, pages: Mapping[str, Callable[[str], Page]], port: int, host: str, what: str) -> None:
        class Handler(_Handler):
            served = pages

        try:
            self._server = _Server(host, port, Handler)
        except OSError as error:
            raise PeerError(
                f"{what} cannot be served at {place(host, port)}: {error.strerror}; give another port"
            ) from None
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="keylane-pages", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def place(host: str, port: int) -> str:
    """As in an address of the web."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HealthServer(PageServer):
    """Serves `/healthz` and `/readyz`: `HealthServer(consumer.health, 8080, "::")`; of lanes, `query.health`."""

    def __init__(self, source: Callable[[], Health], port: int, host: str = "127.0.0.1") -> None:
        super().__init__(health_pages(source), port, host, "health")


def health_pages(source: Callable[[], Health]) -> dict[str, Callable[[str], Page]]:
    return {
        "/healthz": lambda _: _answer("alive", source().fault),
        "/readyz": lambda _: _answer("ready", source().unready),
    }


def _answer(good: str, trouble: str | None) -> Page:
    if trouble is None:
        return Page(200, f"{good}\n".encode())
    return Page(503, f"not {good}: {trouble}\n".encode())


class _Server(ThreadingHTTPServer):
    """Listens on an address of either kind, where the library's takes IPv4 alone."""

    request_queue_size = 128
    """Connections that wait to be taken. With the library's 5, a probe that comes beside a few others loses its first
    packet, and is a second late."""

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        if host == EVERY_ADDRESS and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._silent: dict[socket.socket, None] = {}
        """Those that have sent no whole request, in the order in which they came."""
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread of its own for each connection, while there are few."""
        with self._lock:
            is_full = len(self._open) >= MOST_CONNECTIONS
            oldest = next(iter(self._silent), None) if is_full else None
            if oldest is not None:
                del self._silent[oldest]
                with suppress(OSError):  # it has gone just now
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends
            if not is_full or oldest is not None:
                self._open.add(request)
                self._silent[request] = None
        if request in self._open:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def hear(self, request: Any) -> None:
        """A whole request has come on this connection."""
        with self._lock:
            self._silent.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """The connection is over."""
        with self._lock:
            self._open.discard(request)
            self._silent.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves before it has its answer is nobody's error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, False)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    served: Mapping[str, Callable[[str], Page]]
    timeout = 10.0
    """Seconds for which a client may say nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _serve(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.hear(self.request)
        make = self.served.get(self.path.partition("?")[0])
        if make is None:
            status, body, content_type = 404, f"served here: {', '.join(sorted(self.served))}\n".encode(), TEXT
        else:
            status, body, content_type = make(self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a probe comes every few seconds."""
