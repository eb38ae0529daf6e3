"""Requests of many items: whatever the API, others are served while they are decoded, handled and encoded."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker import dispatch, server
from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import MalformedRequestError, decode_request, let_go, load_apis
from keylane.broker.handlers import offset_delete, offset_fetch
from keylane.broker.node import Node
from keylane.broker.server import BrokerServer
from keylane.broker.topics import NewTopic
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.storage.filesystem import OsFileSystem, now_ms
from keylane.wire.fields import fields_of
from keylane.wire.primitives import MAX_ITEMS
from keylane.wire.versions import request_type
from kit.protocol import decode_answer, encode_request
from kit.samples import sample_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FEW = 10
MANY = 60
APIS = load_apis()
VERSIONS = struct.pack(">ihhih", 10, 18, 0, 2, -1)
AT_ONCE = {
    # Refused before its items are looked at, or for the first of them.
    "create_acls creations", "delete_acls filters", "delete_share_group_offsets topics",
    "describe_topic_partitions topics",
    "alter_share_group_offsets topics", "alter_share_group_offsets topics.partitions", "offset_commit topics",
    "describe_client_quotas components", "list_partition_reassignments topics", "offset_commit topics.partitions",
    "list_partition_reassignments topics.partition_indexes", "offset_delete topics", "offset_delete topics.partitions",
    "share_acknowledge topics", "share_acknowledge topics.partitions", "share_fetch forgotten_topics_data",
    "share_acknowledge topics.partitions.acknowledgement_batches", "share_fetch forgotten_topics_data.partitions",
    "share_acknowledge topics.partitions.acknowledgement_batches.acknowledge_types", "share_fetch topics",
    "share_fetch topics.partitions", "share_fetch topics.partitions.acknowledgement_batches",
    "share_fetch topics.partitions.acknowledgement_batches.acknowledge_types", "update_features feature_updates",
    # One item, whose parts belong together, or a set of what is asked for.
    "alter_client_quotas entries.entity", "alter_client_quotas entries.ops", "alter_configs resources.configs",
    "alter_partition_reassignments topics.partitions.replicas", "create_partitions topics.assignments",
    "create_partitions topics.assignments.broker_ids", "create_topics topics.assignments",
    "create_topics topics.assignments.broker_ids", "create_topics topics.configs",
    "describe_configs resources.configuration_keys",
    "fetch forgotten_topics_data", "fetch forgotten_topics_data.partitions",
    "incremental_alter_configs resources.configs",
    "list_config_resources resource_types", "list_transactions producer_id_filters",
    # What a member says of itself, read as one.
    "consumer_group_heartbeat subscribed_topic_names",
    "consumer_group_heartbeat topic_partitions.partitions", "share_group_heartbeat subscribed_topic_names",
    # Read as columns.
    "offset_fetch groups.topics.partition_indexes", "txn_offset_commit topics.partitions",
}  # fmt: skip
"""Arrays, and why no turn is given between two of their items."""


def arrays(entity_type: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every array of a request, by the names that lead to it."""
    for field in fields_of(entity_type):
        if field.is_sequence and not field.is_tagged:
            yield (*before, field.name)
            if field.entity is not None:
                yield from arrays(field.entity, (*before, field.name))


ARRAYS = [
    (api.name, path)
    for api in APIS.values()
    if api.name != "conditional_commit"
    for path in arrays(request_type(api.name, api.max_version))
]


def with_many(entity: Any, path: tuple[str, ...], count: int) -> Any:
    """The request with many different items in this array."""
    name, *rest = path
    (item,) = getattr(entity, name)
    items = (with_many(item, tuple(rest), count),) if rest else tuple(another(item, number) for number in range(count))
    return dataclasses.replace(entity, **{name: items})


def another(item: Any, number: int) -> Any:
    """One like it, with another name or number."""
    if isinstance(item, str):
        return f"{item}-{number}"
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return number if type(item) is int else item
    for field in fields_of(type(item)):
        value = getattr(item, field.name)
        if isinstance(value, str):
            return dataclasses.replace(item, **{field.name: another(value, number)})
    return item


def request_of(api: str, path: tuple[str, ...], count: int = MANY) -> bytes:
    version = next(one.max_version for one in APIS.values() if one.name == api)
    return encode_request(api, with_many(sample_request(api, version, acks=-1), path, count), 1)


