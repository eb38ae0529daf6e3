"""Requests that are recognised by their bytes are answered as if they had been decoded."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import MAX_KNOWN_BYTES, KnownRequests, Later, decode_request, load_apis, response_frame
from keylane.broker.node import Node
from keylane.storage.filesystem import OsFileSystem
from keylane.wire import codes
from kit.protocol import encode_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

APIS = load_apis()
TOPIC = "flights"
NOBODY = UUID(int=7)
"""The id of no topic."""


def in_a_node(path: Path, scenario: Callable[[Node, KnownRequests], Awaitable[None]]) -> None:
    async def run() -> None:
        node = await Node.open(OsFileSystem(), str(path / "data"), BrokerConfig(), lambda: 1_700_000_000_000)
        await node.coordinator.loaded()
        await node.topics.create(TOPIC, 3)
        try:
            await scenario(node, KnownRequests(node, APIS))
        finally:
            await node.close()

    asyncio.run(run())


def named(topic: str | UUID) -> dict[str, Any]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}


def asked(node: Node, version: int, name: str = TOPIC) -> str | UUID:
    """A topic as requests of this version have it."""
    return name if version < 10 else node.topic_id(name) or NOBODY


def commit_frame(
    version: int, rows: list[tuple[int, int, str | None]], correlation: int = 1, topic: str | UUID = TOPIC
) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.offset_commit.v{version}.request")
    partitions = tuple(
        schema.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=text
        )
        for partition, offset, text in rows
    )
    request = schema.OffsetCommitRequest(
        group_id="g", member_id="", topics=(schema.OffsetCommitRequestTopic(**named(topic), partitions=partitions),)
    )
    return encode_request("offset_commit", request, correlation)[4:]


def fetch_frame(version: int, partitions: tuple[int, ...], correlation: int = 1, topic: str | UUID = TOPIC) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.offset_fetch.v{version}.request")
    if version >= 8:
        one = schema.OffsetFetchRequestTopics(**named(topic), partition_indexes=partitions)
        groups = (schema.OffsetFetchRequestGroup(group_id="g", topics=(one,)),)
        request = schema.OffsetFetchRequest(groups=groups, require_stable=False)
    else:
        rows = (schema.OffsetFetchRequestTopic(**named(topic), partition_indexes=partitions),)
        more = {"require_stable": False} if version >= 7 else {}
        request = schema.OffsetFetchRequest(group_id="g", topics=rows, **more)
    return encode_request("offset_fetch", request, correlation)[4:]


async def decoded(frame: bytes, node: Node, known: KnownRequests) -> bytes:
    """The answer by the long way; the request is remembered."""
    call = decode_request(frame, "h", APIS)
    assert call.api.begin is not None
    known.remember(frame, call.request)
    answer = call.api.begin(call.request, call.header, node)
    while isinstance(answer, Later):
        await asyncio.wait({answer.durable})
        answer = answer.finish()
    parts = response_frame(call, answer)
    assert parts is not None
    return b"".join(parts)


async def recognised(frame: bytes, known: KnownRequests) -> bytes | None:
    found = known.recognise(frame)
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


@pytest.mark.parametrize("version", [7, 8, 9, 10])
@pytest.mark.parametrize("text", [None, ""])
def test_a_commit_that_comes_again(tmp_path: Path, version: int, text: str | None) -> None:
    async def scenario(node: Node, known: KnownRequests) -> None:
        topic = asked(node, version)
        first = commit_frame(version, [(1, 5, text)], topic=topic)
        assert known.recognise(first) is None
        await decoded(first, node, known)
        again = commit_frame(version, [(1, 77, text)], correlation=1_000_000, topic=topic)
        answer = await recognised(again, known)
        assert committed(node, 1) == (77, 3, None)
        assert answer == await decoded(again, node, known)

    in_a_node(tmp_path, scenario)


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_what_is_not_recognised(tmp_path: Path, version: int) -> None:
    async def scenario(node: Node, known: KnownRequests) -> None:
        topic = asked(node, version)
        others: list[list[tuple[int, int, str | None]]]
        others = [[(1, 5, "m")], [(1, 5, None), (2, 5, None)], [(1, 5, "\0\0\0")]]
        for rows in others:
            frame = commit_frame(version, rows, topic=topic)
            await decoded(frame, node, known)
            assert known.recognise(frame) is None
        await decoded(commit_frame(version, [(1, 5, None)], topic=topic), node, known)
        assert known.recognise(commit_frame(version, [(2, 5, None)], topic=topic)) is None, "another partition"
        assert known.recognise(commit_frame(version, [(1, 5, "m")], topic=topic)) is None, "metadata"
        unknown = commit_frame(version, [(0, 5, None)], topic=asked(node, version, "nowhere"))
        refusal = await decoded(unknown, node, known)
        assert known.recognise(unknown) is None, "a topic that does not exist"
        assert refusal == await decoded(unknown, node, known)
        await node.coordinator.close()
        assert known.recognise(commit_frame(version, [(1, 5, None)], topic=topic)) is None, "a closed coordinator"

    in_a_node(tmp_path, scenario)


def test_a_recognised_commit_that_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node, known: KnownRequests) -> None:
        frame = commit_frame(9, [(1, 5, None)])
        good = await decoded(frame, node, known)

        def fail(_file: object) -> None:
            raise OSError(5, "input/output error")

        monkeypatch.setattr("keylane.storage.filesystem.OsAppendFile.sync", fail)
        answer = await recognised(commit_frame(9, [(1, 6, None)]), known)
        assert answer is not None
        assert len(answer) == len(good)
        assert answer != good
        assert committed(node, 1) == (5, 3, None)
        assert known.recognise(frame) is None, "it takes the long way, which says what is wrong"
        assert answer == await decoded(frame, node, known)
        monkeypatch.undo()

    in_a_node(tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 5, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("partitions", [(1,), (0, 1, 2), (7,)])
@pytest.mark.parametrize("name", [TOPIC, "nowhere"])
@pytest.mark.parametrize("text", [None, "map"])
def test_a_fetch_that_comes_again(
    tmp_path: Path, version: int, partitions: tuple[int, ...], name: str, text: str | None
) -> None:
    async def scenario(node: Node, known: KnownRequests) -> None:
        topic = asked(node, version, name)
        frame = fetch_frame(version, partitions, topic=topic)
        assert known.recognise(frame) is None
        empty = await decoded(frame, node, known)
        assert known.recognise(frame) == empty
        await decoded(commit_frame(9, [(1, 1 << 40, text)]), node, known)
        later = fetch_frame(version, partitions, correlation=99, topic=topic)
        assert known.recognise(later) == await decoded(later, node, known)
        await node.coordinator.close()
        assert known.recognise(later) == await decoded(later, node, known)

    in_a_node(tmp_path, scenario)


def test_what_is_known_of_a_topic_does_not_hold_of_another_one_of_its_name(tmp_path: Path) -> None:
    async def scenario(node: Node, known: KnownRequests) -> None:
        topic = asked(node, 10)
        commit, fetch = commit_frame(10, [(1, 5, None)], topic=topic), fetch_frame(10, (1,), topic=topic)
        for frame in (commit, fetch):
            await decoded(frame, node, known)
            assert await recognised(frame, known) is not None
        await node.topics.delete(TOPIC, node.coordinator.delete_topic_offsets)
        await node.topics.create(TOPIC, 3)
        await decoded(commit_frame(9, [(1, 77, None)]), node, known)
        assert known.recognise(commit) is None
        refusals = [await decoded(frame, node, known) for frame in (commit, fetch)]
        assert codes.UNKNOWN_TOPIC_ID.to_bytes(2, "big") in refusals[0]
        assert known.recognise(fetch) == refusals[1]
        assert (77).to_bytes(8, "big") not in refusals[1]
        assert committed(node, 1) == (77, 3, None)

    in_a_node(tmp_path, scenario)


def test_what_is_known_is_bounded(tmp_path: Path) -> None:
    """One of many fetches of a lot of partitions each is forgotten with all before it; the last one is known."""

    async def scenario(node: Node, known: KnownRequests) -> None:
        partitions = tuple(range(1_900))
        count = MAX_KNOWN_BYTES // len(fetch_frame(9, partitions)) + 10
        frame = fetch_frame(9, partitions)
        name = TOPIC.encode()
        frames = [frame.replace(name, b"%07d" % number) for number in range(count)]
        request = decode_request(frame, "h", APIS).request
        for one in frames:
            known.remember(one, request)
        assert known.recognise(frames[0]) is None
        assert known.recognise(frames[-1]) is not None
        assert sum(len(key) for _, found in known._ways.values() for key in found) <= MAX_KNOWN_BYTES

    in_a_node(tmp_path, scenario)


def test_an_api_with_another_handler_gets_every_request(tmp_path: Path) -> None:
    async def scenario(node: Node, known: KnownRequests) -> None:
        frame = fetch_frame(9, (1,))
        await decoded(frame, node, known)
        assert known.recognise(frame) is not None
        replaced = {key: api._replace(begin=lambda *_: b"") for key, api in APIS.items()}
        others = KnownRequests(node, replaced)
        others.remember(frame, decode_request(frame, "h", APIS).request)
        assert others.recognise(frame) is None

    in_a_node(tmp_path, scenario)
