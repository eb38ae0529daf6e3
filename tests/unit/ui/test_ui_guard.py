"""Whom the page answers: requests to its own name, from its own pages, and with the token where they act."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from keylane.ui.guard import HEADERS, Guard

TOKEN = "a token for the tests"
OURS = {"Host": "127.0.0.1:8420"}
ACT = OURS | {"Content-Type": "application/json", "X-Keylane-Token": TOKEN}


def status(method: str, path: str, headers: dict[str, str], guard: Guard | None = None) -> int | None:
    refusal = (guard or Guard(token=TOKEN)).refusal(method, path, CIMultiDict(headers))
    return None if refusal is None else refusal.status


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost:8420", "LOCALHOST", "[::1]:8420", "10.0.0.7:8420"])
def test_an_address_and_localhost_are_this_pages(host: str) -> None:
    for path in ("/", "/static/page.js", "/api/events"):
        assert status("GET", path, {"Host": host}) is None


@pytest.mark.parametrize(
    "host", ["evil.example:8420", "localhost.evil.example", "127.0.0.1.evil.example", "", "[evil]"]
)
def test_another_name_that_leads_here_is_refused(host: str) -> None:
    """DNS rebinding: to the browser its own page and this server are one site."""
    for method, path in (("GET", "/"), ("GET", "/static/page.js"), ("GET", "/api/events"), ("POST", "/api/operate")):
        assert status(method, path, ACT | {"Host": host}) == 403


def test_a_name_that_was_allowed_is_answered() -> None:
    guard = Guard(frozenset({"ops.example"}), TOKEN)
    assert status("GET", "/api/about", {"Host": "Ops.Example:443"}, guard) is None
    assert status("POST", "/api/unlock", ACT | {"Host": "ops.example", "Origin": "https://ops.example"}, guard) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_sites_request_is_refused_even_with_the_token(headers: dict[str, str]) -> None:
    assert status("GET", "/api/events", OURS | headers) == 403
    assert status("POST", "/api/operate", ACT | headers) == 403


def test_a_link_from_elsewhere_opens_the_page() -> None:
    assert status("GET", "/", OURS | {"Sec-Fetch-Site": "cross-site"}) is None


@pytest.mark.parametrize("token", [None, "", "a token for the test", TOKEN + " ", "ä"])
def test_who_acts_has_the_token(token: str | None) -> None:
    sent = {name: value for name, value in (ACT | {"X-Keylane-Token": token}).items() if value is not None}
    assert status("POST", "/api/operate", sent) == 401
    assert status("POST", "/api/operate", ACT) is None


def test_without_a_token_nobody_acts() -> None:
    assert status("POST", "/api/operate", ACT, Guard()) == 403
    assert status("POST", "/api/operate", ACT | {"X-Keylane-Token": ""}, Guard()) == 403
    assert status("GET", "/api/events", OURS, Guard()) is None


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_can_send_is_refused(kind: str) -> None:
    """A browser asks before it sends JSON to another site, and never before a form."""
    assert status("POST", "/api/operate", ACT | {"Content-Type": kind}) == 415


def test_nothing_but_our_own_files_runs_and_nobody_frames_the_page() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
