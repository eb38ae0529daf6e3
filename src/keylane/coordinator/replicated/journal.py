"""The journal of one offsets partition on a replicated log: `Leadership` decides, this one asks and tells.

The idea: the same port as the journal on files, so the coordinator above is the same. A batch enters the table when the
log has acknowledged it, commits in their order, and what is answered is acknowledged first. `confirm` is what files do
not need: there nobody else writes.

A log answers by calling back, in the turn of the event loop that this journal belongs to. Nothing here waits or reads a
clock but `load`, `flush` and `close`; a simulation can drive it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from keylane.coordinator.formats import RecordFormatError
from keylane.coordinator.journal.batch_replay import Replayer
from keylane.coordinator.journal.journal import BatchTooLargeError
from keylane.coordinator.replicated.batches import as_written, encode, read
from keylane.coordinator.replicated.leadership import (
    Batch,
    Entry,
    Init,
    Leadership,
    Limits,
    NotLeadingError,
    Role,
)
from keylane.errors import DataFolderError
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.batches import HEADER_SIZE, BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.coordinator.formats import Records
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.journal import Done
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.coordinator.replicated.follower import Follower, Place
    from keylane.coordinator.transactions.transactional_ids import Producer
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.coordinator")

READING = (Role.STANDBY, Role.LOADING)
"""Roles in which the table comes from the log; a leader's comes from what it appends."""


class Refused(NamedTuple):
    """The log does not do it, and will not: the producer is fenced, or it was tried for long enough."""

    reason: str
    is_passing: bool = False
    """Whether it was tried for long enough: a cluster that answers later may do it."""


class Fetched(NamedTuple):
    data: bytes
    """Whole batches from the offset that was asked for, and perhaps others around them."""
    end: int
    """One past what all replicas in sync have, when it was read."""


class PartitionLog(Protocol):
    """One partition of the replicated log. Each answer is a call, in the order of the questions of its kind."""

    def init(self, expected: Producer | None, told: Callable[[Producer | Refused], None]) -> None:
        """The next epoch of the partition's transactional id, whose earlier ones are fenced by what is appended with
        it; with `expected`, only if that is its producer now."""
        ...

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        """Append an idempotent batch to all replicas in sync, once, behind those of before: its base offset."""
        ...

    def read(self, offset: int, told: Callable[[Fetched | Refused], None]) -> None:
        """What the log has from this offset on, at once, up to what all replicas in sync have."""
        ...

    def close(self) -> None: ...


class DeposedError(StorageError):
    """This server does not lead the partition any more. What was under way may be in the log, or not."""

    code = codes.NOT_COORDINATOR


class Host(NamedTuple):
    """What a journal needs of the process that it is in."""

    server: str
    """Its name, for notes."""
    clock: Callable[[], int]
    """Milliseconds since the epoch."""
    steady_ms: Callable[[], int]
    """Milliseconds that go on while the machine sleeps."""
    make_round: Callable[[], Round]
    soon: Callable[[Callable[[], None]], object]
    """Call this when the present turn is over."""
    alarm: Callable[[str], None]
    """Somebody has to look: what is told there must not happen."""


