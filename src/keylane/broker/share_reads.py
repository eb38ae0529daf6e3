"""What a member of a share group is given: records of the logs that its partitions have free, and that are its from
then on.

A fetch that finds nothing free waits: for new records, for records that others give back or have had for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.reads import LogRead, Wanted
from keylane.coordinator.share_groups.protocol import EARLIEST
from keylane.coordinator.share_groups.records import Place
from keylane.coordinator.share_service import Read
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.batches import batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.broker.node import Node
    from keylane.broker.share_sessions import Member, Partition
    from keylane.coordinator.share_groups.partition import Acquired, SharePartition
    from keylane.coordinator.share_groups.protocol import ShareSettings
    from keylane.coordinator.share_service import ShareService
    from keylane.storage.log_view import LogView
    from keylane.wire.batches import BatchHeader

PARTITION_BYTES = 1_048_576
"""What is read of one log at a time: a fetch is bounded by records, and more would be read in vain."""


class ShareRequest(NamedTuple):
    """How much a fetch takes at most, and how long it waits."""

    max_records: int
    max_bytes: int
    wait_s: float
    is_strict: bool
    """Never more than `max_records`; else the last batch is given whole."""


class Shared(NamedTuple):
    """What a member is given of one partition."""

    code: int = codes.NONE
    records: bytes = b""
    acquired: Sequence[Acquired] = ()


NOTHING = Shared()


class ShareFetch:
    """One fetch of one member."""

    def __init__(self, node: Node, share: ShareService, member: Member, request: ShareRequest) -> None:
        self._node = node
        self._share = share
        self._member = member
        self._request = request
        self._settings: ShareSettings = share.groups.settings_of(member.group)

    async def run(self, partitions: Sequence[Partition]) -> dict[Partition, Shared]:
        """Of those that have records or an error; waits for the first, if there is none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request.wait_s
        woken = asyncio.Event()
        with self._listening(partitions, woken):
            while True:
                woken.clear()
                found = await self._try(partitions)
                if found or not partitions or loop.time() >= deadline:
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

    async def _try(self, partitions: Sequence[Partition]) -> dict[Partition, Shared]:
        found: dict[Partition, Shared] = {}
        records, size = self._request.max_records, self._request.max_bytes
        for partition in partitions:
            if records <= 0 or size <= 0:
                break
            shared = await self._read(partition, records, size)
            if shared is not NOTHING:
                found[partition] = shared
            records -= sum(one.last - one.first + 1 for one in shared.acquired)
            size -= len(shared.records)
        return found

    async def _read(self, partition: Partition, most_records: int, most_bytes: int) -> Shared:
        place = Place(self._member.group, *partition)
        log = self._log(partition)
        if log is None or log.is_closed:
            return Shared(codes.UNKNOWN_TOPIC_OR_PARTITION)
        error = self._share.check(place)
        try:
            if error == codes.NONE and self._share.partition(place) is None:
                error = await self._share.begin(place, await self._start(log))
        except StorageError as failure:
            error = failure.code
        found = None if error != codes.NONE else self._share.partition(place)
        if found is None:
            return Shared(error) if error != codes.NONE else NOTHING
        at = -1
        while found.has_room(self._settings.limits) and at < found.next_offset:  # it goes on behind what is gone
            found.begin_at(log.log_start_offset)
            at = found.next_offset
            shared = await self._acquire(place, found, log, at, (most_records, most_bytes))
            if shared is not NOTHING:
                return shared
        return NOTHING

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

    async def _acquire(
        self, place: Place, partition: SharePartition, log: LogView, at: int, most: tuple[int, int]
    ) -> Shared:
        committed_only = self._settings.is_committed_only
        most_records, most_bytes = most[0], min(most[1], PARTITION_BYTES)
        read = LogRead(log, place.partition, Wanted(at, most_bytes), committed_only=committed_only)
        await read.locate()
        if read.code == codes.OFFSET_OUT_OF_RANGE:
            return NOTHING  # someone set the group's place beyond the end of the log
        if read.code != codes.NONE:
            return Shared(read.code)
        if not read.available:
            return NOTHING
        fetched = await read.read(most_bytes, at_least_one=True)
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
