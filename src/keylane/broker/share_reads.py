"""What a member of a share group is given: records of the logs that its partitions have free, and that are its from
then on.

A fetch that finds nothing free waits: for new records, for records that others give back or have had for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.reads import FetchedPartition, LogRead, Wanted
from keylane.coordinator.share_groups.protocol import EARLIEST
from keylane.coordinator.share_groups.records import Place
from keylane.coordinator.share_service import Read
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.batches import batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.broker.memory import AnswerRoom
    from keylane.broker.node import Node
    from keylane.broker.share_sessions import Member, Partition
    from keylane.coordinator.share_groups.partition import Acquired, SharePartition
    from keylane.coordinator.share_groups.protocol import ShareSettings
    from keylane.coordinator.share_service import ShareService
    from keylane.storage.log_view import LogView
    from keylane.wire.batches import BatchHeader

PARTITION_BYTES = 1_048_576
"""What is read of one log at a time, unless a fetch waits for more: it is bounded by records, and more would be read in
vain."""


class ShareRequest(NamedTuple):
    """How much a fetch takes at most, and how long it waits."""

    max_records: int
    batch_size: int
    """Records after which a run of neighbours ends with their batch, unless `is_strict`."""
    min_bytes: int
    """What is to be read for it before an answer leaves, unless its time is over."""
    max_bytes: int
    """Each partition of which something may be given has an equal share, and the first one batch at least."""
    wait_s: float
    is_strict: bool
    """Never more than `max_records`; else the last batch is given whole."""


class Shared(NamedTuple):
    """What a member is given of one partition."""

    code: int = codes.NONE
    records: bytes = b""
    acquired: Sequence[Acquired] = ()


NOTHING = Shared()


class _Free(NamedTuple):
    """A partition of which something may be given, and a read of its log from there on."""

    place: Place
    partition: SharePartition
    at: int
    read: LogRead


class ShareFetch:
    """One fetch of one member."""

    def __init__(
        self, node: Node, share: ShareService, member: Member, request: ShareRequest, room: AnswerRoom
    ) -> None:
        """`room`: what the answer's bytes are asked of before they are read."""
        self._node = node
        self._room = room
        self._share = share
        self._member = member
        self._request = request
        self._settings: ShareSettings = share.groups.settings_of(member.group)

    async def run(self, partitions: Sequence[Partition]) -> dict[Partition, Shared]:
        """Of those that have records or an error; waits until there is enough."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request.wait_s
        woken = asyncio.Event()
        with self._listening(partitions, woken):
            while True:
                woken.clear()
                is_late = not partitions or loop.time() >= deadline
                found = await self._try(partitions, 0 if is_late else self._request.min_bytes)
                if found is not None and (found or is_late or self._request.min_bytes <= 0):
                    return found
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await woken.wait()

    @contextlib.contextmanager
    def _listening(self, partitions: Sequence[Partition], woken: asyncio.Event) -> Iterator[None]:
        def wake(_: int = 0) -> None:
            woken.set()

        logs = [log for log in map(self._log, partitions) if log is not None]
        of_logs = [log.stable_listeners if self._settings.is_committed_only else log.listeners for log in logs]
        places = [Place(self._member.group, *one) for one in partitions]
        for listeners in of_logs:
            listeners.add(wake)
        for place in places:
            self._share.listen(place, wake)
        try:
            yield
        finally:
            for listeners in of_logs:
                listeners.discard(wake)
            for place in places:
                self._share.forget(place, wake)

    def _log(self, partition: Partition) -> LogView | None:
        topic_id, index = partition
        name = self._node.topics.name_of(topic_id)
        return None if name is None else self._node.topics.log(name, index)

    async def _try(self, partitions: Sequence[Partition], least_bytes: int) -> dict[Partition, Shared] | None:
        """None: there is not enough yet."""
        found: dict[Partition, Shared] = {}
        free: dict[Partition, _Free] = {}
        for partition in partitions:
            one = await self._look(partition)
            if isinstance(one, _Free):
                free[partition] = one
            elif one != codes.NONE:
                found[partition] = Shared(one)
        each = self._request.max_bytes // max(len(free), 1)
        there = sum(min(one.read.available, each) for one in free.values())
        if not found and least_bytes > 0 and there < least_bytes:
            return None
        given = await self._room.take(there)
        records, size = self._request.max_records, given
        for partition, one in free.items():
            if records <= 0:
                break
            # Only the first to give anything may give more than its share: a whole batch.
            is_first = size == given
            shared = await self._take(one, records, min(each, size), at_least_one=is_first)
            if shared is not NOTHING:
                found[partition] = shared
            records -= sum(run.last - run.first + 1 for run in shared.acquired)
            size = max(size - len(shared.records), 0)
        self._room.settle(sum(len(shared.records) for shared in found.values()))
        return found

    async def _look(self, partition: Partition) -> _Free | int:
        """An error code, or NONE where nothing may be given now."""
        place = Place(self._member.group, *partition)
        if (error := self._share.check(place)) != codes.NONE:
            return error
        log = self._log(partition)
        if log is None or log.is_closed:
            return codes.UNKNOWN_TOPIC_OR_PARTITION
        try:
            if self._share.partition(place) is None:
                error = await self._share.begin(place, await self._start(log))
        except StorageError as failure:
            error = failure.code
        found = None if error != codes.NONE else self._share.partition(place)
        if found is None or not found.has_room(self._settings.limits):
            return error
        found.begin_at(log.log_start_offset)
        return await self._located(place, found, log)

    async def _located(self, place: Place, partition: SharePartition, log: LogView) -> _Free | int:
        at = partition.next_offset
        wanted = Wanted(at, max(PARTITION_BYTES, self._request.min_bytes))
        read = LogRead(log, place.partition, wanted, committed_only=self._settings.is_committed_only)
        if (located := read.locate()) is not None:
            await located
        if read.code == codes.OFFSET_OUT_OF_RANGE:
            return codes.NONE  # someone set the group's place beyond the end of the log
        return _Free(place, partition, at, read) if read.code == codes.NONE else read.code

    async def _take(self, free: _Free, most_records: int, most_bytes: int, *, at_least_one: bool) -> Shared:
        while True:
            shared = await self._acquire(free, most_records, most_bytes, at_least_one=at_least_one)
            place, partition, at, read = free
            has_more = partition.has_room(self._settings.limits) and at < partition.next_offset
            if shared is not NOTHING or not has_more or read.log is None:
                return shared
            more = await self._located(place, partition, read.log)  # it goes on behind what is gone
            if not isinstance(more, _Free):
                return NOTHING if more == codes.NONE else Shared(more)
            free = more

    async def _start(self, log: LogView) -> int:
        """Where a group begins in a partition that it has not read."""
        reset = self._settings.reset
        if reset == EARLIEST:
            return log.log_start_offset
        if isinstance(reset, int):
            found = await log.offset_for_timestamp(self._node.clock() - reset)
            if found is not None:
                return found.offset
        return log.high_watermark

    async def _acquire(self, free: _Free, most_records: int, most_bytes: int, *, at_least_one: bool) -> Shared:
        place, partition, at, read = free
        if not read.available:
            return NOTHING
        fetched = read.read(most_bytes, at_least_one=at_least_one)
        if not isinstance(fetched, FetchedPartition):
            fetched = await fetched
        if fetched.error_code != codes.NONE:
            return Shared(fetched.error_code)
        whole = [*batches(fetched.records)]
        if not whole:
            return NOTHING
        given = _given([header for _, header in whole], fetched.aborted or ())
        acquired = self._share.acquire(
            place,
            partition,
            self._member.member_id,
            Read(at, whole[-1][1].next_offset, given),
            most_records,
            is_strict=self._request.is_strict,
        )
        if not acquired:
            return NOTHING
        first, last = acquired[0].first, acquired[-1].last
        spans = [
            (position, position + header.length)
            for position, header in whole
            if header.next_offset > first and header.base_offset <= last
        ]
        if not self._request.is_strict:
            acquired = _split(acquired, [header.base_offset for _, header in whole], self._request.batch_size)
        return Shared(codes.NONE, fetched.records[spans[0][0] : spans[-1][1]], acquired)


def _given(headers: Sequence[BatchHeader], aborted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last offset of the batches that have records for members: not of the ends of transactions, nor (with
    `aborted`: producer ids and first offsets) those of aborted ones."""
    found = []
    begun = sorted(aborted, key=lambda one: one[1])
    open_ids: set[int] = set()
    for header in headers:
        while begun and begun[0][1] <= header.base_offset:
            open_ids.add(begun.pop(0)[0])
        if header.is_control:
            open_ids.discard(header.producer_id)
        elif header.record_count and not (header.is_transactional and header.producer_id in open_ids):
            found.append((header.base_offset, header.next_offset - 1))
    return found


def _split(acquired: Sequence[Acquired], begins: Sequence[int], size: int) -> list[Acquired]:
    """Runs of neighbours, each ended before the first batch that begins when it has so many records."""
    found = []
    for run in acquired:
        first = run.first
        for begin in begins:
            if first < begin <= run.last and begin - first >= size:
                found.append(run._replace(first=first, last=begin - 1))
                first = begin
        found.append(run._replace(first=first))
    return found
