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
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.http.errors import HttpError, RefusedError, StatusError
from keylane.http.messages import Request, Response
from keylane.records import Returned
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    import aiohttp

    from keylane.records import Context, Record

RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Request timeout, too early, too many requests, and what servers answer while they are in trouble."""

FIRST_ERROR_STATUS = 400

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
    """Statuses after which the record is tried again, as after an exception; Retry-After is kept to."""
    fatal_statuses: Collection[int] | None = None
    """Statuses that end the record's attempts at once. None: all from 400 on that are not among `retry_statuses`. Every
    other status is a response like any."""
    max_retry_after_ms: int = 300_000
    """The longest Retry-After that is kept to."""
    timeout_ms: int = 30_000
    """From the start of a request to the end of its body."""
    connect_timeout_ms: int = 10_000
    """For one connection, from when it is begun. At most 256 are made at once, beside those that take over a second."""
    max_connections: int = 0
    """Connections at once; 0 sets no bound but the pipeline's `max_concurrency`."""
    max_connections_per_host: int = 0
    max_response_bytes: int = 16 * 1024 * 1024
    """A longer body fails the attempt."""

    def __post_init__(self) -> None:
        if not callable(self.request):
            raise UsageError(f"request={self.request!r}: give a function of a record that returns keylane.http.Request")
        if self.on_response is not None and not callable(self.on_response):
            raise UsageError(f"on_response={self.on_response!r}: give a function of (record, response)")
        for name in ("max_retry_after_ms", "max_connections", "max_connections_per_host"):
            self._at_least(name, 0)
        for name in ("timeout_ms", "connect_timeout_ms", "max_response_bytes"):
            self._at_least(name, 1)
        both = set(self.retry_statuses) & set(self.fatal_statuses or ())
        if both:
            raise UsageError(f"status {min(both)} is among retry_statuses and fatal_statuses: give it to one of them")
        if importlib.util.find_spec("aiohttp") is None:
            raise UsageError("keylane.http needs aiohttp: run `pip install 'keylane[http]'`")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[aiohttp.ClientSession]:
        """The pipeline's `resource`: one connection pool a worker process."""
        import aiohttp

        from keylane.http.connecting import Turns

        timeout = aiohttp.ClientTimeout(total=self.timeout_ms / 1000, sock_connect=self.connect_timeout_ms / 1000)
        connector = aiohttp.TCPConnector(limit=self.max_connections, limit_per_host=self.max_connections_per_host)
        turns = [Turns().of_a_session()]
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=turns) as session:
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
        answers = await self._send_all(context.resource, list(made) if several else [made])
        response: Any = answers if several else answers[0]
        if self.on_response is None:
            return [Returned(response)] * len(what) if isinstance(what, list) else Returned(response)
        result = self.on_response(what, response)
        return await result if inspect.isawaitable(result) else result

    async def _send_all(self, session: aiohttp.ClientSession, requests: list[Any]) -> list[Response]:
        """All at once. When some fail, the first failure in their order, after all have ended."""
        for request in requests:
            if not isinstance(request, Request):
                raise UsageError(
                    f"request returned {kind_of(request)}: return keylane.http.Request, a list of them, or None"
                )
        if len(requests) == 1:
            return [await self._send(session, requests[0])]
        answers = await asyncio.gather(*(self._send(session, one) for one in requests), return_exceptions=True)
        responses = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            responses.append(answer)
        return responses

    async def _send(self, session: aiohttp.ClientSession, request: Request) -> Response:
        import aiohttp

        try:
            async with session.request(
                request.method,
                request.url,
                headers=request.headers,
                params=request.params or None,
                data=request.body,
                json=request.json,
            ) as answer:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                response = Response(request, answer.status, headers, await self._body(request, answer))
        except aiohttp.ServerTimeoutError as error:
            raise HttpError(f"{request.name}: no connection within {self.connect_timeout_ms} ms") from error
        except TimeoutError as error:
            raise HttpError(f"{request.name}: no answer within {self.timeout_ms} ms") from error
        except aiohttp.ClientError as error:
            raise HttpError(f"{request.name}: {type(error).__name__}: {error}") from error
        self._check_status(response)
        return response

    async def _body(self, request: Request, answer: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self.max_response_bytes:
                raise HttpError(f"{request.name}: the body is longer than max_response_bytes={self.max_response_bytes}")
            parts.append(part)
        return b"".join(parts)

    def _check_status(self, response: Response) -> None:
        status = response.status
        if status in self.retry_statuses:
            asked_ms = retry_after_ms(response.headers.get("retry-after"), time.time())
            wait_ms = None if asked_ms is None else min(asked_ms, self.max_retry_after_ms)
            raise StatusError(_told(response), status, wait_ms)
        if status >= FIRST_ERROR_STATUS if self.fatal_statuses is None else status in self.fatal_statuses:
            raise RefusedError(_told(response), status)


def _told(response: Response) -> str:
    return f"{response.request.name}: status {response.status}: {response.text[:SHOWN_CHARACTERS]}"


def retry_after_ms(value: str | None, now: float) -> int | None:
    """What a Retry-After header asks for (RFC 9110, 10.2.3: seconds, or an HTTP date), in milliseconds from `now`, the
    seconds since the epoch; None without a header that can be read."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return int(value) * 1000
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0, round((at.timestamp() - now) * 1000))
