"""`Calls`: a handler that sends HTTP requests for records.

The idea: it is an ordinary coroutine handler with a resource, so everything else (ordering, retries, dead letters,
streams) is what it is for any handler. Only what HTTP adds is here: statuses, Retry-After, timeouts, the pool.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.foreign_errors import line_of, text_of
from keylane.http.errors import HttpError, RefusedError, StatusError, ThrottledError
from keylane.http.messages import Request, Response
from keylane.http.waits import retry_after_ms, throttled_ms
from keylane.records import Returned
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    import aiohttp
    from yarl import URL

    from keylane.records import Context, Record

RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Request timeout, too early, too many requests, and what servers answer while they are in trouble (529: Anthropic's
that are overloaded)."""

TOO_MANY_REQUESTS = 429

FIRST_ERROR_STATUS = 400

REDIRECTS = frozenset({301, 302, 303, 307, 308})

PROXIES = ("http://", "https://")

SHOWN_CHARACTERS = 200
"""How much of a refused answer's body an error shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Sends what `request` returns for a record: `kl.Pipeline(handler=calls, resource=calls.pool, …)`.

    Raises `UsageError` for options that cannot work, and without aiohttp.
    """

    request: Callable[..., Any]
    """From the record to a `Request`, to several (sent at once; the record is complete when all are answered), or to
    None for no request. A plain function, or a coroutine function. With the pipeline's `batch` it gets the list of
    records, and its requests are the batch's."""
    on_response: Callable[..., Any] | None = None
    """Gets the record and the response (the list of responses when there were several requests), and returns what a
    handler returns; of a batch, the list of records, and None or a list with one result a record. Without it, the
    response is the value of the record, or of each of the batch (`ParallelConsumer.stream`)."""
    retry_statuses: Collection[int] = RETRY_STATUSES
    """Statuses after which the record is tried again, as after an exception; Retry-After is kept to. 429 among them
    is no failure: the service throttles, which uses up no attempt (`ThrottledError`)."""
    fatal_statuses: Collection[int] | None = None
    """Statuses that end the record's attempts at once. None: redirects that are not followed, and all from 400 on that
    are not among `retry_statuses`. Every other status is a response like any."""
    max_redirects: int = 0
    """How many redirects of a request are followed. GET and HEAD follow each kind, every other method 307 and 308
    alone, which keep method and body; the others would ask for something else. Your headers, but for the content type,
    do not go to another origin, and nothing goes from https to http."""
    max_retry_after_ms: int = 300_000
    """The longest wait that is kept to, of those that answers ask for."""
    timeout_ms: int = 30_000
    """From when a request has its place in the pool to the end of its answer's body. The wait for a place is not the
    service's time: it is as long as the calls before it take."""
    connect_timeout_ms: int = 10_000
    """For looking up a name, and again for one connection, from when it is begun. At most 256 are made at once, beside
    those that take over a second."""
    max_connections: int = 0
    """Connections at once; 0 sets no bound but the pipeline's `max_concurrency`."""
    max_connections_per_host: int = 0
    max_response_bytes: int = 16 * 1024 * 1024
    """A longer body fails the attempt."""
    proxy: str | None = None
    """The URL of an HTTP proxy, or "environment" for HTTP_PROXY, HTTPS_PROXY and NO_PROXY. None: no proxy."""
    ca_file: str | None = None
    """PEM file of the authorities that may have signed a server's certificate. None: the system's."""
    certificate_file: str | None = None
    """PEM file of the client's own certificate, with its chain."""
    key_file: str | None = None
    """PEM file of that certificate's key, where it is not in the same file."""
    refuse_private_addresses: bool = False
    """For addresses that strangers choose: refuse a connection to loopback, private, link-local and reserved addresses,
    whatever name leads there."""

    def __post_init__(self) -> None:
        if not callable(self.request):
            raise UsageError(f"request={self.request!r}: give a function of a record that returns keylane.http.Request")
        if self.on_response is not None and not callable(self.on_response):
            raise UsageError(f"on_response={self.on_response!r}: give a function of (record, response)")
        for name in ("max_retry_after_ms", "max_connections", "max_connections_per_host", "max_redirects"):
            self._at_least(name, 0)
        for name in ("timeout_ms", "connect_timeout_ms", "max_response_bytes"):
            self._at_least(name, 1)
        both = set(self.retry_statuses) & set(self.fatal_statuses or ())
        if both:
            raise UsageError(f"status {min(both)} is among retry_statuses and fatal_statuses: give it to one of them")
        if self.proxy is not None and self.proxy != "environment" and not self.proxy.startswith(PROXIES):
            raise UsageError(f"proxy={Request('', self.proxy).origin.strip()!r}: give 'environment' or an http:// URL")
        if self.proxy is not None and self.refuse_private_addresses:
            raise UsageError(
                "refuse_private_addresses does not go with proxy: the proxy makes the connections; refuse them there"
            )
        if self.key_file is not None and self.certificate_file is None:
            raise UsageError(f"key_file={self.key_file!r} is the key of no certificate: give certificate_file too")
        for needed in ("aiohttp", "aiodns"):
            if importlib.util.find_spec(needed) is None:
                raise UsageError(f"keylane.http needs {needed}: run `pip install 'keylane[http]'`")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[aiohttp.ClientSession]:
        """The pipeline's `resource`: one connection pool a worker process."""
        from keylane.http import connecting

        tls = connecting.tls_context(self.ca_file, self.certificate_file, self.key_file)
        connect_s, limits = self.connect_timeout_ms / 1000, (self.max_connections, self.max_connections_per_host)
        public_only = self.refuse_private_addresses
        async with connecting.session(connect_s, *limits, tls, public_only=public_only) as session:
            yield session

    async def __call__(self, what: Record | list[Record], context: Context) -> Any:
        made = self.request(what)
        if inspect.isawaitable(made):
            made = await made
        if made is None:
            return None
        if context.resource is None:
            raise UsageError("keylane.http: the pipeline has no pool: give resource=calls.pool beside handler=calls")
        several = not isinstance(made, Request)
        requests = list(made) if several else [made]
        answers = await self._send_all(context.resource, requests, _Places(context))
        response: Any = answers if several else answers[0]
        if self.on_response is None:
            return [Returned(response)] * len(what) if isinstance(what, list) else Returned(response)
        result = self.on_response(what, response)
        return await result if inspect.isawaitable(result) else result

    async def _send_all(self, session: aiohttp.ClientSession, requests: list[Any], places: _Places) -> list[Response]:
        """All at once. When some fail, the first failure in their order, after all have ended."""
        for request in requests:
            if not isinstance(request, Request):
                raise UsageError(
                    f"request returned {kind_of(request)}: return keylane.http.Request, a list of them, or None"
                )
        if len(requests) == 1:
            return [await self._send(session, requests[0], places)]
        answers = await asyncio.gather(*(self._send(session, one, places) for one in requests), return_exceptions=True)
        responses = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            responses.append(answer)
        return responses

    async def _send(self, session: aiohttp.ClientSession, request: Request, places: _Places) -> Response:
        from keylane.http.addresses import url_of
        from keylane.http.connecting import Deadline

        asked, url, followed = request, url_of(request), 0
        places.want_one()
        deadline = Deadline(self.timeout_ms / 1000, places.got_one)
        try:
            async with deadline.timeout:
                while True:
                    response = await self._exchange(session, asked, url)
                    if response is None:
                        continue
                    if response.status not in REDIRECTS or followed == self.max_redirects:
                        break
                    following = self._redirected(asked, url, response)
                    if following is None:
                        break
                    asked, url = following
                    followed += 1
        except TimeoutError as error:
            raise self._failed(asked, f"no answer within {self.timeout_ms} ms") from error
        finally:
            places.left_one(had_it=deadline.has_begun)
        self._check_status(response)
        return response

    def _redirected(self, asked: Request, url: URL, response: Response) -> tuple[Request, URL] | None:
        from keylane.http.addresses import redirected

        return redirected(asked, url, response.status, response.headers.get("location"))

    @staticmethod
    def _proxy_of(url: URL, proxy: str) -> str | None:
        from keylane.http.addresses import proxy_for

        return proxy_for(url, proxy)

    async def _exchange(self, session: aiohttp.ClientSession, request: Request, url: URL) -> Response | None:
        """One request and its own answer; None where nothing was sent, since the connection holds what answers nothing:
        it goes over another one."""
        import aiohttp

        try:
            async with session.request(
                request.method,
                url,
                headers=request.headers,
                data=request.body,
                json=request.json,
                allow_redirects=False,
                proxy=None if self.proxy is None else self._proxy_of(url, self.proxy),
            ) as answer:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                return Response(request, answer.status, headers, await self._body(request, answer))
        except (aiohttp.ClientError, ValueError, TypeError) as error:
            if self._is_spoiled(error):
                return None
            raise self._failure(request, error) from error

    @staticmethod
    def _is_spoiled(error: Exception) -> bool:
        from keylane.http.connecting import SpoiledConnectionError

        return isinstance(error, SpoiledConnectionError)

    def _failure(self, request: Request, error: Exception) -> HttpError:
        """What became of a request that has no answer."""
        import aiohttp

        from keylane.http.addresses import unsendable
        from keylane.http.connecting import RefusedAddressError

        if isinstance(error, aiohttp.ServerTimeoutError):
            return self._failed(request, f"no connection within {self.connect_timeout_ms} ms")
        if isinstance(error, aiohttp.ClientConnectorError):
            if isinstance(error.os_error, RefusedAddressError):
                return unsendable(request, str(error.os_error))
            return self._failed(request, line_of(error))
        if isinstance(error, aiohttp.InvalidURL):
            return unsendable(request, f"its URL cannot be asked ({type(error).__name__})")
        if isinstance(error, aiohttp.ClientError):
            return self._failed(request, type(error).__name__, text_of(error))
        return unsendable(request, f"its method, headers or body cannot be sent ({type(error).__name__})")

    def _failed(self, request: Request, text: str, detail: str = "") -> HttpError:
        full = f"{request.name}: {text}" + (f": {detail}" if detail else "")
        return HttpError(full, logged_text=f"{request.origin}: {text}")

    async def _body(self, request: Request, answer: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self.max_response_bytes:
                raise self._failed(request, f"the body is longer than max_response_bytes={self.max_response_bytes}")
            parts.append(part)
        return b"".join(parts)

    def _check_status(self, response: Response) -> None:
        status = response.status
        if status in self.retry_statuses:
            is_throttled, now = status == TOO_MANY_REQUESTS, time.time()
            header = response.headers.get("retry-after")
            asked_ms = throttled_ms(response, now) if is_throttled else retry_after_ms(header, now)
            wait_ms = None if asked_ms is None else min(asked_ms, self.max_retry_after_ms)
            text, logged = _told(response)
            raise (ThrottledError if is_throttled else StatusError)(text, status, wait_ms, logged_text=logged)
        if self._is_fatal(status):
            text, logged = _told(response)
            if status in REDIRECTS:
                way_out = " (a redirect that is not followed: ask the new address, or see Calls.max_redirects)"
                text, logged = text + way_out, logged + way_out
            raise RefusedError(text, status, logged_text=logged)

    def _is_fatal(self, status: int) -> bool:
        if self.fatal_statuses is not None:
            return status in self.fatal_statuses
        return status in REDIRECTS or status >= FIRST_ERROR_STATUS


def _told(response: Response) -> tuple[str, str]:
    """What a dead letter and what a log says of a status."""
    status, request = response.status, response.request
    text = f"{request.name}: status {status}: {response.text[:SHOWN_CHARACTERS]}"
    return text, f"{request.origin}: status {status}"


class _Places:
    """One call's requests in the pool. The call waits for the pool while they do, and none has a place. Thread safety:
    its loop's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting = self._having = 0
        self._waits = False

    def want_one(self) -> None:
        self._change(1, 0)

    def got_one(self) -> None:
        self._change(-1, 1)

    def left_one(self, *, had_it: bool) -> None:
        """A request has ended."""
        self._change(*(0, -1) if had_it else (-1, 0))

    def _change(self, waiting: int, having: int) -> None:
        self._waiting += waiting
        self._having += having
        waits = self._waiting > 0 and not self._having
        if waits is not self._waits:
            self._waits = waits
            self._context.wait_for("pool" if waits else "running")
