"""Random histories of a compacted log, with restarts, against its model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylane.storage.compacting import Compactor
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log, recover_log, restore_log
from kit.compacted_log import TRANSACTIONAL, CompactedLogModel
from kit.examples import examples
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "/log"
OPTIONS = LogOptions(segment_bytes=500, index_interval_bytes=128)
RETENTION_MS = 1_000
PRODUCERS = (-1, -1, 7, *TRANSACTIONAL)

keys = st.sampled_from([b"a", b"b", b"c", b"a key that is longer than its digest"])
rows = st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(PRODUCERS), rows),
    st.tuples(st.just("write"), st.sampled_from(PRODUCERS), rows),
    st.tuples(st.just("end"), st.sampled_from(TRANSACTIONAL), st.booleans()),
    st.tuples(st.just("compact"), st.integers(0, 1_500), st.none()),
    st.tuples(st.just("restart"), st.booleans(), st.none()),
)


async def restart(filesystem: SimulatedFileSystem, log: PartitionLog, *, clean: bool) -> PartitionLog:
    await log.close()
    if clean:
        restored = restore_log(filesystem, FOLDER, OPTIONS, InlineExecutor(), log.snapshot())
        assert restored is not None
        for offset in range(restored.log_start_offset, restored.high_watermark):
            await restored.prepare(offset)
        return restored
    return recover_log(filesystem, FOLDER, OPTIONS, InlineExecutor(), 0)


async def run(history: Sequence[tuple[object, ...]]) -> None:
    filesystem = SimulatedFileSystem()
    log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
    compactor = Compactor(filesystem, InlineExecutor())
    model = CompactedLogModel()
    for what, one, other in history:
        if what == "write":
            await model.write(log, one, other)  # type: ignore[arg-type]
        elif what == "end":
            await model.end(log, one, committed=other)  # type: ignore[arg-type]
        elif what == "compact":
            model.now_ms += one  # type: ignore[operator]
            await compactor.compact(log, model.now_ms, 0.0, RETENTION_MS)
            model.check(log)
        else:
            log = await restart(filesystem, log, clean=bool(one))
            model.check(log)
    for producer in TRANSACTIONAL:
        await model.end(log, producer, committed=producer == TRANSACTIONAL[0])
    model.check(log)
    await log.close()


ABORTED_LAST: list[tuple[object, ...]] = [
    ("write", -1, [(b"a", False)]),
    ("write", TRANSACTIONAL[0], [(b"a", False)]),
    ("end", TRANSACTIONAL[0], False),
    *[("write", -1, [(b"b", False)] * 4)] * 6,
    ("compact", 0, None),
]
"""The last record of a key is aborted, and the one before it stays."""


@given(st.lists(steps, min_size=20, max_size=60))
@example(ABORTED_LAST)
@settings(max_examples=examples(60), deadline=None)
def test_readers_see_what_the_model_says(history: list[tuple[object, ...]]) -> None:
    asyncio.run(run(history))
