"""What committed offsets cost: memory an entry, a snapshot's size, its load, and the replay of a tail.

`python -m offsets.size GROUPS TOPICS PARTITIONS` measures one shape in this process and prints a line of JSON; the
bench runs it as a child for each shape, so that no shape finds memory that another one left.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.config import BrokerConfig
from keylane.broker.run import collect_less_often
from keylane.coordinator.formats import TopicCommit, encode_commit, partition_for
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.journal import FileJournal
from keylane.coordinator.journal.snapshots import Snapshots
from keylane.storage.filesystem import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMITS_A_SYNC = 5_000
NOW_MS = 1_700_000_000_000
OPTIONS = BrokerConfig()
PARTITIONS = OPTIONS.offsets_topic_num_partitions


class Shape(NamedTuple):
    groups: int
    topics: int
    partitions: int
    times: int = 1
    """How often each group commits all of it; only in a tail."""

    @property
    def entries(self) -> int:
        return self.groups * self.topics * self.partitions

    def commits(self) -> Iterator[tuple[str, list[TopicCommit]]]:
        """A commit of everything, by group."""
        topics = [f"topic-{number:04d}" for number in range(self.topics)]
        numbers = list(range(self.partitions))
        for turn in range(self.groups * self.times):
            group = turn % self.groups
            offsets = [(1 << 40) + turn] * self.partitions
            yield (
                f"consumer-group-{group:08d}",
                [TopicCommit(topic, numbers, offsets, [3] * self.partitions, None) for topic in topics],
            )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(image: Image, shape: Shape) -> None:
    ends = [0] * PARTITIONS
    for group, topics in shape.commits():
        partition = partition_for(group, PARTITIONS)
        image.store.apply(group, topics, ends[partition], NOW_MS)
        ends[partition] += shape.topics * shape.partitions


async def measure(shape: Shape, folder: str) -> dict[str, float]:
    """Memory after filling and after loading (in an own process each time it matters), and the time of both."""
    image = Image()
    gc.collect()
    before = resident_bytes()
    start = time.perf_counter()
    fill(image, shape)
    filled_s = time.perf_counter() - start
    grown = resident_bytes() - before
    assert len(image.store) == shape.entries
    with ThreadPoolExecutor(1) as executor:
        snapshots = Snapshots(OsFileSystem(), folder, executor, partitions=PARTITIONS, image=image)
        longest = asyncio.create_task(longest_stall())
        start = time.perf_counter()
        await snapshots.write(1, [1 << 40] * (PARTITIONS + 1))
        written_s = time.perf_counter() - start
        longest.cancel()
        snapshots.close()
    return {
        "bytes_an_entry": grown / shape.entries,
        "applied_s": filled_s,
        "snapshot_written_s": written_s,
        "snapshot_bytes": snapshots.size,
        "longest_stall_ms": Stall.longest_s * 1e3,
    }


class Stall:
    longest_s = 0.0


async def longest_stall() -> None:
    """How long the event loop is held up at most while the snapshot is written."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        Stall.longest_s = max(Stall.longest_s, time.perf_counter() - start - 0.001)


async def load(folder: str) -> dict[str, float]:
    """Load what `measure` left, as a start does."""
    image = Image()
    gc.collect()
    before = resident_bytes()
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as executor:
        snapshots = Snapshots(OsFileSystem(), folder, executor, partitions=PARTITIONS, image=image)
        await snapshots.load(1)
        snapshots.close()
    loaded_s = time.perf_counter() - start
    return {
        "loaded_s": loaded_s,
        "loaded_bytes_an_entry": (resident_bytes() - before) / len(image.store),
        "entries": len(image.store),
    }


async def tail(shape: Shape, folder: str) -> dict[str, float]:
    """Write a journal of these commits, and replay it as a start does."""
    options = BrokerConfig(offsets_topic_segment_bytes=2**31 - 1)
    with ThreadPoolExecutor(1) as executor:

        def journal() -> FileJournal:
            filesystem, image = OsFileSystem(), Image()
            return FileJournal(
                filesystem, folder, executor, executor, image=image, options=options, clock=lambda: NOW_MS
            )

        writer = journal()
        await writer.load()
        for number, (group, topics) in enumerate(shape.commits()):
            writer.append(partition_for(group, PARTITIONS), encode_commit(group, topics, NOW_MS), lambda *_: None)
            if number % COMMITS_A_SYNC == 0:
                await writer.flush()
        await writer.flush()
        await writer.close()
        reader = journal()
        start, used_s = time.perf_counter(), time.process_time()
        await reader.load()
        replayed_s, used_s = time.perf_counter() - start, time.process_time() - used_s
        await reader.close()
    entries = shape.entries * shape.times
    return {
        "replayed_s": replayed_s,
        "entries_per_s": entries / replayed_s,
        "entries_per_cpu_s": entries / used_s,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    what, folder, *numbers = sys.argv[1:]
    collect_less_often()  # as the broker does
    if what == "load":
        found = asyncio.run(load(folder))
    else:
        shape = Shape(*map(int, numbers))
        with tempfile.TemporaryDirectory(dir=folder) as own:
            found = asyncio.run(measure(shape, folder) if what == "measure" else tail(shape, own))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
