"""What a fetch reads of one partition: of a topic's log, or of `__consumer_offsets`.

Both kinds go through the same three steps: `locate` (once), `available` (may be asked again after a wait), `read`. Most
partitions of a large fetch have nothing new, so a step that waits for nothing is a plain call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from keylane.broker.offsets_topic import OffsetsTopic
from keylane.errors import DataFolderError, PeerError
from keylane.storage.recovery import DamagedBatchError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.batches import BatchError, batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from keylane.storage.log_view import LogView

logger = logger_of("keylane.broker")

READ_BYTES = 8 * 1024 * 1024
"""Read of one partition at a time: a few milliseconds. A client that may take more asks again."""


def leader_epoch_error(given: int, present: int) -> int:
    """What to answer to a client that believes in leader epoch `given` (-1: in none). Source: KIP-320."""
    if given in (-1, present):
        return codes.NONE
    return codes.FENCED_LEADER_EPOCH if given < present else codes.UNKNOWN_LEADER_EPOCH


class Wanted(NamedTuple):
    """What a fetch asks of one partition."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1
    """The one that the client believes in; any below 0 is none, as by Apache Kafka."""
    topic: str | None = None
    """The topic's name; None while no topic has the id that the client gives."""
    last_epoch: int = -1
    """The leader epoch of the last record that it has; -1: not told."""


class FetchedPartition(NamedTuple):
    """The answer for one partition of a Fetch request."""

    partition: int
    error_code: int
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes = b""
    last_stable_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of aborted transactions; None unless only committed records were asked for."""
    leader_epoch: int = -1
    """The present one, beside FENCED_LEADER_EPOCH."""
    diverging: tuple[int, int] | None = None
    """The epoch that the log has in place of the client's last one, and where it ends, when the client has read another
    history of the log."""


NOBODYS = frozenset({codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID})
"""What is answered of partitions that do not exist."""


def nobodys(partition: int, code: int = codes.UNKNOWN_TOPIC_OR_PARTITION) -> FetchedPartition:
    """The answer for a partition that does not exist; no transactions were aborted in it, as Kafka says it."""
    return FetchedPartition(partition, code, aborted=())


class PartitionRead(Protocol):
    """One partition of a fetch."""

    code: int
    """What is wrong with it, or NONE."""

    def locate(self) -> Awaitable[None] | None:
        """Find the offset, or what is wrong: at once, or when what this returns was awaited."""
        ...

    @property
    def available(self) -> int:
        """The bytes that are there for it now (any positive number when that is not known)."""
        ...

    @property
    def log(self) -> LogView | None:
        """What to listen to for more; None when nothing tells."""
        ...

    def read(self, budget: int, *, at_least_one: bool) -> FetchedPartition | Awaitable[FetchedPartition]:
        """The answer, with at most `budget` bytes of records, or one batch that is larger; or what gives it."""
        ...


async def read_one(read: PartitionRead, max_bytes: int) -> FetchedPartition:
    """All three steps."""
    if (located := read.locate()) is not None:
        await located
    answer = read.read(max_bytes, at_least_one=True)
    return answer if isinstance(answer, FetchedPartition) else await answer


class NoRead:
    """A partition of which nothing is read, because of what is wrong with its topic's id (KIP-516)."""

    log = None
    available = 0

    def __init__(self, partition: int, code: int) -> None:
        self.code = code
        self._index = partition

    def locate(self) -> None:
        """There is nothing to find."""

    def read(self, budget: int, *, at_least_one: bool) -> FetchedPartition:  # noqa: ARG002
        return nobodys(self._index, self.code) if self.code in NOBODYS else FetchedPartition(self._index, self.code)


