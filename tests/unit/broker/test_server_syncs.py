"""Commits that come in one turn of the event loop share a sync, of whatever connection."""

from __future__ import annotations

import asyncio
import importlib
import socket
from typing import TYPE_CHECKING, Any

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import load_apis
from keylane.broker.node import Node
from keylane.broker.server import BrokerServer
from keylane.storage import shared_sync
from keylane.storage.filesystem import OsAppendFile, OsFileSystem, now_ms
from kit.protocol import encode_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

TOPIC = "flights"


def commit_frame(group: str, offset: int, correlation: int = 1) -> bytes:
    schema: Any = importlib.import_module("kio.schema.offset_commit.v9.request")
    partition = schema.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=3, committed_metadata=None
    )
    topics = (schema.OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),)
    request = schema.OffsetCommitRequest(group_id=group, member_id="", topics=topics)
    return encode_request("offset_commit", request, correlation)


def test_commits_that_come_together_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("INLINE_LIMIT_S", "SHARED_INLINE_LIMIT_S"):  # however slow this machine is
        monkeypatch.setattr(shared_sync, limit, 60.0)
    seen: list[str] = []

    def note(what: str) -> None:
        method: Callable[..., Any] = getattr(OsAppendFile, what)

        def noted(self: OsAppendFile, *arguments: Any) -> None:
            if self.path.endswith(".journal"):
                seen.append(what)
            method(self, *arguments)

        monkeypatch.setattr(OsAppendFile, what, noted)

    async def ask(clients: list[socket.socket], frames: list[bytes]) -> list[bytes]:
        """Send all in one turn; the answers' bodies."""
        loop = asyncio.get_running_loop()
        for client, frame in zip(clients, frames, strict=True):
            client.sendall(frame)
        answers = []
        for client, frame in zip(clients, frames, strict=True):
            client.setblocking(False)
            answer = b""
            while answer.count(frame[8:12]) < frame.count(frame[4:8]):  # the correlation id, and the head of a request
                answer += await asyncio.wait_for(loop.sock_recv(client, 65_536), 10)
            answers.append(answer)
        return answers

    async def scenario() -> None:
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        await node.topics.create(TOPIC, 1)
        server = BrokerServer(node, load_apis())

        def committed(group: str) -> int:
            fetched = node.coordinator.fetch(group, [(TOPIC, [0])])
            assert not isinstance(fetched, int)
            return fetched[0].columns.offsets[0]

        try:
            address = await server.start("127.0.0.1", 0)
            clients = [socket.create_connection(address) for _ in range(3)]
            first = [await ask([one], [commit_frame(f"g{number}", 1)]) for number, one in enumerate(clients)]
            note("write")
            note("sync")
            (alone,) = await ask(clients[:1], [commit_frame("g0", 2)])
            assert seen == ["write", "sync"]
            assert (alone, committed("g0")) == (first[0][0], 2)
            seen.clear()
            together = await ask(clients, [commit_frame(f"g{number}", 3) for number in range(3)])
            assert seen == ["write", "sync"]
            assert together == [answer for (answer,) in first]
            assert [committed(f"g{number}") for number in range(3)] == [3, 3, 3]
            seen.clear()
            (pipelined,) = await ask(clients[:1], [b"".join(commit_frame("g0", offset) for offset in (4, 5, 6))])
            assert seen == ["write", "sync"], "its own requests share one, too"
            assert (pipelined, committed("g0")) == (first[0][0] * 3, 6)
            for client in clients:
                client.close()
        finally:
            await server.stop()
            await node.close()

    asyncio.run(scenario())
