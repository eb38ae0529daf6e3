from __future__ import annotations

import asyncio

import pytest

from keylane.broker.producer_ids import BLOCK_SIZE, ProducerIds
from keylane.errors import PeerError
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

PATH = "/producer-ids.json"


async def take(filesystem: SimulatedFileSystem, count: int) -> list[int]:
    ids = ProducerIds(filesystem, PATH, InlineExecutor())
    ids.load(leader_epoch=0)
    return list(await asyncio.gather(*(ids.new_id() for _ in range(count))))


def test_ids_are_never_given_twice_across_restarts() -> None:
    filesystem = SimulatedFileSystem()
    given: list[int] = []
    for count in (3, BLOCK_SIZE + 5, BLOCK_SIZE + 1, 1):
        given += asyncio.run(take(filesystem, count))
        filesystem = filesystem.after_crash()
    assert len(set(given)) == len(given) == 2 * BLOCK_SIZE + 10
    assert given[:3] == [0, 1, 2]


def test_a_crash_or_an_error_at_any_operation_gives_no_id_twice() -> None:
    whole = SimulatedFileSystem()
    asyncio.run(take(whole, 1))
    for operation in range(1, whole.operations + 1):
        for fault in ("crash", "fail"):
            filesystem = SimulatedFileSystem()
            getattr(filesystem, f"{fault}_at")(operation)
            with pytest.raises((SimulatedCrashError, PeerError)):
                asyncio.run(take(filesystem, 1))
            for found in (filesystem.after_crash(), filesystem.after_crash(names="kept", content="kept")):
                assert len(set(asyncio.run(take(found, 2)))) == 2
