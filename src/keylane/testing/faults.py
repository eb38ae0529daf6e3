"""Faults that a test asks a broker for: a delay, an error code or a disconnect, by API, by client and by group.

The idea: a handler is wrapped, so that a broker without faults pays nothing for them. A request that meets a fault is
not handled (unless the fault is a delay, or comes after); so an error is what it says, and nothing was done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import CloseConnectionError, Later, load_apis, seen_through
from keylane.errors import UsageError
from keylane.storage.shared_sync import Round
from keylane.testing.answers import error_answer
from keylane.testing.named_groups import groups_of, names_groups
from keylane.wire import conditional_commit
from keylane.wire.primitives import MAX_ITEMS
from keylane.wire.versions import RequestSchema, request_schema, request_type

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keylane.broker.dispatch import Api, Begin, RequestHeader, ShortWay
    from keylane.broker.node import Node
    from keylane.broker.sessions import Session

Disconnect = Literal["before", "after"]


@dataclass(eq=False)
class Fault:
    """One fault. `met` counts the requests that it has changed; `remove()` ends it."""

    api: str
    """Kafka's name, such as `Produce`."""
    client_id: str | None
    group: str | None
    times: int | None
    """How many requests it still changes; None for all until it is removed."""
    delay_ms: int
    error: int | None
    disconnect: Disconnect | None
    met: int = 0
    _remove: Callable[[Fault], None] = dataclasses.field(default=lambda _: None, repr=False)

    def remove(self) -> None:
        """No further request meets it. Requests that it delays now stay delayed."""
        self._remove(self)


class Faults:
    """The faults of one broker. Thread safety: any thread."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._busy: set[asyncio.Task[Any]] = set()
        """Requests that a fault holds, and what has followed them."""
        self._lock = threading.Lock()

    def add(
        self,
        api: str,
        *,
        client_id: str | None = None,
        group: str | None = None,
        times: int | None = 1,
        delay_ms: int = 0,
        error: str | int | None = None,
        disconnect: Disconnect | None = None,
    ) -> Fault:
        """See `EmbeddedBroker.fault`. Raises `UsageError`."""
        if api not in (known := api_names()):
            raise UsageError(f"api {api!r}: give one of {', '.join(known)}")
        if group is not None and api not in (known := group_api_names()):
            raise UsageError(f"group={group!r}: a request of {api} names no group; those of {', '.join(known)} do")
        if times is not None and times < 1:
            raise UsageError(f"times={times}: give how many requests meet the fault, or None for all")
        if delay_ms < 0:
            raise UsageError(f"delay_ms={delay_ms}: give milliseconds")
        if disconnect not in (None, *get_args(Disconnect)):
            raise UsageError(f"disconnect={disconnect!r}: give 'before' or 'after'")
        if error is not None and disconnect is not None:
            raise UsageError("give error or disconnect: nobody hears an error on a closed connection")
        if not delay_ms and error is None and disconnect is None:
            raise UsageError("give delay_ms, error or disconnect")
        code = None if error is None else error_code(error)
        fault = Fault(api, client_id, group, times, delay_ms, code, disconnect, _remove=self._remove)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._faults.clear()

    def take(self, api: str, client_id: str | None, groups: Callable[[], frozenset[str]]) -> Fault | None:
        """The first that a request of this client meets, which counts it; `groups` are those that the request names."""
        with self._lock:
            for fault in self._faults:
                is_about = fault.api == api and fault.client_id in (None, client_id)
                if is_about and (fault.group is None or fault.group in groups()):
                    fault.met += 1
                    if fault.times is not None and fault.met >= fault.times:
                        self._faults.remove(fault)
                    return fault
        return None

    def _remove(self, fault: Fault) -> None:
        with self._lock:
            if fault in self._faults:
                self._faults.remove(fault)

    def wrap(self, apis: dict[int, Api]) -> dict[int, Api]:
        """The same APIs, with these faults."""
        order: weakref.WeakKeyDictionary[Session, asyncio.Lock] = weakref.WeakKeyDictionary()
        return {key: self._wrapped(api, order) for key, api in apis.items()}

    def _wrapped(self, api: Api, order: weakref.WeakKeyDictionary[Session, asyncio.Lock]) -> Api:
        name = kafka_name(api)

        async def served(received: _Received, header: RequestHeader, node: Node, fault: Fault | None) -> Any:
            # What follows on the same connection waits with a delayed request: Kafka keeps their order.
            async with order.setdefault(header.session, asyncio.Lock()):
                if fault is not None and fault.delay_ms:
                    await asyncio.sleep(fault.delay_ms / 1_000)
            if fault is not None and fault.disconnect == "before":
                raise CloseConnectionError(f"a fault disconnects the client before {name}")
            if fault is not None and fault.error is not None:
                return await _refusal(api, received, header, node, fault.error)
            answer = await _handled(api, received.request, header, node)
            if fault is not None and fault.disconnect == "after":
                raise CloseConnectionError(f"a fault disconnects the client after {name}")
            return answer

        def met(received: _Received, header: RequestHeader) -> Fault | None:
            return self.take(name, header.client_id, lambda: _groups(api, received, header))

        async def handle(received: _Received, header: RequestHeader, node: Node) -> Any:
            fault, task = met(received, header), asyncio.current_task()
            if fault is not None and task is not None:
                self._busy.add(task)
                task.add_done_callback(self._busy.discard)
            return await served(received, header, node, fault)

        def begin(received: _Received, header: RequestHeader, node: Node) -> Any:
            fault = met(received, header)
            if fault is None and not self._busy and api.begin is not None:
                return api.begin(received.request, header, node)
            return self._begun(served(received, header, node, fault))

        wrapped = api._replace(schema=lambda version: _keeping(api, version))
        if api.begin is None:
            return wrapped._replace(handle=handle)
        return wrapped._replace(begin=begin, short_way=api.short_way and self._wrapped_way(api.short_way, begin))

    def _begun(self, work: Coroutine[Any, Any, Any]) -> Later:
        """What a fault holds, or what follows it, goes on in a task."""
        task = asyncio.get_running_loop().create_task(work)
        over = Round(task.get_loop())
        self._busy.add(task)

        def done(_: object) -> None:
            self._busy.discard(task)
            over.set_result(None)
            over.tell()

        task.add_done_callback(done)
        return Later(over, task.result)

    def _wrapped_way(self, way: ShortWay, begin: Begin) -> ShortWay:
        """The same, while there is no fault to meet and no request is held by one."""

        def answer(known: Any, frame: bytes, node: Node) -> Later | bytes | None:
            return None if self._faults or self._busy else way.answer(known, frame, node)

        def know(frame: bytes, received: Any, node: Node) -> object:
            return way.know(frame, received.request, node)

        return way._replace(begin=begin, know=know, answer=answer)


class _Received(NamedTuple):
    """A request, and its bytes from the body on: some APIs have decoders that keep less than kio's."""

    request: Any
    frame: bytes
    position: int


