"""The page and the servers of probes and metrics take any bytes: over what they serve, with any path, header and body,
they never answer 500, tell no traceback, and go on."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keylane.consumer.health import Health
from keylane.kafka.admin import Admin
from keylane.metrics.pages import HealthServer
from keylane.testing import EmbeddedBroker
from keylane.ui.guard import TOKEN_HEADER
from keylane.ui.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a token for the tests"
GETS = (
    "/",
    "/static/page.js",
    "/api/about",
    "/api/events",
    "/api/topics",
    "/api/letters",
    "/api/letter",
    "/api/record",
)
POSTS = ("/api/unlock", "/api/payload", "/api/record", "/api/operate", "/api/redrive", "/api/purge")
FIELDS = (
    "group", "topic", "partition", "offset", "limit", "do", "topics", "records", "dlq", "reason", "execute", "wait_ms",
    "rate", "max_rounds", "to", "in_group", "key", "where", "per_s", "all", "before", "max_concurrency", "rates",
)  # fmt: skip
VERBS = (
    "pause",
    "resume",
    "adjust",
    "seek",
    "hold-key",
    "limit-key",
    "release-key",
    "skip-record",
    "park-record",
    "drain",
)
MOST_HEAD = 64 * 1024
PROBES = ("/healthz", "/readyz")
WAIT_S = 60.0

odd = st.sampled_from(
    ["", "²", "9" * 5_000, "-1", "[", "http://[", "\ud800", "\0", "\u202e", "%00", "nan", "1e999", "there"]
)
texts = odd | st.text(max_size=20) | st.sampled_from(VERBS)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)
lines = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=30) | st.just("http://[")
headers = st.dictionaries(
    st.sampled_from(["Host", "Origin", "Accept", "Content-Type", "Range", "X-Any"]), lines, max_size=3
)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        Admin({"bootstrap.servers": running.bootstrap_servers}).create_topics({"there": 1})
        yield running


@pytest.fixture
def place(broker: EmbeddedBroker) -> Iterator[tuple[str, int]]:
    """Of a page, for all examples of a test."""
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    with Page(kafka, Admin(kafka), token=TOKEN) as page:
        address = urlsplit(page.url)
        assert address.hostname is not None
        assert address.port is not None
        yield address.hostname, address.port


@pytest.fixture
def probes() -> Iterator[tuple[str, int]]:
    with HealthServer(Health, 0) as server:
        yield "127.0.0.1", server.port


def status(place: tuple[str, int], request: bytes, *, is_all: bool = False) -> int | None:
    """Of the answer; None where the connection was closed without one. `is_all`: nothing more will come."""
    with socket.create_connection(place, WAIT_S) as connection:
        head = b""
        try:
            connection.sendall(request)
            if is_all:
                connection.shutdown(socket.SHUT_WR)
            while b"\r\n\r\n" not in head and len(head) < MOST_HEAD and (piece := connection.recv(MOST_HEAD)):
                head += piece
        except ConnectionError:  # what was sent is not read to its end
            pass
    assert b"Traceback" not in head
    words = head.split(b" ", 2)
    return int(words[1]) if words[0].startswith(b"HTTP/") else None


def request_of(method: str, path: str, others: dict[str, str], body: bytes = b"") -> bytes:
    said = {"Host": "127.0.0.1", "Content-Type": "application/json", TOKEN_HEADER: TOKEN} | others
    said |= {"Content-Length": str(len(body)), "Connection": "close"}
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", ""]
    return "\r\n".join(head).encode("latin-1", "replace") + body


def encoded(text: str) -> str:
    return quote(text.encode(errors="surrogatepass"))


def is_fine(found: int | None) -> bool:
    """500 is an error that nobody thought of; 502 is one of Kafka's."""
    return found != 500


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.sampled_from(GETS), st.dictionaries(st.sampled_from(FIELDS), texts, max_size=4), headers)
@example("/api/letters", {"topic": "there", "limit": "²"}, {})
@example("/api/letters", {"topic": "there", "limit": "9" * 5_000}, {})
@example("/api/letters", {"topic": "9" * 5_000}, {})
@example("/api/about", {}, {"Origin": "http://["})
@example("/", {}, {"Host": "["})
def test_what_is_shown(
    caplog: pytest.LogCaptureFixture, place: tuple[str, int], path: str, query: dict[str, str], others: dict[str, str]
) -> None:
    words = "&".join(f"{name}={encoded(value)}" for name, value in query.items())
    assert is_fine(status(place, request_of("GET", f"{path}?{words}", others)))
    assert "Traceback" not in caplog.text


@FUZZ
@given(st.sampled_from(POSTS), bodies, headers)
@example("/api/redrive", {"topic": "there", "rate": 10**400}, {})
def test_what_acts(
    caplog: pytest.LogCaptureFixture, place: tuple[str, int], path: str, body: dict[str, Any], others: dict[str, str]
) -> None:
    assert is_fine(status(place, request_of("POST", path, others, json.dumps(body).encode())))
    assert "Traceback" not in caplog.text


@FUZZ
@given(st.binary(max_size=200), st.sampled_from([*GETS, *POSTS, *PROBES]), st.binary(max_size=60), st.booleans())
def test_any_bytes(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    place: tuple[str, int],
    probes: tuple[str, int],
    raw: bytes,
    path: str,
    behind: bytes,
    is_whole: bool,
) -> None:
    """From the first one on, and behind what the servers know."""
    request = (
        raw if is_whole else b"GET " + path.encode() + behind + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + raw + b"\r\n\r\n"
    )
    for one in (place, probes):
        assert is_fine(status(one, request, is_all=True))
    assert status(place, request_of("GET", "/api/about", {})) == 200
    assert status(probes, request_of("GET", "/healthz", {})) == 200
    assert "Traceback" not in caplog.text + capfd.readouterr().err
