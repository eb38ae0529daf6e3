"""How long an answer asks to be left alone: what its headers, or Google's body, say of that.

The idea: of an answer of 429 the plainest word counts, in this order: `retry-after-ms` (OpenAI, Azure), `retry-after`
(RFC 9110), Google's `RetryInfo` in the body, and what says when a limit is whole again. Such a limit counts by the
longest of those that are used up (its `remaining` is 0), or else by the shortest, because nobody knows which it was.

What a server sends is read as it comes: nothing here raises, and what cannot be read asks for nothing.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keylane.http.messages import Response

LIMITS = (
    ("x-ratelimit-reset-{}", "x-ratelimit-remaining-{}", ("requests", "tokens")),
    (
        "anthropic-ratelimit-{}-reset",
        "anthropic-ratelimit-{}-remaining",
        ("requests", "tokens", "input-tokens", "output-tokens"),
    ),
)
"""Headers that say when a limit is whole again, and what is left of it: OpenAI's and Azure's, Anthropic's."""

LONGEST = 64
"""Characters of a header that says when."""

READ_BYTES = 64 * 1024
"""A longer body is not looked into for a wait."""

_NUMBER = re.compile(r"\d{1,15}(\.\d{0,15})?")
_DIGITS, _DECIMAL = r"(\d{1,9})", r"(\d{1,9}(?:\.\d{0,15})?)"
_SPAN = re.compile(f"(?:{_DIGITS}d)?(?:{_DIGITS}h)?(?:{_DIGITS}m(?!s))?(?:{_DECIMAL}s)?(?:{_DECIMAL}ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)


def throttled_ms(response: Response, now: float) -> int | None:
    """What an answer of 429 asks for, in milliseconds from `now`, the seconds since the epoch; None for nothing."""
    headers = response.headers
    for asked in (
        _number(headers.get("retry-after-ms")),
        retry_after_ms(headers.get("retry-after"), now),
        _of_google(response.body),
        _of_limits(headers, now),
    ):
        if asked is not None:
            return round(asked)
    return None


def retry_after_ms(value: str | None, now: float) -> int | None:
    """What a Retry-After header asks for (RFC 9110, 10.2.3: seconds, or an HTTP date), in milliseconds from `now`, the
    seconds since the epoch; None without a header that can be read. A date without a zone is of GMT (5.6.7), and one
    that has passed asks for nothing: clocks differ, and attempts without a delay between them would be used up."""
    if value is None:
        return None
    try:
        if value.strip().isdecimal():
            return int(value) * 1000
        at = parsedate_to_datetime(value)
        seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # beyond any number of digits, or any date
        return None
    wait_ms = round((seconds - now) * 1000)
    return wait_ms if wait_ms > 0 else None


def _of_limits(headers: Mapping[str, str], now: float) -> float | None:
    used_up: list[float] = []
    others: list[float] = []
    for left, wait_ms in _limits(headers, now):
        (used_up if left is not None and left <= 0 else others).append(wait_ms)
    return max(used_up) if used_up else min(others, default=None)


def _limits(headers: Mapping[str, str], now: float) -> Iterator[tuple[float | None, float]]:
    """Of each limit that says when it is whole again: what is left of it, and in how many milliseconds that is."""
    for reset, remaining, names in LIMITS:
        for name in names:
            wait_ms = _reset_ms(headers.get(reset.format(name)), now)
            if wait_ms:
                yield _number(headers.get(remaining.format(name))), wait_ms


def _reset_ms(value: str | None, now: float) -> float | None:
    """Seconds (Azure), a span like 6m0.5s (OpenAI), or a time of RFC 3339 (Anthropic)."""
    if value is None or len(value) > LONGEST:
        return None
    if (seconds := _number(value)) is not None:
        return seconds * 1000
    if (span := _span_ms(value)) is not None:
        return span
    try:
        at = datetime.fromisoformat(value.strip())
        wait_ms = ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now) * 1000
    except (ValueError, OverflowError):
        return None
    return wait_ms if wait_ms > 0 else None


def _of_google(body: bytes) -> float | None:
    """`google.rpc.RetryInfo` among the details of an error: {"error": {"details": [{"retryDelay": "34.07s", …}]}}."""
    if len(body) > READ_BYTES or b"retryDelay" not in body:
        return None
    try:
        details: Any = json.loads(body)["error"]["details"]
        delays = [one["retryDelay"] for one in details if "retryDelay" in one]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    spans = [_span_ms(one) for one in delays if isinstance(one, str) and len(one) <= LONGEST]
    return max((one for one in spans if one is not None), default=None)


def _span_ms(value: str) -> float | None:
    """Of 1h2m3.5s, 20ms and the like."""
    found = _SPAN.fullmatch(value.strip())
    if found is None or not any(found.groups()):
        return None
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True) if part)


def _number(value: str | None) -> float | None:
    """A plain number of at least 0."""
    if value is None or len(value) > LONGEST or not _NUMBER.fullmatch(text := value.strip()):
        return None
    return float(text)
