"""Requests that are recognised by their bytes are answered as if they had been decoded."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import Later, decode_request, load_apis, response_frame
from keylane.broker.handlers import offset_commit, offset_fetch
from keylane.broker.known_requests import MAX_BYTES, KnownRequests
from keylane.broker.node import Node
from keylane.storage import group_sync
from keylane.storage.filesystem import OsFileSystem
from kit.protocol import encode_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

APIS = load_apis()
TOPIC = "flights"


@pytest.fixture(autouse=True)
def syncs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: a commit that comes alone is synced on the spot."""
    monkeypatch.setattr(group_sync, "INLINE_LIMIT_S", 60.0)


def in_a_node(path: Path, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = await Node.open(OsFileSystem(), str(path / "data"), BrokerConfig(), lambda: 1_700_000_000_000)
        await node.coordinator.loaded()
        await node.topics.create(TOPIC, 3)
        try:
            await scenario(node)
        finally:
            await node.close()

    asyncio.run(run())


def commit_frame(
    version: int, rows: list[tuple[int, int, str | None]], correlation: int = 1, topic: str = TOPIC
) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.offset_commit.v{version}.request")
    partitions = tuple(
        schema.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=text
        )
        for partition, offset, text in rows
    )
    request = schema.OffsetCommitRequest(
        group_id="g", member_id="", topics=(schema.OffsetCommitRequestTopic(name=topic, partitions=partitions),)
    )
    return encode_request("offset_commit", request, correlation)[4:]


def fetch_frame(version: int, partitions: tuple[int, ...], correlation: int = 1, topic: str = TOPIC) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.offset_fetch.v{version}.request")
    if version >= 8:
        one = schema.OffsetFetchRequestTopics(name=topic, partition_indexes=partitions)
        groups = (schema.OffsetFetchRequestGroup(group_id="g", topics=(one,)),)
        request = schema.OffsetFetchRequest(groups=groups, require_stable=False)
    else:
        rows = (schema.OffsetFetchRequestTopic(name=topic, partition_indexes=partitions),)
        more = {"require_stable": False} if version >= 7 else {}
        request = schema.OffsetFetchRequest(group_id="g", topics=rows, **more)
    return encode_request("offset_fetch", request, correlation)[4:]


async def decoded(frame: bytes, node: Node) -> bytes:
    """The answer by the long way; the request is remembered."""
    call = decode_request(frame, "h", APIS)
    assert call.api.remember is not None
    assert call.api.begin is not None
    call.api.remember(frame, call.request, node)
    answer = call.api.begin(call.request, call.header, node)
    while isinstance(answer, Later):
        await asyncio.wait({answer.durable})
        answer = answer.finish()
    parts = response_frame(call, answer)
    assert parts is not None
    return b"".join(parts)


async def recognised(frame: bytes, node: Node, *, alone: bool) -> bytes | None:
    found = offset_commit.recognise(frame, node, alone=alone)
    if not isinstance(found, Later):
        return found
    await asyncio.wait({found.durable})
    answer = found.finish()
    assert isinstance(answer, bytes)
    return answer


def committed(node: Node, partition: int) -> tuple[int, int, str | None]:
    fetched = node.coordinator.fetch("g", [(TOPIC, [partition])])
    assert not isinstance(fetched, int)
    _, offsets, epochs, metadata = fetched[0].columns
    return offsets[0], epochs[0], metadata[0] if metadata else None


@pytest.mark.parametrize("version", [7, 8, 9])
@pytest.mark.parametrize("text", [None, ""])
@pytest.mark.parametrize("alone", [False, True])
def test_a_commit_that_comes_again(tmp_path: Path, version: int, text: str | None, alone: bool) -> None:
    async def scenario(node: Node) -> None:
        first = commit_frame(version, [(1, 5, text)])
        assert offset_commit.recognise(first, node, alone=False) is None
        await decoded(first, node)
        again = commit_frame(version, [(1, 77, text)], correlation=1_000_000)
        if alone:
            on_the_spot = offset_commit.recognise(again, node, alone=True)
            assert isinstance(on_the_spot, bytes)
            assert committed(node, 1) == (77, 3, None), "durable, without a turn of the loop"
        answer = await recognised(again, node, alone=alone)
        assert committed(node, 1) == (77, 3, None)
        assert answer == await decoded(again, node)

    in_a_node(tmp_path, scenario)


