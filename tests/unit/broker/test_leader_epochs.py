"""Leader epochs never come twice: after a restart, with a clock that goes back, or in a folder that was put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.broker.leader_epochs import FIRST_TICK_MS, LARGEST_EPOCH, TICK_MS, LeaderEpochs
from keylane.errors import DataFolderError
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from keylane.storage.filesystem import FileSystem

PATH = "/leader-epoch.json"


def start(filesystem: FileSystem, now_ms: int, highest: int = 0) -> int:
    epochs = LeaderEpochs(filesystem, PATH, lambda: now_ms)
    epochs.load()
    return epochs.start(highest)


def test_a_folder_that_was_put_back_gets_an_epoch_that_it_never_had() -> None:
    filesystem, now_ms = SimulatedFileSystem(), FIRST_TICK_MS + 1_000_000
    first = start(filesystem, now_ms)
    copy = filesystem.after_crash()
    second = start(filesystem, now_ms + TICK_MS)
    assert first < second < start(copy, now_ms + 2 * TICK_MS)


def test_a_clock_that_goes_back_takes_no_epoch_back() -> None:
    filesystem, now_ms = SimulatedFileSystem(), FIRST_TICK_MS + 1_000_000
    first = start(filesystem, now_ms)
    copies = [filesystem.after_crash() for _ in range(8)]
    later = [start(copy, 0) for copy in copies]
    assert min(later) > first
    assert len(set(later)) > 1, "a step at random: copies go on apart"


def test_an_epoch_is_above_all_that_the_logs_know_and_durable() -> None:
    filesystem = SimulatedFileSystem()
    epoch = start(filesystem, 0, highest=77)
    assert epoch > 77
    assert start(filesystem.after_crash(), 0) > epoch


def test_topics_have_the_epoch_of_the_start_but_for_those_that_are_made_anew() -> None:
    epochs = LeaderEpochs(SimulatedFileSystem(), PATH, lambda: FIRST_TICK_MS)
    given = [epochs.start(0), epochs.of_topic(False), epochs.of_topic(True), epochs.of_topic(True)]
    assert given[0] == given[1] < given[2] < given[3]


def test_when_there_is_no_higher_one_it_is_said() -> None:
    with pytest.raises(DataFolderError, match="no leader epoch above those that were given"):
        start(SimulatedFileSystem(), FIRST_TICK_MS, highest=LARGEST_EPOCH)
