"""A request that takes long to prepare: others are served meanwhile, and what its connection sent behind it waits."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest

from keylane.broker import dispatch
from keylane.broker import server as server_module
from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import load_apis
from keylane.broker.node import Node
from keylane.broker.server import BrokerServer
from keylane.storage.filesystem import OsFileSystem, now_ms
from keylane.wire.batches import NewRecord, encode_batch, read_header, recompressed
from keylane.wire.partition_log import produce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

TOPIC = "flights"
MANY = 20_000


def frame(key: int, version: int, correlation: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", key, version, correlation, -1) + body
    return struct.pack(">i", len(request)) + request


def batch_of(count: int) -> bytes:
    plain = encode_batch([NewRecord(b"k", b"")] * count, timestamp_ms=now_ms())
    return recompressed(plain, read_header(plain), 4, None)[0]


def produce_frame(correlation: int, count: int, acks: int = -1) -> bytes:
    body = bytearray(produce(TOPIC, 0, batch_of(count), 30_000))
    body[2:4] = struct.pack(">h", acks)
    return frame(0, 7, correlation, bytes(body))


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Its correlation id, and the rest."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    data = await reader.readexactly(size)
    return int.from_bytes(data[:4], "big"), data[4:]


def base_offset(body: bytes) -> int:
    error, offset = struct.unpack_from(">hq", body, 4 + 2 + len(TOPIC) + 4 + 4)
    assert error == 0
    return int(offset)


def run(folder: Path, scenario: Callable[[BrokerServer, Node, tuple[str, int]], Awaitable[None]]) -> None:
    async def whole() -> None:
        node = await Node.open(OsFileSystem(), str(folder / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        await node.topics.create(TOPIC, 1)
        server = BrokerServer(node, load_apis())
        try:
            await asyncio.wait_for(scenario(server, node, await server.start("127.0.0.1", 0)), 60)
        finally:
            await server.stop()
            await node.close()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SLICE_S", 0.0)


async def until_preparing(server: BrokerServer) -> None:
    while not server.slice.locked():  # noqa: ASYNC110 - a server tells nobody
        await asyncio.sleep(0)


def test_others_are_served_meanwhile_and_its_own_connection_in_order(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, node: Node, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        other_reader, other = await asyncio.open_connection(*address)
        order: list[Any] = []

        async def others() -> None:
            await until_preparing(server)
            other.write(frame(18, 0, 9, b""))
            order.append((await answer(other_reader))[0])

        asking = asyncio.create_task(others())
        writer.write(produce_frame(1, MANY) + frame(18, 0, 2, b"") + produce_frame(3, 1))
        for _ in range(3):
            correlation, body = await answer(reader)
            order.append(correlation)
            if correlation != 2:
                order.append(base_offset(body))
        await asking
        assert order == [9, 1, 0, 2, 3, MANY]
        for one in (writer, other):
            one.close()

    run(tmp_path, scenario)


def test_what_a_client_sent_before_it_went_is_appended(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, node: Node, address: tuple[str, int]) -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.write(produce_frame(1, MANY, acks=0) + produce_frame(2, 1, acks=0))
        await until_preparing(server)
        writer.close()
        log = node.topics.log(TOPIC, 0)
        assert log is not None
        while log.next_offset < MANY + 1:  # noqa: ASYNC110 - nor does a log
            await asyncio.sleep(0)
        assert not server.memory.held

    run(tmp_path, scenario)


def test_a_stop_waits_for_it_and_for_what_was_held_back(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, node: Node, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(produce_frame(1, MANY) + produce_frame(2, 1))
        await until_preparing(server)
        await server.stop()
        assert [(one, base_offset(body)) for one, body in [await answer(reader), await answer(reader)]] == [
            (1, 0),
            (2, MANY),
        ]
        writer.close()

    run(tmp_path, scenario)


def test_who_has_no_connection_sees_a_result_through_to_its_end() -> None:
    async def whole() -> tuple[str, int]:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(over.set_result, None)
        steps = (None for _ in range(3))
        prepared = dispatch.prepared(steps, lambda: dispatch.Later(over, lambda: "done"))  # type: ignore[arg-type]
        assert type(prepared) is dispatch.Preparation
        return await dispatch.seen_through(prepared), await dispatch.seen_through(7)

    assert asyncio.run(whole()) == ("done", 7)


def test_a_large_request_is_decoded_aside_and_what_came_behind_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LARGE_FRAME_BYTES", 100)

    async def scenario(server: BrokerServer, node: Node, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        aside: list[object] = []
        in_thread = server.in_thread

        async def seen(work: Callable[[], Any]) -> Any:
            aside.append(work)
            return await in_thread(work)

        monkeypatch.setattr(server, "in_thread", seen)
        writer.write(produce_frame(1, MANY) + frame(18, 0, 2, b"") + produce_frame(3, 1))
        assert [(await answer(reader))[0] for _ in range(3)] == [1, 2, 3]
        assert aside
        log = node.topics.log(TOPIC, 0)
        assert log is not None
        assert log.next_offset == MANY + 1
        writer.close()

    run(tmp_path, scenario)
