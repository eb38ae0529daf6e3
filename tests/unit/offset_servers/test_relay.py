"""Requests that are passed on: in order, unchanged, answered once; and what becomes of them when a side goes."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest

from keylane.broker.dispatch import MalformedRequestError
from keylane.kafka.login import Login
from keylane.offset_servers.relay import Passed, Relay
from kit.upstream import Broker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PASSED = {
    0: Passed("produce", 3, 9),
    1: Passed("fetch", 4, 10),
    3: Passed("metadata", 1, 12, rewrite=lambda version, frame: frame[:4] + b"told %d" % version),
}


def request(key: int, version: int, number: int, body: bytes = b"") -> bytes:
    return struct.pack(">hhih", key, version, number, -1) + body


def produce(version: int, number: int, acks: int) -> bytes:
    if version >= 9:
        return request(0, version, number, b"\0" + b"\0" + struct.pack(">h", acks))
    return request(0, version, number, struct.pack(">hh", -1, acks))


def untold(parts: list[bytes] | None) -> None:
    raise AssertionError(parts)


def run(check: Callable[[Broker, tuple[str, int]], Awaitable[None]]) -> None:
    async def whole() -> None:
        broker = Broker()
        address = await broker.start()
        try:
            async with asyncio.timeout(10):
                await check(broker, address)
        finally:
            broker.close()

    asyncio.run(whole())


def test_answers_find_their_requests_and_acks_0_has_none() -> None:
    async def check(broker: Broker, address: tuple[str, int]) -> None:
        told: list[tuple[int, bytes | None]] = []
        all_told = asyncio.Event()

        def teller(number: int) -> Callable[[list[bytes] | None], None]:
            def tell(parts: list[bytes] | None) -> None:
                told.append((number, None if parts is None else b"".join(parts)))
                if len(told) == len(frames):
                    all_told.set()

            return tell

        relay = Relay(PASSED, lambda: [address], Login(), lambda: None)
        frames = [request(1, 4, 1), produce(3, 2, 0), request(3, 12, 3), produce(9, 4, 0), produce(9, 5, -1)]
        for number, frame in enumerate(frames, 1):
            assert relay.take(frame, teller(number))
        assert await broker.has(5) == frames, "unchanged and in order"
        assert told == [(2, None), (4, None)]
        for number in (1, 3, 5):
            broker.answer(number, b"a tiny answer"[: 2 * number])
        await all_told.wait()
        first, second, third = told[2:]
        assert first == (1, b"\0\0\0\6\0\0\0\1a ")
        assert second == (3, b"\0\0\0\x0b\0\0\0\3told 12")
        assert third == (5, b"\0\0\0\x0e\0\0\0\5a tiny ans")
        relay.close()

    run(check)


def test_versions_that_are_not_offered_are_refused_and_others_are_not_taken() -> None:
    relay = Relay(PASSED, list, Login(), lambda: None)
    assert not relay.take(request(8, 2, 1), untold)
    with pytest.raises(MalformedRequestError, match="fetch version 11 is not offered"):
        relay.take(request(1, 11, 1), untold)


def test_a_broker_that_is_gone_ends_the_clients_connection() -> None:
    async def check(broker: Broker, address: tuple[str, int]) -> None:
        closed = asyncio.Event()
        relay = Relay(PASSED, lambda: [address], Login(), closed.set)
        relay.take(request(1, 4, 1), untold)
        await broker.has(1)
        broker.close()
        await closed.wait()

    run(check)


def test_the_next_broker_is_asked_where_the_first_one_is_not_there() -> None:
    async def check(broker: Broker, address: tuple[str, int]) -> None:
        dead = Broker()
        nowhere = await dead.start()
        dead.close()
        closed = asyncio.Event()
        relay = Relay(PASSED, lambda: [nowhere, address], Login(), closed.set)
        relay.take(request(1, 4, 1), untold)
        assert await broker.has(1) == [request(1, 4, 1)]
        relay.close()
        nobody = Relay(PASSED, lambda: [nowhere], Login(), closed.set)
        nobody.take(request(1, 4, 1), untold)
        await closed.wait()

    run(check)
