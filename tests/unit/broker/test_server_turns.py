"""A commit that comes alone is read, synced and answered in one turn of the event loop; those that come together share
a sync. A client that asks at once for more is waited for without sleeping."""

from __future__ import annotations

import asyncio
import importlib
import os
import selectors
import socket
from typing import TYPE_CHECKING, Any

from keylane.broker import server as server_module
from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import load_apis
from keylane.broker.node import Node
from keylane.broker.run import now_ms
from keylane.broker.server import POLL_S, BrokerServer, ReadySockets
from keylane.storage import group_sync
from keylane.storage.filesystem import OsAppendFile, OsFileSystem
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

    def note(what: str) -> None:
        method: Callable[..., Any] = getattr(OsAppendFile, what)

        def noted(self: OsAppendFile, *arguments: Any) -> None:
            if self.path.endswith(".journal"):
                seen.append((what, turns.turn))
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
        server = BrokerServer(node, load_apis(), ready=turns)

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
            assert [what for what, _ in seen] == ["write", "sync"]
            assert len({turn for _, turn in seen}) == 1
            assert (alone, committed("g0")) == (first[0][0], 2)
            seen.clear()
            together = await ask(clients, [commit_frame(f"g{number}", 3) for number in range(3)])
            assert [what for what, _ in seen] == ["write", "sync"]
            assert together == [answer for (answer,) in first]
            assert [committed(f"g{number}") for number in range(3)] == [3, 3, 3]
            seen.clear()
            (pipelined,) = await ask(clients[:1], [b"".join(commit_frame("g0", offset) for offset in (4, 5, 6))])
            assert [what for what, _ in seen] == ["write", "sync"], "its own requests share one, too"
            assert (pipelined, committed("g0")) == (first[0][0] * 3, 6)
            for client in clients:
                client.close()
        finally:
            await server.stop()
            await node.close()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        runner.run(scenario())


class Waits:
    """Stands in for the kernel: sockets become ready at given times of its clock, which a wait moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, processors: int = 2) -> None:
        self.now = 0.0
        self.timeouts: list[float | None] = []
        self._ready: list[tuple[float, int]] = []
        monkeypatch.setattr(selectors.DefaultSelector, "select", lambda _, timeout=None: self._select(timeout))
        monkeypatch.setattr(server_module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
        self._selector = ReadySockets()

    def take(self, after_s: float, *, sockets: int = 1, timeout: float | None = None) -> list[float | None]:
        """One wait for sockets that become ready then: the timeouts that the kernel was asked with."""
        self.timeouts.clear()
        self._ready = [(self.now + after_s, sockets)]
        assert len(self._selector.select(timeout)) == self._selector.count == sockets
        return list(self.timeouts)

    def _select(self, timeout: float | None) -> list[Any]:
        self.timeouts.append(timeout)
        at, count = self._ready[0]
        if timeout is None or timeout > 0:
            self.now = max(self.now, at)
        else:
            self.now += POLL_S / 10  # so long does it take to ask
        return [None] * count if self.now >= at else []


def test_a_client_that_asks_again_at_once_is_polled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    quick, slow = POLL_S / 2, POLL_S * 5
    assert waits.take(quick) == [None], "the first time"
    polled = waits.take(quick)
    assert set(polled) == {0}
    assert len(polled) > 1
    late = waits.take(slow)
    assert late[-1] is None
    assert len(late) <= 12, "for a bounded time"
    assert waits.take(quick) == [None], "what took long is not polled for"
    assert waits.take(quick, sockets=3)[-1] == 0
    assert waits.take(quick) == [None], "nor are many"


def test_what_is_due_is_not_held_up_by_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    waits.take(0)
    assert waits.take(0, timeout=0) == [0], "asked once"
    assert set(waits.take(POLL_S / 2)) == {0}, "and the conversation goes on"


def test_one_processor_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch, processors=1)
    for _ in range(3):
        assert waits.take(POLL_S / 2) == [None]
