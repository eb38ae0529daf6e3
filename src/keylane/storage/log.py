"""A partition's log: record batches in segments, appended through one group commit; reading is `log_view`'s.

The idea that keeps it honest: an append assigns offsets at once but enters the index, and raises the high watermark,
only when its bytes are synced. So what readers see is exactly what a restart would find. The same holds for markers: a
transaction is decided when its marker is durable.

What was appended and finds no room on the disk is taken back, from the file and from what is known of producers and
transactions, as if it had never come. A roll that was done before it stays, and what that made durable.

Thread safety: all methods belong to the event loop's thread. Writing, rolling and syncing run in the executor, one
round at a time.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.storage.compaction import Decided, Plan, Written
from keylane.storage.facts import FACTS_FILE, encode_facts
from keylane.storage.filesystem import DurableFiles, NoRoomError, StorageError
from keylane.storage.log_view import LogView
from keylane.storage.partition_transactions import Ended
from keylane.storage.segment import Segment, segment_name
from keylane.storage.shared_sync import Round, SharedSync
from keylane.telling import logger_of
from keylane.wire.batches import PREFIX_SIZE, BatchHeader, read_header
from keylane.wire.control import encode_marker

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from keylane.storage.facts import LogFacts
    from keylane.storage.filesystem import FileSystem
    from keylane.storage.partition_transactions import PartitionTransactions
    from keylane.storage.producers import ProducerDescription, Producers, ProducerState

logger = logger_of("keylane.storage")

PLACED_PREFIX = struct.Struct(">qii")
"""Base offset, length, leader epoch: what an append writes anew."""
NO_LIMIT = -1


class LogOptions(NamedTuple):
    """When a segment of one log is full."""

    segment_bytes: int
    index_interval_bytes: int
    segment_ms: int = 2**63 - 1
    """Time between its first record and one that goes into the next segment."""


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    durable: Round | None
    """Resolves when the batch is durable; None when it is already (a repeated batch)."""
    append_time_ms: int = -1
    """The time that its records were given; -1 when they keep their own."""


class _Unsynced(NamedTuple):
    """A batch that was appended and is not durable yet."""

    segment: Segment
    position: int
    length: int
    base_offset: int
    max_timestamp: int
    ended: Ended | None
    """The transaction that it ends."""
    producer_id: int
    before: ProducerState | None
    """What was remembered of its producer without it."""


class _Writer:
    """The active segment's file, as the executor sees it."""

    def __init__(self, filesystem: FileSystem, folder: str, segment: Segment, facts: LogFacts) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._facts = facts
        self._segment = segment
        self.epochs = facts.epochs
        """Noted before the first batch of the latest is written."""
        self._next: Segment | None = None
        """That a roll is about to go on in."""
        self.synced = (segment, segment.size)
        """All that is durable ends here. For the loop, while no round is under way."""

    @property
    def path(self) -> str:
        return self._segment.path

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._facts.epochs is not self.epochs:
            self._facts.note(epochs=self.epochs)
        self._segment.open(self._filesystem).write(data)

    def sync(self) -> None:
        file = self._segment.open(self._filesystem)
        file.sync()
        self.synced = (self._segment, file.size)

    def roll(self, segment: Segment) -> None:
        """Go on in a new segment. The old one is durable before the new one exists: only the last may ever be torn."""
        self.sync()
        self._next = segment
        segment.open(self._filesystem)
        self._filesystem.sync_dir(self._folder)
        self._facts.note(last=segment.base_offset)
        self._segment, self._next = segment, None
        self.synced = (segment, 0)

    def cut(self) -> None:
        if self._next is not None:
            self._next.close()
            if self._filesystem.exists(self._next.path):
                self._filesystem.remove(self._next.path)
                self._filesystem.sync_dir(self._folder)
            self._next = None
        segment, size = self.synced
        file = segment.open(self._filesystem)
        if file.size > size:
            file.truncate(size)
            file.sync()


