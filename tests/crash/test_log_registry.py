"""The topic registry after a crash, and after an error, at any operation: what was answered holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.data_folder import open_data_folder
from keylane.broker.topic_files import Topic
from keylane.broker.topics import NewTopic, TopicRegistry
from keylane.errors import PeerError
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.filesystem import Content, Names

DATA = "/data"
STATES: list[tuple[Names, Content]] = list(product(("lost", "kept"), ("lost", "kept", "torn")))
STEPS = ["create a 2", "create b 1", "grow b 3", "delete a", "create a 1", "grow a 2", "delete b", "create b 1 c 2"]


def batched(words: list[str]) -> Iterator[tuple[str, str]]:
    """Two by two: names and counts."""
    return zip(words[::2], words[1::2], strict=True)


@dataclass
class Told:
    """Steps that were answered, the one that was not, and topics whose offsets were forgotten."""

    done: list[str] = field(default_factory=list)
    unanswered: str | None = None
    forgotten: list[str] = field(default_factory=list)

    def counts(self, steps: list[str]) -> dict[str, int]:
        """Topics after these steps, with their partition counts."""
        topics: dict[str, int] = {}
        for step in steps:
            words = step.split()
            if words[0] in ("create", "grow"):
                topics |= {name: int(count) for name, count in batched(words[1:])}
            else:
                del topics[words[1]]
        return topics


async def open_registry(filesystem: SimulatedFileSystem, told: Told) -> TopicRegistry:
    open_data_folder(filesystem, DATA, 1)
    registry = TopicRegistry(filesystem, DATA, BrokerConfig(), InlineExecutor(), lambda: 0, epoch_of_topic=lambda _: 1)
    registry.load(None)

    async def forget(name: str) -> None:
        told.forgotten.append(name)

    await registry.finish_interrupted(forget)
    return registry


async def run(filesystem: SimulatedFileSystem, told: Told) -> None:
    registry = await open_registry(filesystem, told)

    async def forget(name: str) -> None:
        told.forgotten.append(name)

    for step in STEPS:
        told.unanswered = step
        words = step.split()
        if words[0] == "create":
            new = [NewTopic(name, int(count), {}) for name, count in batched(words[1:])]
            made = await registry.create_all(new)
            counts = {topic.name: topic.partition_count for topic in made.values() if isinstance(topic, Topic)}
            assert counts == {one.name: one.partition_count for one in new}
        elif words[0] == "grow":
            await registry.add_partitions(words[1], int(words[2]))
        else:
            await registry.delete(words[1], forget)
        told.done.append(step)
        told.unanswered = None
    await registry.close()


def attempt(filesystem: SimulatedFileSystem) -> Told:
    told = Told()
    try:
        asyncio.run(run(filesystem, told))
    except (SimulatedCrashError, OSError, PeerError):
        pass
    else:
        assert told.unanswered is None
    return told


async def check(filesystem: SimulatedFileSystem, told: Told) -> None:
    registry = await open_registry(filesystem, told)
    found = {name: registry.partition_count(name) for name in registry.names()}
    possible = [told.counts(told.done)]
    if told.unanswered is not None:
        possible.append(told.counts([*told.done, told.unanswered]))
    assert found in possible
    folders = {f"{name}-{index}" for name, count in found.items() for index in range(count or 0)}
    assert set(filesystem.listdir(f"{DATA}/topics")) == folders
    for step in told.done:
        if step.startswith("delete"):
            assert step.split()[1] in told.forgotten
    if told.unanswered == "delete a" and "a" not in found:
        assert told.forgotten.count("a") >= told.done.count("delete a") + 1, "deleted, but its offsets stay"
    for name in ("a", "b", "c"):
        if name not in found:
            await registry.create(name, 1)
    await registry.close()


def operations() -> int:
    filesystem = SimulatedFileSystem()
    assert attempt(filesystem).done == STEPS
    return filesystem.operations


@pytest.mark.parametrize(("names", "content"), STATES)
def test_a_crash_at_any_operation_keeps_what_was_answered(names: Names, content: Content) -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = attempt(filesystem)
        asyncio.run(check(filesystem.after_crash(names=names, content=content), told))


def test_what_a_restart_after_a_kill_shows_survives_a_crash_right_after() -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = attempt(filesystem)
        killed = filesystem.after_kill()
        shown = asyncio.run(open_registry(killed, told))
        found = asyncio.run(open_registry(killed.after_crash(), told))
        assert found.names() == shown.names(), f"operation {operation}"


def test_an_error_at_any_operation_keeps_what_was_answered() -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.fail_at(operation)
        told = attempt(filesystem)
        for names, content in (STATES[0], STATES[-1]):
            asyncio.run(check(filesystem.after_crash(names=names, content=content), told))


def test_after_an_error_topics_are_neither_made_nor_deleted() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        told = Told()
        registry = await open_registry(filesystem, told)
        await registry.create("a", 1)
        filesystem.fail_at(filesystem.operations + 3)
        with pytest.raises(PeerError, match="input/output error"):
            await registry.create("b", 1)
        for change in (registry.create("c", 1), registry.delete("a", lambda _: asyncio.sleep(0))):
            with pytest.raises(PeerError, match="neither made nor deleted"):
                await change
        assert registry.names() == ["a"]

    asyncio.run(scenario())