class LogRead:
    """A partition of a topic; with `committed_only`, up to its last stable offset."""

    __slots__ = (
        "_committed_only", "_diverging", "_index", "_last_epoch", "_leader_epoch", "_max_bytes", "_offset", "_position",
        "_version", "code", "log",
    )  # fmt: skip

    def __init__(self, log: LogView | None, partition: int, wanted: Wanted, *, committed_only: bool) -> None:
        self.log = log
        self._committed_only = committed_only
        self.code = codes.NONE
        self._index = partition
        self._offset, self._max_bytes, self._leader_epoch, _, self._last_epoch = wanted
        self._position = self._version = 0
        self._diverging: tuple[int, int] | None = None

    def locate(self) -> Awaitable[None] | None:
        log = self.log
        if log is None or log.is_closed:
            self.code = codes.UNKNOWN_TOPIC_OR_PARTITION
            return None
        if self._leader_epoch >= 0:
            self.code = leader_epoch_error(self._leader_epoch, log.leader_epoch)
        if self._last_epoch >= 0 and self.code == codes.NONE:
            self._compare(log)
        return self._find(log)

    def _compare(self, log: LogView) -> None:
        """Look whether what the client has read last is in this log."""
        epoch, end = log.end_of_epoch(self._last_epoch)
        if end < 0:
            self.code = codes.OFFSET_OUT_OF_RANGE
        elif epoch < self._last_epoch or end < self._offset:
            self._diverging = epoch, end

    def _find(self, log: LogView) -> Awaitable[None] | None:
        if self.code != codes.NONE or self._diverging is not None or not self._is_in(log):
            return None
        if self._offset < log.high_watermark and not log.is_prepared(self._offset):
            return self._prepare(log)
        self._look_up(log)
        return None

    async def _prepare(self, log: LogView) -> None:
        try:
            await log.prepare(self._offset)
        except (OSError, PeerError) as error:
            if self._is_in(log):
                self._fail(error)
            return
        if self._is_in(log):  # it may have been removed meanwhile
            self._look_up(log)

    def _look_up(self, log: LogView) -> None:
        self._version = log.version
        try:
            self._position = log.locate(self._offset)
        except (OSError, PeerError) as error:
            self._fail(error)

    def _is_in(self, log: LogView) -> bool:
        """Whether the log has the offset; if not, that is the answer."""
        if log.log_start_offset <= self._offset <= log.next_offset:
            return True
        self.code = codes.OFFSET_OUT_OF_RANGE
        return False

    @property
    def available(self) -> int:
        if self.log is None or self.code != codes.NONE:
            return 0
        if self._diverging is not None:
            return self._max_bytes  # there is something to tell
        end = self.log.stable_position if self._committed_only else self.log.synced_position
        there = end - self._position
        # A position behind the last stable offset is that of a reader who was further before (of all records).
        return min(there, self._max_bytes) if there > 0 else 0

    def read(self, budget: int, *, at_least_one: bool) -> FetchedPartition | Awaitable[FetchedPartition]:
        log = self.log
        if log is None:
            return nobodys(self._index)
        if self.code == codes.NONE:
            if log.is_closed:
                self.code = codes.UNKNOWN_TOPIC_OR_PARTITION  # deleted while the fetch waited
            elif log.version != self._version and (found := self._find(log)) is not None:
                return self._read_when(found, log, budget, at_least_one=at_least_one)  # its segments are others now
        return self._read(log, budget, at_least_one=at_least_one)

    async def _read_when(
        self, found: Awaitable[None], log: LogView, budget: int, *, at_least_one: bool
    ) -> FetchedPartition:
        await found
        return self._read(log, budget, at_least_one=at_least_one)

    def _read(self, log: LogView, budget: int, *, at_least_one: bool) -> FetchedPartition:
        if self.code != codes.NONE:
            return FetchedPartition(self._index, self.code, leader_epoch=log.leader_epoch)
        records = b""
        end = log.stable_position if self._committed_only else log.synced_position
        if self._position < end and self._diverging is None:
            try:
                limit = min(self._max_bytes, budget, READ_BYTES)
                records = log.read(self._position, limit, at_least_one=at_least_one, end=end)
            except (OSError, PeerError) as error:
                self._fail(error)
                return FetchedPartition(self._index, self.code)
        aborted = self._aborted(log, records) if self._committed_only and self._diverging is None else None
        return FetchedPartition(
            self._index, codes.NONE, log.high_watermark, log.log_start_offset, records, log.stable_offset, aborted, -1,
            self._diverging,
        )  # fmt: skip

    def _aborted(self, log: LogView, records: bytes) -> list[tuple[int, int]]:
        """The aborted transactions that the consumer has to know of for these records."""
        found = log.aborted(self._offset, log.stable_offset)
        if not found:
            return found
        end = max((header.next_offset for _, header in batches(records)), default=self._offset)
        return log.aborted(self._offset, end)

    def _fail(self, error: Exception) -> None:
        assert self.log is not None
        if isinstance(error, DamagedBatchError):  # logged when it was found; clients tell their users, and ask again
            self.code = codes.CORRUPT_MESSAGE
            return
        logger.error("%s: %s", self.log.folder, error)
        self.code = codes.KAFKA_STORAGE_ERROR


class OffsetsRead:
    """A partition of `__consumer_offsets`. Nothing tells when it grows: a fetch at its end waits out its time."""

    log = None

    def __init__(self, topic: OffsetsTopic, partition: int, wanted: Wanted) -> None:
        self.code = topic.check(partition)
        self._view = topic.view
        self._index = partition
        self._offset, self._max_bytes, leader_epoch, *_ = wanted
        self._leader_epoch = max(leader_epoch, -1)

    def locate(self) -> None:
        if self.code != codes.NONE:
            return
        self.code = leader_epoch_error(self._leader_epoch, OffsetsTopic.leader_epoch)
        if self.code == codes.NONE and not 0 <= self._offset <= self._view.end_offset(self._index):
            self.code = codes.OFFSET_OUT_OF_RANGE

    @property
    def available(self) -> int:
        is_there = self.code == codes.NONE and self._offset < self._view.end_offset(self._index)
        return self._max_bytes if is_there else 0

    async def read(self, budget: int, *, at_least_one: bool) -> FetchedPartition:
        if self.code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            return nobodys(self._index)
        if self.code != codes.NONE:
            return FetchedPartition(self._index, self.code)
        end = self._view.end_offset(self._index)
        records = b""
        if budget > 0 or at_least_one:
            try:
                records = await self._view.read(self._index, self._offset, min(self._max_bytes, budget))
            except (OSError, PeerError) as error:
                logger.error("offsets partition %d: %s", self._index, error)  # noqa: TRY400 - one line says it all
                is_damage = isinstance(error, DataFolderError | BatchError)
                self.code = codes.CORRUPT_MESSAGE if is_damage else codes.KAFKA_STORAGE_ERROR
                return FetchedPartition(self._index, self.code)
        return FetchedPartition(self._index, self.code, end, 0, records, end)