def _keeping(api: Api, version: int) -> RequestSchema:
    schema = api.schema(version)

    def read(frame: bytes, position: int, max_items: int = MAX_ITEMS) -> tuple[Any, int]:
        request, size = schema.read(frame, position, max_items)
        return _Received(request, frame, position), size

    return schema._replace(read=read)


async def _handled(api: Api, request: Any, header: RequestHeader, node: Node) -> Any:
    if api.handle is not None:
        return await api.handle(request, header, node)
    assert api.begin is not None
    return await seen_through(api.begin(request, header, node))


async def _refusal(api: Api, received: _Received, header: RequestHeader, node: Node, code: int) -> Any:
    """The answer to a request that was not handled."""
    if api.key == conditional_commit.API_KEY:
        return conditional_commit.encode_response(conditional_commit.Response(code))
    if api.name == "metadata":  # its brokers are needed all the same, and asking for them changes nothing
        answer = await _handled(api, received.request, header, node)
        topics = tuple(dataclasses.replace(topic, error_code=ErrorCode(code), partitions=()) for topic in answer.topics)
        return dataclasses.replace(answer, topics=topics)
    return error_answer(api.name, _version(api, header), _whole(api, received, header), code)


def _groups(api: Api, received: _Received, header: RequestHeader) -> frozenset[str]:
    if api.key == conditional_commit.API_KEY:
        return frozenset({received.request.group_id})
    return groups_of(_whole(api, received, header))


def _whole(api: Api, received: _Received, header: RequestHeader) -> Any:
    """The request as kio has it."""
    request, _ = request_schema(api.name, _version(api, header)).read(received.frame, received.position)
    return request


def _version(api: Api, header: RequestHeader) -> int:
    return min(header.api_version, api.max_version)


def kafka_name(api: Api) -> str:
    """`offset_commit` -> `OffsetCommit`."""
    return "".join(word.capitalize() for word in api.name.split("_"))


def api_names() -> list[str]:
    """Of all APIs that the broker offers."""
    return [kafka_name(api) for api in load_apis().values()]


def group_api_names() -> list[str]:
    """Of those whose requests name groups."""
    apis = load_apis().values()
    return [
        kafka_name(api)
        for api in apis
        if api.key == conditional_commit.API_KEY or names_groups(request_type(api.name, api.max_version))
    ]


def error_code(error: str | int) -> int:
    """By Kafka's name, such as `NOT_LEADER_OR_FOLLOWER`, or by number. Raises `UsageError`."""
    try:
        code = ErrorCode[error.lower()] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise UsageError(f"error {error!r}: give one of Kafka's error codes by name or number") from None
    return int(code)