async def ask(address: tuple[str, int], frame: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(frame)
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    writer.close()
    return answer


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Few items are many, and a slice is one step; what is here counts how often the loop was left to others."""
    given: list[float] = []
    next_turn = dispatch.Slices.next

    async def counted(slices: dispatch.Slices) -> None:
        given.append(slices.until)
        await next_turn(slices)

    monkeypatch.setattr(dispatch, "SLICE_S", -1.0)
    monkeypatch.setattr(dispatch, "FEW_ITEMS", FEW)
    monkeypatch.setattr(server, "FEW_ITEMS", FEW)
    for module in (dispatch, offset_delete, offset_fetch):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(dispatch.Slices, "next", counted)
    return given


def test_others_have_turns_while_many_items_are_handled(turns: list[float], tmp_path: Path) -> None:
    async def whole() -> set[str]:
        node = await Node.open(
            OsFileSystem(), str(tmp_path / "data"), BrokerConfig(auto_create_topics_enable=False), now_ms
        )
        await node.coordinator.loaded()
        broker = BrokerServer(node, APIS)
        held = set()
        try:
            address = await broker.start("127.0.0.1", 0)
            for api, path in ARRAYS:
                frame = request_of(api, path)
                turns.clear()
                await asyncio.wait_for(ask(address, frame), 60)
                if len(turns) < MANY - 1:
                    held.add(f"{api} {'.'.join(path)}")
        finally:
            await broker.stop()
            await node.close()
        return held

    assert asyncio.run(whole()) == AT_ONCE


def test_another_client_is_answered_first(turns: list[float], tmp_path: Path) -> None:
    async def whole() -> list[int]:
        node = await Node.open(
            OsFileSystem(), str(tmp_path / "data"), BrokerConfig(auto_create_topics_enable=False), now_ms
        )
        await node.coordinator.loaded()
        broker = BrokerServer(node, APIS)
        order: list[int] = []

        async def ask_later() -> None:
            while not turns:  # noqa: ASYNC110 - a server tells nobody
                await asyncio.sleep(0)
            await ask(address, VERSIONS)
            order.append(2)

        async def ask_much() -> None:
            await ask(address, request_of("metadata", ("topics",), 50 * MANY))
            order.append(1)

        try:
            address = await broker.start("127.0.0.1", 0)
            await asyncio.wait_for(asyncio.gather(ask_much(), ask_later()), 60)
        finally:
            await broker.stop()
            await node.close()
        return order

    assert asyncio.run(whole()) == [2, 1]


def test_all_offsets_of_a_group_are_deleted_in_pieces(turns: list[float], tmp_path: Path) -> None:
    async def whole() -> Any:
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        await node.topics.create_all([NewTopic("flights", MANY, {})])
        offsets = [1] * MANY
        committed = node.coordinator.commit(
            CommitRequest("g", [TopicCommit("flights", range(MANY), offsets, offsets, None)])
        )
        assert isinstance(committed, CommitResult)
        assert committed.durable is not None
        await committed.durable
        broker = BrokerServer(node, APIS)
        sample = sample_request("offset_delete", 0, group_id="g", name="flights")
        (topic,) = sample.topics
        (partition,) = topic.partitions
        partitions = tuple(dataclasses.replace(partition, partition_index=number) for number in range(MANY + FEW))
        request = dataclasses.replace(sample, topics=(dataclasses.replace(topic, partitions=partitions),))
        try:
            address = await broker.start("127.0.0.1", 0)
            return decode_answer("offset_delete", 0, await ask(address, encode_request("offset_delete", request, 1)))[1]
        finally:
            await broker.stop()
            await node.close()

    answer = asyncio.run(whole())
    assert answer.error_code == ErrorCode.none
    errors = [(one.partition_index, int(one.error_code)) for one in answer.topics[0].partitions]
    assert errors == [(number, 0 if number < MANY else 3) for number in range(MANY + FEW)]
    assert len(turns) >= MANY - 1


def test_what_came_behind_it_waits_until_it_is_decoded(turns: list[float], tmp_path: Path) -> None:
    async def whole() -> list[int]:
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        broker = BrokerServer(node, APIS)
        try:
            reader, writer = await asyncio.open_connection(*await broker.start("127.0.0.1", 0))
            writer.write(request_of("find_coordinator", ("coordinator_keys",)) + VERSIONS)
            found = []
            for _ in range(2):
                answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                found.append(int.from_bytes(answer[:4], "big"))
            writer.close()
        finally:
            await broker.stop()
            await node.close()
        return found

    assert asyncio.run(whole()) == [1, 2]
    assert len(turns) >= MANY - 1


class Item:
    """Knows how many were held when it was freed."""

    def __init__(self, held: list[Any], left: list[int]) -> None:
        self.held, self.left = held, left

    def __del__(self) -> None:
        self.left.append(len(self.held))


def test_many_items_are_freed_one_by_one() -> None:
    held: list[Any] = []
    left: list[int] = []
    request = sample_request("metadata", 12)
    held.append(dataclasses.replace(request, topics=tuple(Item(held, left) for _ in range(MANY))))
    held.append([Item(held, left) for _ in range(MANY)])
    let_go(held)
    assert held == []
    assert len(left) == 2 * MANY
    assert max(Counter(left).values()) <= 3, "one of the list's and one of the request's each time, and the last"


@pytest.mark.parametrize("api", ["metadata", "list_offsets"])
def test_nobody_holds_a_large_request_once_it_is_answered(
    api: str, turns: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is freed in one go."""
    references: list[int] = []

    def counted(held: list[Any]) -> None:
        references.append(sys.getrefcount(held[1]))
        let_go(held)

    async def whole() -> None:
        node = await Node.open(
            OsFileSystem(), str(tmp_path / "data"), BrokerConfig(auto_create_topics_enable=False), now_ms
        )
        await node.coordinator.loaded()
        broker = BrokerServer(node, APIS)
        try:
            await ask(await broker.start("127.0.0.1", 0), request_of(api, ("topics",)))
        finally:
            await broker.stop()
            await node.close()

    monkeypatch.setattr(dispatch, "let_go", counted)
    asyncio.run(whole())
    assert turns
    assert references == [2], "the list's, and the call's that asks"


def test_a_request_of_more_items_than_any_may_have_is_refused_before_it_is_read() -> None:
    count = MAX_ITEMS + 1
    topics = struct.pack(">hhihi", 3, 1, 7, -1, count) + count * struct.pack(">h", 0)
    with pytest.raises(MalformedRequestError, match="more than 250,000 items"):
        decode_request(topics, "h", APIS)