class PartitionLog(LogView):
    """The log of one partition: what is read of it, and here what changes it, which is appending, removing old segments
    and putting compacted ones in their place. Opened by the functions of `keylane.storage.open_log`."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        options: LogOptions,
        executor: Executor,
        *,
        segments: list[Segment],
        facts: LogFacts,
        producers: Producers,
        transactions: PartitionTransactions,
        next_offset: int,
        clean_offset: int = 0,
    ) -> None:
        super().__init__(filesystem, folder, executor, segments, transactions, next_offset, facts)
        self.options = options
        """May be replaced at any time."""
        self.clean_offset = clean_offset
        """Segments below were compacted; a crash forgets it, and they are once more."""
        self._active = segments[-1]
        self._producers = producers
        self._facts = facts
        self._unsynced: deque[_Unsynced] = deque()
        self._synced_segment = self._active
        """Segments before this one are never appended to again; those behind it may never be made."""
        self._writer = _Writer(filesystem, folder, self._active, facts)
        self._sync = SharedSync(self._writer, executor, on_synced=self._on_synced, on_failed=self._on_failed)
        self._appended = self._active.size
        """Bytes in the active segment, synced or not."""
        self._doomed: deque[Segment] = deque()
        """Segments that left the log and whose files are still there, in order."""
        self._trimming: asyncio.Lock | None = None
        """Made when it is first needed: most logs of many never do."""

    def begin_epoch(self, leader_epoch: int) -> None:
        """What is appended from now on is of this leader epoch; nothing was since the log was opened."""
        epochs = self._facts.epochs.starting_at(self._segments[0].base_offset)
        self.epochs = self._writer.epochs = epochs.begin(leader_epoch, self.next_offset)
        for segment in self._segments:
            segment.epochs = self.epochs

    def producers(self) -> list[ProducerDescription]:
        """The idempotent and transactional producers that the log remembers."""
        return self._producers.described()

    def epoch_of(self, producer_id: int) -> int | None:
        """The last epoch in which a producer has appended here, or a transaction of it was ended; None when it is not
        remembered."""
        state = self._producers.state_of(producer_id)
        return None if state is None else state.epoch

    @property
    def highest_producer_id(self) -> int:
        """Of all producers that have appended, and are not known to be gone with their records; -1 for none."""
        return self._producers.highest_id

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes no more appends."""
        return self._sync.failure

    def append(self, batch: bytes, header: BatchHeader, now_ms: int) -> Appended:
        """Queue a checked batch at the end of the log, giving it its offsets.

        A batch that an idempotent producer repeats is not appended: the answer is where it went the first time. Raises
        `StorageError` once the log has failed, `OutOfOrderSequenceError`, `ProducerEpochError` and
        `TransactionStateError`.
        """
        if self._sync.failure is not None:
            raise self._sync.failure
        if header.producer_id < 0:
            return self._queue(batch, header)
        repeated = self._producers.check(header)
        if repeated is not None:
            assert repeated.last_offset < self.next_offset, (self.folder, repeated, self.next_offset)
            is_durable = repeated.last_offset < self.high_watermark
            return Appended(repeated.base_offset, None if is_durable else self._sync.pending)
        base_offset = self.next_offset
        self._make_room(header)
        before = self._producers.state_of(header.producer_id)
        if self._producers.record(header, base_offset, now_ms):
            self._transactions.begin(base_offset, self._active.start + self._appended)
        return self._queue(batch, header, before)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, committed: bool, now_ms: int) -> Round:
        """Append the marker that ends a producer's transaction here (there need be none).

        Raises `StorageError` once the log has failed, and `ProducerEpochError` when a later epoch has written.
        """
        if self._sync.failure is not None:
            raise self._sync.failure
        marker = encode_marker(producer_id, producer_epoch, committed=committed, timestamp_ms=now_ms)
        header = read_header(marker)
        before = self._producers.state_of(producer_id)
        start = self._producers.end_transaction(header, now_ms)
        ended = None if start is None else Ended(producer_id, start, self.next_offset, not committed)
        round_ = self._queue(marker, header, before, ended).durable
        assert round_ is not None
        return round_

    def _make_room(self, header: BatchHeader) -> None:
        if not self._appended:
            self._active.first_timestamp = header.max_timestamp
            return
        age_ms = header.max_timestamp - self._active.first_timestamp if self._active.first_timestamp >= 0 else 0
        if self._appended + header.length > self.options.segment_bytes or age_ms > self.options.segment_ms:
            self._roll(self.next_offset)
            self._active.first_timestamp = header.max_timestamp

    def _queue(
        self, batch: bytes, header: BatchHeader, before: ProducerState | None = None, ended: Ended | None = None
    ) -> Appended:
        self._make_room(header)
        base_offset = self.next_offset
        length = header.length
        self._unsynced.append(
            _Unsynced(
                self._active,
                self._appended,
                length,
                base_offset,
                header.max_timestamp,
                ended,
                header.producer_id,
                before,
            )
        )
        self._appended += length
        self.next_offset = base_offset + header.last_offset_delta + 1
        # Offset and leader epoch lie before what the checksum covers; the rest is written as it came, uncopied.
        prefix = PLACED_PREFIX.pack(base_offset, length - PREFIX_SIZE, self.leader_epoch)
        rest = memoryview(batch)[PLACED_PREFIX.size :]
        return Appended(base_offset, self._sync.append_all((prefix, rest), (self.next_offset, self._active)))

    async def delete_before(self, offset: int) -> None:
        """Let the log start here: durable on return, files of whole segments are removed. Not above the high watermark.

        Raises `StorageError`: then the log starts where it did, until a restart at least.
        """
        assert offset <= self.high_watermark, (offset, self.high_watermark)
        async with self.trimming():
            if offset <= self.log_start_offset or self.is_closed:
                return
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._executor, functools.partial(self._facts.note, start=offset))
            except OSError as error:
                raise StorageError(
                    f"{self.folder}/{FACTS_FILE}: {error}; the log still starts at {self.log_start_offset}"
                ) from error
            self._start_at(offset)
            await self._remove_expired(0, NO_LIMIT, NO_LIMIT)

    async def remove_expired(self, now_ms: int, retention_ms: int, retention_bytes: int) -> None:
        """Remove the oldest segments: those below the log's start, those whose latest record is older than
        `retention_ms`, and those without which `retention_bytes` are left. -1: no limit.

        What an undecided transaction has begun in stays. A segment without timestamps does not grow old. What cannot be
        removed is logged, and tried again the next time.
        """
        async with self.trimming():
            if not self.is_closed and self.failure is None:
                await self._remove_expired(now_ms, retention_ms, retention_bytes)

    async def _remove_expired(self, now_ms: int, retention_ms: int, retention_bytes: int) -> None:
        oldest_ms = now_ms - retention_ms if retention_ms >= 0 else 0
        size = self._active.start + self._appended - self._segments[0].start
        excess = size - retention_bytes if retention_bytes >= 0 else -1
        count = 0
        for number, segment in enumerate(self._segments):
            is_last = segment is self._active
            is_growing = segment is self._synced_segment and self._unsynced
            if not segment.size or segment.end > self.stable_position or is_growing:
                break
            is_below = not is_last and self._segments[number + 1].base_offset <= self.log_start_offset
            excess -= segment.size
            if not (is_below or excess >= 0 or 0 <= segment.max_timestamp < oldest_ms):
                break
            count += 1
        if not count and not self._doomed:
            return
        try:
            if count == len(self._segments):
                count -= await self._left_by_roll()
            await self._sync.flush()  # the segment that stays is durable, and the writer has left the others
            await self._drop(count)
        except (OSError, StorageError) as error:
            logger.error("%s: old segments are not removed: %s", self.folder, error)  # noqa: TRY400 - it says it all

    async def _left_by_roll(self) -> int:
        """Go on in a new segment, so that all others can be removed; how many have to stay, for want of room for it."""
        self._roll(self.next_offset)
        try:
            await self._sync.flush()
        except NoRoomError:
            return 1
        return 0

    async def _drop(self, count: int) -> None:
        """Take the first segments out of the log, and remove their files in order, so that a crash leaves no gap."""
        dropped, self._segments = self._segments[:count], self._segments[count:]
        for segment in dropped:
            segment.retire()
        self._doomed += dropped
        self._start_at(self._segments[0].base_offset)
        await self.remove_doomed()

    def _remove_files(self, start_offset: int) -> None:
        self._facts.note(start=start_offset)
        while self._doomed:
            path = self._doomed[0].path
            if self._filesystem.exists(path):
                self._filesystem.remove(path)
            self._filesystem.sync_dir(self.folder)
            self._doomed.popleft()

    def _start_at(self, offset: int) -> None:
        self.version += 1
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._transactions.forget_before(offset)
            self._tell_of_no_bytes()

    def _tell_of_no_bytes(self) -> None:
        for listener in [*self.listeners, *self.stable_listeners]:
            listener(0)

    def durable_files(self) -> DurableFiles:
        """What a crash at this moment would certainly leave. While `trimming` is held no file of it goes away."""
        last = self._synced_segment
        segments = self._segments[: self._segments.index(last) + 1]
        facts = encode_facts(self.log_start_offset, last.base_offset, self.epochs)
        return DurableFiles([(one.path, one.size) for one in segments], {f"{self.folder}/{FACTS_FILE}": facts})

    def trimming(self) -> asyncio.Lock:
        """Held while segments are removed or replaced."""
        if self._trimming is None:
            self._trimming = asyncio.Lock()
        return self._trimming

    def decided_segments(self) -> list[Segment]:
        """Those that nothing is appended to, and whose transactions are all decided, in order; their files are open."""
        found = []
        for segment in self._segments[: self._segments.index(self._synced_segment)]:
            if segment.end > self.stable_position:
                break
            segment.open(self._filesystem)
            found.append(segment)
        return found

    def end_of(self, segment: Segment) -> int:
        """The offset behind a segment that is not the active one."""
        return self._segments[self._segments.index(segment) + 1].base_offset

    def compaction_plan(self, now_ms: int, delete_retention_ms: int, must_stop: Callable[[], bool]) -> Plan:
        """What a compaction that begins now has to know."""
        decided = Decided(self._transactions.every_aborted())
        return Plan(now_ms, delete_retention_ms, decided, self._producers.last_batches(), must_stop)

    def replace(self, old: list[Segment], written: Written) -> None:
        """Segments that follow one another are one now, whose file has the first one's name already. `trimming` is
        held."""
        at = self._segments.index(old[0])
        self._segments[at : at + len(old)] = [written.segment]
        for segment in old:
            segment.retire()
        self._doomed += old[1:]
        self._transactions.forget_markers(written.removed_markers)
        self.version += 1

    async def remove_doomed(self) -> None:
        """Remove the files of segments that left the log. `trimming` is held. Raises `OSError`."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._remove_files, self.log_start_offset)

    def expire_producers(self, before_ms: int) -> None:
        """Forget idempotent producers that have not appended since."""
        self._producers.expire(before_ms)

    async def close(self) -> None:
        """Wait for what is being synced, then close the files. Waiting fetches are woken."""
        self.is_closed = True
        self._tell_of_no_bytes()
        async with self.trimming():
            await self._sync.close()
            for segment in self._segments:
                segment.close()

    def snapshot(self) -> dict[str, Any]:
        """What a clean start needs instead of reading the log; only for a log that is idle."""
        assert self._sync.is_idle
        return {
            "next_offset": self.next_offset,
            "clean_offset": self.clean_offset,
            "segments": [
                [s.base_offset, s.start, s.size, s.max_timestamp, s.max_timestamp_position, s.first_timestamp]
                for s in self._segments
            ],
            "producers": self._producers.snapshot(),
            "transactions": self._transactions.snapshot(),
        }

    def _roll(self, base_offset: int) -> None:
        path = f"{self.folder}/{segment_name(base_offset)}"
        start = self._active.start + self._appended
        segment = Segment(path, base_offset, start, self.options.index_interval_bytes)
        segment.epochs = self.epochs
        self._segments.append(segment)
        self._active = segment
        self._appended = 0
        self._sync.run(lambda: self._writer.roll(segment), (self.next_offset, segment))

    def _on_failed(self, error: StorageError) -> None:
        """What was not written is taken back; for good, or until there is room."""
        if not isinstance(error, NoRoomError):
            logger.critical("%s; records for it are refused from here on", error)
            return
        segment, size = self._writer.synced
        end = segment.start + size
        written_to = next(
            (each.base_offset for each in self._unsynced if each.segment.start + each.position + each.length > end),
            self.next_offset,
        )
        if written_to > self.high_watermark:  # a roll made it durable
            self._on_synced((written_to, segment))
        assert segment.size == size, (segment.path, segment.size, size)
        while self._unsynced:
            lost = self._unsynced.pop()
            if lost.producer_id >= 0:
                self._producers.put_back(lost.producer_id, lost.before)
        self._transactions.cut(written_to)
        self.next_offset = written_to
        del self._segments[self._segments.index(segment) + 1 :]
        self._synced_segment = self._active = segment
        self._appended = size

    def _on_synced(self, mark: tuple[int, Segment]) -> None:
        next_offset, self._synced_segment = mark
        before, stable_before = self.synced_position, self.stable_position
        unsynced = self._unsynced
        while unsynced and unsynced[0].base_offset < next_offset:
            batch = unsynced.popleft()
            segment = batch.segment
            segment.note(batch.position, batch.base_offset, batch.max_timestamp, batch.length)
            self.synced_position = segment.start + segment.size
            if batch.ended is not None:
                self._transactions.end(batch.ended)
        self.high_watermark = next_offset
        if self.listeners:
            for listener in list(self.listeners):
                listener(self.synced_position - before)
        new_bytes = self.stable_position - stable_before
        if self.stable_listeners and new_bytes:
            for listener in list(self.stable_listeners):
                listener(new_bytes)