class LogJournal:
    """Of one offsets partition, as long as it is led here; made with a table and how far it has been read."""

    def __init__(
        self,
        log: PartitionLog,
        partition: int,
        image: Image,
        follower: Follower,
        options: CoordinatorOptions,
        host: Host,
        on_deposed: Callable[[], None] | None = None,
        limits: Limits | None = None,
        on_read: Callable[[], None] | None = None,
    ) -> None:
        """`on_deposed` is called once, when all that was under way has been told; `on_read` once, when the table has
        all that the log had."""
        self._log = log
        self._partition = partition
        self._image = image
        self._replayer = Replayer(image)
        self._host = host
        self._on_deposed = on_deposed
        self._on_read = on_read
        self._max_batch_bytes = options.message_max_bytes
        self._codec = options.offsets_topic_compression_codec
        limits = limits or Limits(options.message_max_bytes - HEADER_SIZE)
        self._turn_bytes = limits.turn_bytes
        self._leadership = Leadership(follower, limits, host.alarm)
        self._rounds: dict[Batch, Round] = {}
        self._is_due = False
        self._is_reading = False
        self._loaded: Round | None = None

    @property
    def role(self) -> Role:
        return self._leadership.role

    @property
    def is_serving(self) -> bool:
        """Whether it leads, and has loaded what was there."""
        return self._leadership.is_serving

    # --- taking over ---

    def take_over(self) -> Round:
        """Lead the partition: over, well or not, when this journal serves or is deposed."""
        self._loaded = self._host.make_round()
        self._leadership.take_over()
        self._go_on()
        return self._loaded

    async def load(self) -> None:
        """Raises `DeposedError`, and `DataFolderError` for a log that holds what this release cannot read."""
        await self.take_over()

    def look(self) -> None:
        """Do what is due by time, and as a standby read what is new; to be called every few seconds."""
        self._go_on()
        if self.role is Role.STANDBY:
            self._read_on()

    def _initialised(self, answer: Producer | Refused) -> None:
        if isinstance(answer, Refused):
            self._depose(answer.reason)
            return
        self._leadership.initialised(answer, self._host.steady_ms())
        self._go_on()

    def _read_on(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            asked_ms = self._host.steady_ms()
            self._log.read(self._leadership.follower.position, partial(self._fetched, asked_ms))

    def _fetched(self, asked_ms: int, answer: Fetched | Refused) -> None:
        self._is_reading = False
        if self.role not in READING:
            return
        if isinstance(answer, Refused):
            self._depose(answer.reason)
            return
        follower, data = self._leadership.follower, answer.data
        if follower.has_missed_tombstones(self._host.steady_ms()):
            logger.info("offsets partition %d: it was not read for too long; it is loaded anew", self._partition)
            self._image.clear()
            follower.begin_again(self._host.steady_ms())
            data = b""
        self._is_reading = True
        self._take_on(read(data, follower.position), asked_ms, answer.end)

    def _take_on(self, rest: Iterator[tuple[Place, bytes]], asked_ms: int, end: int) -> None:
        """A turn's worth of what was read; the rest in the next turn."""
        if self.role not in READING:
            self._is_reading = False  # what is left is read again, when it is wanted
            return
        try:
            is_all = self._take(rest, asked_ms)
        except (BatchError, RecordFormatError) as error:
            self._depose(f"its log cannot be read: {error}", error)
            return
        if not is_all and self.role is not Role.LEADING:
            self._host.soon(partial(self._take_on, rest, asked_ms, end))
            return
        self._is_reading = False
        follower = self._leadership.follower
        if follower.position >= end:
            follower.reached_end(asked_ms)
            if self._on_read is not None:
                called, self._on_read = self._on_read, None
                called()
        if self.role is Role.LOADING or (self.role is Role.STANDBY and follower.position < end):
            self._read_on()
        elif self.role is Role.LEADING and self._loaded is not None:
            end_round(self._loaded, None)

    def _take(self, rest: Iterator[tuple[Place, bytes]], asked_ms: int) -> bool:
        """Bring some batches into the table, at most up to where it is loaded; whether those were all."""
        leadership = self._leadership
        places: list[Place] = []
        batches: list[bytes] = []
        size, is_all = 0, True
        for place, batch in rest:
            places.append(place)
            if (written := as_written(batch)) is not None:
                batches.append(written)
            size += len(batch)
            is_loaded = leadership.loads_to is not None and place.next_offset >= leadership.loads_to
            if size >= self._turn_bytes or is_loaded:
                is_all = False
                break
        self._replayer.replay_newest(self._partition, batches)
        self._image.tombstones.clear()  # the log has them for other readers
        for place in places:
            leadership.hear(place, asked_ms)
        return is_all

    # --- the port ---

    def append(self, partition: int, records: Records, done: Done) -> Round:
        assert partition == self._partition, f"offsets partition {partition} is another journal's"
        size = HEADER_SIZE + len(records.body)
        if size > self._max_batch_bytes:
            raise BatchTooLargeError(
                f"a commit of {size} bytes: at most {self._max_batch_bytes} (message.max.bytes) go into one batch"
            )
        return self._round_of(lambda: self._leadership.append(Entry(records, done)))

    must_confirm = True

    def confirm(self) -> Round:
        """What a read waits for before it looks: over well when no other leader can have written before it began."""
        return self._round_of(self._leadership.confirm)

    async def flush(self) -> None:
        batch = self._leadership.last
        if batch is not None:
            await self._rounds[batch]
        elif not self._leadership.is_serving:
            raise self._failure()

    def end_offset(self, partition: int) -> int:
        assert partition == self._partition
        return self._leadership.follower.position

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:  # noqa: ARG002 - the log's own size
        """What the log has there, as its brokers give it."""
        assert partition == self._partition
        found = self._host.make_round()
        answers: list[Fetched | Refused] = []

        def told(answer: Fetched | Refused) -> None:
            answers.append(answer)
            end_round(found, StorageError(answer.reason) if isinstance(answer, Refused) else None)

        self._log.read(offset, told)
        await found
        assert isinstance(answers[0], Fetched)
        return answers[0].data

    async def close(self) -> None:
        """Wait for what is under way, and lead no more."""
        with contextlib.suppress(StorageError):
            await self.flush()
        self._depose("it has given up the partition")
        self._log.close()

    # --- the log's answers ---

    def _round_of(self, join: Callable[[], Batch]) -> Round:
        try:
            batch = join()
        except NotLeadingError:
            raise self._failure() from None
        round_ = self._rounds.get(batch)
        if round_ is None:
            round_ = self._rounds[batch] = self._host.make_round()
        if not self._is_due:
            self._is_due = True
            self._host.soon(self._go_on)  # not now: what else comes in this turn goes into the same batch
        return round_

    def _go_on(self) -> None:
        self._is_due = False
        while (asked := self._leadership.step(self._host.steady_ms())) is not None:
            if isinstance(asked, Init):
                self._log.init(asked.expected, self._initialised)
            else:
                self._rounds.setdefault(asked, self._host.make_round())
                data = encode(asked, self._host.server, self._host.clock(), self._codec)
                self._log.append(data, partial(self._appended, asked))
        if self.role is Role.DEPOSED:
            self._give_up()

    def _appended(self, batch: Batch, answer: int | Refused) -> None:
        if isinstance(answer, Refused):
            self._depose(answer.reason)
        elif self._leadership.acknowledged(batch, answer, self._host.steady_ms()):
            self._enter(batch, answer)
            if self._leadership.loads_to is not None:
                self._read_on()
            self._go_on()
        elif self.role is Role.DEPOSED:
            self._give_up()

    def _enter(self, batch: Batch, base_offset: int) -> None:
        """An acknowledged batch, into the table and to all who wait for it."""
        at = base_offset
        for records, done in batch.entries:
            if records.pairs:
                kept = [(offset, key, value) for offset, (key, value) in enumerate(records.pairs, at)]
                self._image.note(self._partition, records.timestamp_ms, kept, b"")
                self._image.tombstones.clear()
            done(None, at)
            at += records.record_count
        end_round(self._rounds.pop(batch), None)

    def _depose(self, reason: str, cause: Exception | None = None) -> None:
        if self.role is Role.DEPOSED:
            return
        self._leadership.depose(reason)
        self._give_up(cause)

    def _give_up(self, cause: Exception | None = None) -> None:
        failure = self._failure()
        failure.__cause__ = cause
        for batch in self._leadership.failed():
            for entry in batch.entries:
                entry.done(failure, -1)
            round_ = self._rounds.pop(batch, None)
            if round_ is not None:
                end_round(round_, failure)
        if self._loaded is not None and not self._loaded.done():
            is_damage = isinstance(cause, RecordFormatError | BatchError)
            end_round(self._loaded, DataFolderError(str(failure)) if is_damage else failure)
        if self._on_deposed is not None:
            called, self._on_deposed = self._on_deposed, None
            called()

    def _failure(self) -> DeposedError:
        leadership = self._leadership
        return DeposedError(
            f"offsets partition {self._partition} is not led here: {leadership.reason or leadership.role.value}"
        )


def end_round(round_: Round, failure: Exception | None) -> None:
    """Well, or not."""
    if failure is None:
        round_.set_result(None)
    else:
        round_.set_exception(failure)
        round_.exception()  # it may have no waiter; asyncio must not warn about it
    round_.tell()
