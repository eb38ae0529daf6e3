"""What `keylane.http` says of options, requests and headers; the rest needs a server."""

from __future__ import annotations

import asyncio
import pickle
import time
from email.utils import formatdate
from typing import Any

import cloudpickle
import pytest
from aiohttp.resolver import AsyncResolver

import keylane as kl
from keylane import http
from keylane.http import connecting
from keylane.http.waits import retry_after_ms
from keylane.records import Context, PlainMessage


def request(record: kl.Record) -> http.Request:
    return http.Request("GET", f"http://nowhere/{record.offset}")


def of(offset: int) -> kl.Record:
    return kl.Record(PlainMessage("devices", 0, offset))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"request": 5}, "request=5: give a function"),
        ({"on_response": 5}, "on_response=5: give a function"),
        ({"timeout_ms": 0}, "timeout_ms=0: give a whole number of at least 1"),
        ({"max_connections": -1}, "max_connections=-1"),
        ({"max_retry_after_ms": 1.5}, "max_retry_after_ms=1.5"),
        ({"max_redirects": -1}, "max_redirects=-1"),
        ({"proxy": "proxy:8080"}, "give 'environment' or an http:// URL"),
        ({"proxy": "environment", "refuse_private_addresses": True}, "refuse_private_addresses does not go with proxy"),
        ({"key_file": "key.pem"}, "key_file='key.pem' is the key of no certificate: give certificate_file too"),
        (
            {"retry_statuses": {503, 404}, "fatal_statuses": {404}},
            "status 404 is among retry_statuses and",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(kl.UsageError) as error:
        http.Calls(**({"request": request} | options))
    assert text in str(error.value)


def test_certificates_that_cannot_be_read_are_refused_by_name() -> None:
    async def make() -> None:
        async with http.Calls(request=request, ca_file="/nowhere/ca.pem").pool():
            pass

    with pytest.raises(kl.UsageError, match=r"ca_file='/nowhere/ca.pem': .*: give PEM files"):
        asyncio.run(make())


def test_without_aiohttp_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(kl.UsageError, match=r"pip install 'keylane\[http\]'"):
        http.Calls(request=request)


def test_calls_are_an_async_handler_that_travels() -> None:
    calls = http.Calls(request=request, timeout_ms=5)
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    pipeline = kl.Pipeline(kafka=kafka, topics=["t"], handler=calls, resource=calls.pool)
    assert pipeline.is_async
    copy = cloudpickle.loads(cloudpickle.dumps(pipeline))
    assert copy.handler.timeout_ms == 5


class Lookups:
    """Of hosts that no network has: each waits until it is let go, and then finds nothing. Counts those at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, expected: int) -> None:
        self.at_once = self.most = 0
        self.missing = expected
        self.have_begun = asyncio.Event()
        self.let_go = asyncio.Event()
        monkeypatch.setattr(AsyncResolver, "resolve", self.look_up)

    async def look_up(self, *_: object, **__: object) -> object:
        self.at_once += 1
        self.missing -= 1
        if not self.missing:
            self.have_begun.set()
        self.most = max(self.most, self.at_once)
        try:
            await self.let_go.wait()
        finally:
            self.at_once -= 1
        raise OSError(None, "nowhere")

    async def begun(self) -> None:
        """All that are expected have begun, and whoever else may begin has."""
        await asyncio.wait_for(self.have_begun.wait(), 30)
        for _ in range(100):
            await asyncio.sleep(0)


def test_few_connections_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[int, list[Any]]:
        lookups = Lookups(monkeypatch, connecting.AT_ONCE)
        async with calls.pool() as session:
            sent = [asyncio.ensure_future(calls(of(number), Context(session, 1))) for number in range(many)]
            await lookups.begun()
            sent.pop().cancel()
            lookups.let_go.set()
            async with asyncio.timeout(30):
                return lookups.most, await asyncio.gather(*sent, return_exceptions=True)

    monkeypatch.setattr(connecting, "TURN_S", 3_600)
    many = connecting.AT_ONCE + 50
    calls = http.Calls(request=lambda record: http.Request("GET", f"http://host-{record.offset}/"))
    most, errors = asyncio.run(run())
    assert most == connecting.AT_ONCE
    assert [type(error) for error in errors] == [http.HttpError] * (many - 1)


def test_a_host_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> int:
        lookups = Lookups(monkeypatch, many)
        async with calls.pool() as session:
            sent = [asyncio.ensure_future(calls(of(number), Context(session, 1))) for number in range(many)]
            await lookups.begun()
            lookups.let_go.set()
            await asyncio.gather(*sent, return_exceptions=True)
        return lookups.most

    monkeypatch.setattr(connecting, "TURN_S", 0.001)
    many = connecting.AT_ONCE + 50
    calls = http.Calls(request=lambda record: http.Request("GET", f"http://host-{record.offset}/"))
    assert asyncio.run(run()) == many


def test_the_name_of_a_request_keeps_what_may_be_secret() -> None:
    made = http.Request("POST", "https://user:password@host:8080/path?token=secret")
    assert made.name == "POST https://host:8080/path"


NOW = 1_800_000_000.25


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("7", 7_000),
        (" 0 ", 0),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        (formatdate(NOW + 10, usegmt=True), 9_750),
        (formatdate(NOW - 10, usegmt=True), None),
        (time.asctime(time.gmtime(NOW + 10)), 9_750),
        ("9" * 4_400, None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        ("Wed, 99999999999999999999 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(
    value: str | None, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert retry_after_ms(value, NOW) == expected
    finally:
        monkeypatch.undo()
        time.tzset()
    assert time.time() > 0


def test_a_response_reads_its_body() -> None:
    made = http.Response(http.Request("GET", "http://h"), 200, {}, b'{"a": 1}')
    assert (made.text, made.json()) == ('{"a": 1}', {"a": 1})
    with pytest.raises(ValueError, match="Expecting value"):
        http.Response(made.request, 200, {}, b"nothing").json()


@pytest.mark.parametrize(
    ("error", "is_fatal"), [(http.RefusedError("no", 404), True), (http.StatusError("busy", 503, 5), False)]
)
def test_errors_travel_whole(error: http.StatusError, is_fatal: bool) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert isinstance(copy, kl.Fatal) == is_fatal


@pytest.mark.parametrize(
    ("error", "is_fatal"), [(http.RefusedError("no", 404), True), (http.StatusError("busy", 503, 5), False)]
)
def test_errors_say_whether_another_attempt_can_help(error: http.StatusError, is_fatal: bool) -> None:
    assert isinstance(error, kl.PeerError)
    assert isinstance(error, kl.Fatal) == is_fatal
