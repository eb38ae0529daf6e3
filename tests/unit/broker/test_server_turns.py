"""A commit that comes alone is read, synced and answered in one turn of the event loop; those that come together share
a sync."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Any

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import Api, Later, load_apis
from keylane.broker.node import Node
from keylane.broker.run import now_ms
from keylane.broker.server import BrokerServer, ReadySockets
from keylane.storage import group_sync
from keylane.storage.filesystem import OsFileSystem
from keylane.storage.group_sync import GroupSync

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HEARTBEAT = 12
REQUEST = struct.pack(">hhi", HEARTBEAT, 0, 1) + b"\xff\xff" + b"\0\1g" + bytes(4) + b"\0\1m"
FRAME = struct.pack(">i", len(REQUEST)) + REQUEST


class Turns(ReadySockets):
    """Counts the turns of the loop."""

    turn = 0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(timeout)
        self.turn += 1
        return found


def test_one_that_comes_alone_takes_one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("INLINE_LIMIT_S", "SHARED_INLINE_LIMIT_S"):  # however slow this machine is
        monkeypatch.setattr(group_sync, limit, 60.0)
    turns = Turns()
    seen: list[tuple[str, int]] = []

    class File:
        path = "/file"

        def write(self, data: bytes | bytearray | memoryview) -> None:
            seen.append((f"write {len(data)}", turns.turn))

        def sync(self) -> None:
            seen.append(("sync", turns.turn))

    async def scenario() -> None:
        answered = asyncio.Semaphore(0)
        sync = GroupSync(File(), None, may_sync_inline=True)  # type: ignore[arg-type]

        def begin(_request: Any, _header: Any, _node: Node) -> Later:
            seen.append(("read", turns.turn))
            return Later(sync.append(b"x"), finish)

        def finish() -> None:
            seen.append(("answer", turns.turn))
            answered.release()

        async def answers(count: int) -> list[tuple[str, int]]:
            for _ in range(count):
                await asyncio.wait_for(answered.acquire(), 10)
            found = list(seen)
            seen.clear()
            return found

        apis = load_apis()
        apis = {**apis, HEARTBEAT: Api(**{**apis[HEARTBEAT]._asdict(), "handle": None, "begin": begin})}
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        server = BrokerServer(node, apis, ready=turns)
        try:
            address = await server.start("127.0.0.1", 0)
            clients = [socket.create_connection(address) for _ in range(3)]
            for client in clients:  # until all are connected
                client.sendall(FRAME)
            await answers(3)
            clients[0].sendall(FRAME)
            alone = await answers(1)
            for client in clients:
                client.sendall(FRAME)
            together = await answers(3)
            for client in clients:
                client.close()
        finally:
            await server.stop()
            await node.close()
        assert [what for what, _ in alone] == ["read", "write 1", "sync", "answer"]
        assert len({turn for _, turn in alone}) == 1
        assert [what for what, _ in together] == ["read"] * 3 + ["write 3", "sync"] + ["answer"] * 3

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        runner.run(scenario())
