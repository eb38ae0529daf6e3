"""What an answer of 429 asks for, in the words of those who send it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane import http
from keylane.http.waits import throttled_ms

NOW = 1_800_000_000.25


def asked(headers: dict[str, str], body: bytes = b"") -> int | None:
    return throttled_ms(http.Response(http.Request("POST", "http://model/"), 429, headers, body), NOW)


def at(seconds: float) -> str:
    return (datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


OPENAI = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "150000",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPIC = {
    "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": at(20),
    "anthropic-ratelimit-input-tokens-remaining": "0",
    "anthropic-ratelimit-input-tokens-reset": at(45),
    "anthropic-ratelimit-output-tokens-remaining": "8000",
    "anthropic-ratelimit-output-tokens-reset": at(90),
}
GOOGLE = b"""{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [
  {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
  {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}]}}"""


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, b"", None),
        ({"retry-after": "7"}, b"", 7_000),
        ({"retry-after": "0"}, b"", 0),
        ({"retry-after-ms": "1250.5", "retry-after": "2"}, b"", 1_250),
        ({"retry-after-ms": "soon", "retry-after": "2"}, b"", 2_000),
        (OPENAI, b"", 360_000),
        (OPENAI | {"x-ratelimit-remaining-tokens": "150"}, b"", 1_000),
        (OPENAI | {"retry-after": "20"}, b"", 20_000),
        ({"x-ratelimit-reset-requests": "17ms"}, b"", 17),
        ({"x-ratelimit-reset-requests": "1h2m3.5s"}, b"", 3_723_500),
        ({"x-ratelimit-reset-tokens": "26"}, b"", 26_000),  # Azure's are seconds
        ({"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"}, b"", None),  # and sometimes nothing
        (ANTHROPIC, b"", 45_000),
        (ANTHROPIC | {"anthropic-ratelimit-input-tokens-reset": at(-5)}, b"", 20_000),
        ({}, GOOGLE, 34_075),
        ({"retry-after": "3"}, GOOGLE, 3_000),
        ({}, b'{"error": {"details": "retryDelay"}}', None),
        ({}, b'{"error": {"details": [{"retryDelay": 5}, {"retryDelay": "soon"}]}}', None),
        ({}, b"[" * 50_000 + b"retryDelay", None),
    ],
)
def test_each_service_says_it_in_its_own_words(headers: dict[str, str], body: bytes, expected: int | None) -> None:
    assert asked(headers, body) == expected


NAMES = ["retry-after", "retry-after-ms", *OPENAI, *ANTHROPIC]
VALUES = st.one_of(st.text(max_size=100), st.from_regex(r"[\d.+\-:TZdhms ]{0,80}", fullmatch=True))


@given(headers=st.dictionaries(st.sampled_from(NAMES), VALUES), body=st.binary(max_size=50))
def test_whatever_a_server_sends_asks_for_a_wait_or_for_nothing(headers: dict[str, str], body: bytes) -> None:
    found: Any = asked(headers, b'{"retryDelay"' + body)
    assert found is None or (type(found) is int and found >= 0)
