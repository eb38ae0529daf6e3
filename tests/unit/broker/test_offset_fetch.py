"""What OffsetFetch says when a whole group is refused: never an offset, always the error, where the version has it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import RequestHeader
from keylane.broker.handlers import offset_fetch
from keylane.coordinator import coordinator as shell
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import partition_for
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.journal.segments import SEGMENT_SUFFIX
from keylane.errors import DataFolderError
from keylane.wire.versions import response_type
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

TOPICS = [("flights", [0, 7]), ("weather", [1])]


GROUP, OTHER = "g", "h"
"""Of different offsets partitions."""


def make(filesystem: SimulatedFileSystem, **options: Any) -> Coordinator:
    executor = InlineExecutor()
    return Coordinator(
        journal=on_files(filesystem, "/coordinator", executor),
        options=BrokerConfig(offsets_topic_num_partitions=2, **options),
        partition_count={"flights": 8, "weather": 2}.get,
        clock=lambda: 0,
    )


async def not_started() -> Coordinator:
    return make(SimulatedFileSystem())


async def not_loaded() -> Coordinator:
    made = make(SimulatedFileSystem())
    asyncio.get_running_loop().create_task(made.start())
    await asyncio.sleep(0)
    return made


async def of_another_node() -> Coordinator:
    assert partition_for(GROUP, 2) != partition_for(OTHER, 2)
    made = make(SimulatedFileSystem(), keylane_owned_offsets_partitions=str(partition_for(OTHER, 2)))
    await made.start()
    return made


async def damaged() -> Coordinator:
    filesystem = SimulatedFileSystem()
    first = make(filesystem)
    await first.start()
    await first.close()
    (path,) = (f"/coordinator/{name}" for name in filesystem.listdir("/coordinator") if name.endswith(SEGMENT_SUFFIX))
    data = filesystem.read(path)
    filesystem.write_atomic(path, bytes([data[0] ^ 1]) + data[1:])
    made = make(filesystem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell, "START_WAIT_S", 0)
        await made.start()
    with pytest.raises(DataFolderError):
        await made.loaded()
    return made


REFUSALS = [
    (not_started, ErrorCode.not_coordinator),
    (not_loaded, ErrorCode.coordinator_load_in_progress),
    (of_another_node, ErrorCode.not_coordinator),
    (damaged, ErrorCode.coordinator_not_available),
]


def answer(version: int, refusing: Callable[[], Coroutine[Any, Any, Coordinator]], topics: Any = TOPICS) -> Any:
    """The response's entity, of a coordinator that refuses."""

    async def fetch() -> bytes:
        node: Any = SimpleNamespace(coordinator=await refusing())
        request = [offset_fetch.OffsetFetch(GROUP, topics, require_stable=False)]
        told = offset_fetch.begin(request, RequestHeader(9, version, 1, None, "h"), node)
        assert isinstance(told, list)
        return b"".join(told)

    body = asyncio.run(fetch())
    entity, size = entity_reader(response_type("offset_fetch", version))(body, 0)
    assert size == len(body)
    return entity


@pytest.mark.parametrize(("refusing", "code"), REFUSALS)
def test_a_refusal_is_no_offset(refusing: Any, code: ErrorCode) -> None:
    first = answer(1, refusing)
    rows = [
        (topic.name, p.partition_index, p.committed_offset, p.error_code)
        for topic in first.topics
        for p in topic.partitions
    ]
    assert rows == [("flights", 0, -1, code), ("flights", 7, -1, code), ("weather", 1, -1, code)]
    for version in range(2, 8):
        later = answer(version, refusing)
        assert (later.error_code, later.topics) == (code, ())
    for version in (8, 9):
        (group,) = answer(version, refusing).groups
        assert (group.error_code, group.topics) == (code, ())


def test_a_refusal_of_all_of_a_group() -> None:
    assert answer(1, of_another_node, []).topics == ()
    assert answer(5, of_another_node, None).error_code == ErrorCode.not_coordinator
