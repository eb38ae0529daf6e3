"""Levels of features: the newest until one is changed, and kept before the change is answered."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keylane.broker.features import KIND, NEWEST, TRANSACTION_VERSION, Features
from keylane.errors import DataFolderError
from keylane.storage.filesystem import StorageError
from keylane.storage.sealed import write_sealed
from kit.filesystem import SimulatedFileSystem

PATH = "/features.json"


async def change(filesystem: SimulatedFileSystem, level: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        features = Features(filesystem, PATH, executor)
        features.load()
        before = features.finalized
        try:
            await features.change({TRANSACTION_VERSION: level})
        except StorageError:
            assert features.finalized == before, "nothing was changed"
            raise
        assert features.level(TRANSACTION_VERSION) == level


def loaded(filesystem: SimulatedFileSystem) -> Features:
    with ThreadPoolExecutor(1) as executor:
        features = Features(filesystem, PATH, executor)
        features.load()
        return features


def test_every_feature_is_at_the_newest_level_until_one_is_changed() -> None:
    filesystem = SimulatedFileSystem()
    assert loaded(filesystem).finalized == NEWEST
    asyncio.run(change(filesystem, 2))
    assert not filesystem.exists(PATH), "it was at that level"
    assert loaded(filesystem).finalized.epoch == 0


def test_a_level_is_durable_when_it_is_answered() -> None:
    filesystem = SimulatedFileSystem()
    for count, level in enumerate((1, 0, 2), 1):
        asyncio.run(change(filesystem, level))
        for found in (filesystem.after_crash(), filesystem.after_crash(names="kept", content="torn")):
            assert loaded(found).finalized == (count, {**NEWEST.levels, TRANSACTION_VERSION: level})


def test_a_level_holds_once_it_is_written() -> None:
    async def run() -> None:
        may_write = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            executor.submit(may_write.wait)
            features = Features(SimulatedFileSystem(), PATH, executor)
            change = asyncio.create_task(features.change({TRANSACTION_VERSION: 1}))
            for _ in range(5):
                await asyncio.sleep(0)
            found = change.done(), features.level(TRANSACTION_VERSION)
            may_write.set()
            await change
            assert (found, features.level(TRANSACTION_VERSION)) == ((False, 2), 1)

    asyncio.run(run())


def test_a_failed_disk_changes_nothing() -> None:
    filesystem = SimulatedFileSystem()
    filesystem.fail_at(filesystem.operations + 1)
    with pytest.raises(StorageError, match=r"features\.json"):
        asyncio.run(change(filesystem, 1))
    assert loaded(filesystem.after_crash()).finalized == NEWEST


@pytest.mark.parametrize("levels", [{TRANSACTION_VERSION: 3}, {"house.version": 1}])
def test_a_level_of_a_newer_keylane_is_refused_by_name(levels: dict[str, int]) -> None:
    filesystem = SimulatedFileSystem()
    write_sealed(filesystem, PATH, KIND, [1, levels])
    with pytest.raises(DataFolderError, match=f"{next(iter(levels))} is at level"):
        loaded(filesystem)
