"""A compacted log after a crash, and after an error, at any operation of its compactions."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import product
from typing import TYPE_CHECKING

import pytest

from keylane.storage.compacting import Compactor
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log, recover_log
from kit.compacted_log import CompactedLogModel
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from kit.filesystem import Content, Names

FOLDER = "/log"
OPTIONS = LogOptions(segment_bytes=400, index_interval_bytes=128)
STATES: list[tuple[Names, Content]] = list(product(("lost", "kept"), ("lost", "kept", "torn")))
FIRST = (STATES[0], STATES[-1])
"""The others are tried in the soak."""
RETENTION_MS = 100


class History:
    """Writes with and without transactions, and three compactions: the operations of those are what is tried."""

    def __init__(self, filesystem: SimulatedFileSystem) -> None:
        self.filesystem = filesystem
        self.model = CompactedLogModel()
        self.compactions: list[range] = []

    async def run(self) -> None:
        log = create_log(self.filesystem, FOLDER, OPTIONS, InlineExecutor())
        self.filesystem.sync_dir("/")
        compactor = Compactor(self.filesystem, InlineExecutor())
        for turn in range(3):
            await self._write(log, turn)
            self.model.now_ms += 2 * RETENTION_MS
            before = self.filesystem.operations
            await compactor.compact(log, self.model.now_ms, 0.0, RETENTION_MS)
            self.compactions.append(range(before + 1, self.filesystem.operations + 1))
            self.model.check(log)
        await self._write(log, 3)
        self.model.check(log)
        await log.close()

    async def _write(self, log: PartitionLog, turn: int) -> None:
        for number in range(5):
            key = b"key-%d" % (number % 3)
            await self.model.write(log, -1, [(key, False), (b"other", number == 4)])
            await self.model.write(log, 8, [(key, False)])
            await self.model.write(log, 9, [(key, False)])
        await self.model.write(log, 7, [(b"last of 7", False)])
        await self.model.end(log, 8, committed=turn % 2 == 0)
        await self.model.end(log, 9, committed=False)

    def attempt(self) -> None:
        with contextlib.suppress(SimulatedCrashError):
            asyncio.run(self.run())


async def check(filesystem: SimulatedFileSystem, model: CompactedLogModel) -> None:
    log = recover_log(filesystem, FOLDER, OPTIONS, InlineExecutor(), 0)
    assert not [name for name in filesystem.listdir(FOLDER) if name.endswith(".cleaned")]
    model.check(log)
    await Compactor(filesystem, InlineExecutor()).compact(log, model.now_ms, 0.0, RETENTION_MS)
    model.check(log)
    await log.close()


def operations() -> list[int]:
    history = History(SimulatedFileSystem())
    history.attempt()
    assert len(history.compactions) == 3
    assert all(history.compactions)
    return [operation for compaction in history.compactions for operation in compaction]


@pytest.mark.parametrize(
    ("names", "content"), [*FIRST, *(pytest.param(*state, marks=pytest.mark.soak) for state in STATES[1:-1])]
)
def test_a_crash_at_any_operation_loses_and_brings_back_nothing(names: Names, content: Content) -> None:
    for operation in operations():
        history = History(SimulatedFileSystem())
        history.filesystem.crash_at(operation)
        history.attempt()
        asyncio.run(check(history.filesystem.after_crash(names=names, content=content), history.model))


@pytest.mark.full
def test_an_error_at_any_operation_loses_and_brings_back_nothing() -> None:
    for operation in operations():
        history = History(SimulatedFileSystem())
        history.filesystem.fail_at(operation)
        history.attempt()
        for names, content in FIRST[1:]:
            asyncio.run(check(history.filesystem.after_crash(names=names, content=content), history.model))