@pytest.mark.parametrize("version", [7, 8, 9])
def test_what_is_not_recognised(tmp_path: Path, version: int) -> None:
    async def scenario(node: Node) -> None:
        others: list[list[tuple[int, int, str | None]]]
        others = [[(1, 5, "m")], [(1, 5, None), (2, 5, None)], [(1, 5, "\0\0\0")]]
        for rows in others:
            frame = commit_frame(version, rows)
            await decoded(frame, node)
            assert offset_commit.recognise(frame, node, alone=False) is None
        await decoded(commit_frame(version, [(1, 5, None)]), node)
        assert offset_commit.recognise(commit_frame(version, [(2, 5, None)]), node, alone=False) is None, (
            "another partition"
        )
        assert offset_commit.recognise(commit_frame(version, [(1, 5, "m")]), node, alone=False) is None, "metadata"
        unknown = commit_frame(version, [(0, 5, None)], topic="nowhere")
        refusal = await decoded(unknown, node)
        assert offset_commit.recognise(unknown, node, alone=False) is None, "a topic that does not exist"
        assert refusal == await decoded(unknown, node)
        await node.coordinator.close()
        assert offset_commit.recognise(commit_frame(version, [(1, 5, None)]), node, alone=False) is None, (
            "a closed coordinator"
        )

    in_a_node(tmp_path, scenario)


@pytest.mark.parametrize("alone", [False, True])
def test_a_recognised_commit_that_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    async def scenario(node: Node) -> None:
        frame = commit_frame(9, [(1, 5, None)])
        good = await decoded(frame, node)

        def fail(_file: object) -> None:
            raise OSError(5, "input/output error")

        monkeypatch.setattr("keylane.storage.filesystem.OsAppendFile.sync", fail)
        answer = await recognised(commit_frame(9, [(1, 6, None)]), node, alone=alone)
        if alone:
            assert answer is None, "it takes the long way, which says what is wrong"
            answer = await decoded(commit_frame(9, [(1, 6, None)]), node)
        assert answer is not None
        assert len(answer) == len(good)
        assert answer != good
        assert committed(node, 1) == (5, 3, None)
        assert offset_commit.recognise(frame, node, alone=False) is None, (
            "it takes the long way, which says what is wrong"
        )
        assert answer == await decoded(frame, node)
        monkeypatch.undo()

    in_a_node(tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("partitions", [(1,), (0, 1, 2), (7,)])
@pytest.mark.parametrize("topic", [TOPIC, "nowhere"])
@pytest.mark.parametrize("text", [None, "map"])
def test_a_fetch_that_comes_again(
    tmp_path: Path, version: int, partitions: tuple[int, ...], topic: str, text: str | None
) -> None:
    async def scenario(node: Node) -> None:
        frame = fetch_frame(version, partitions, topic=topic)
        assert offset_fetch.recognise(frame, node, alone=False) is None
        empty = await decoded(frame, node)
        assert offset_fetch.recognise(frame, node, alone=False) == empty
        await decoded(commit_frame(9, [(1, 1 << 40, text)]), node)
        later = fetch_frame(version, partitions, correlation=99, topic=topic)
        assert offset_fetch.recognise(later, node, alone=False) == await decoded(later, node)
        await node.coordinator.close()
        assert offset_fetch.recognise(later, node, alone=False) == await decoded(later, node)

    in_a_node(tmp_path, scenario)


def test_what_is_known_is_bounded() -> None:
    known = KnownRequests()
    for number in range(40):
        known.remember(b"%d" % number * 1_000_000, number)
    kept = [number for number in range(40) if known.get(b"%d" % number * 1_000_000) is not None]
    assert kept[-1] == 39
    assert sum(len(b"%d" % number) * 1_000_000 for number in kept) <= MAX_BYTES
