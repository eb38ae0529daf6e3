"""`StepLog`: one partition's steps while this member owns them: fence who had them before, read, append. Pure.

The idea: whoever opens takes the next epoch of the log's transactional id, appends a mark with it, and reads up to the
mark: from then on brokers refuse what any owner of before appends, so that nothing can be added behind what was read.
Only then is it decided which steps have an answer. An answer counts once it is acknowledged.

Where an acknowledgement does not come, the answer is kept in memory. This member asks for the next epoch as the one who
has the last one, which is refused where another member has taken over, and appends it again behind a new mark. So a
broker that fails costs no second call, and whoever was replaced learns that its answers count for nothing.

The log answers by calling back; there is no clock, thread or socket here, so that a simulation can drive it. Thread
safety: none; all calls and answers come one after the other.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.replicated.journal import Refused
from keylane.delivery.steps.formats import Forgotten, Mark, StepFormatError, encode, pieces_of
from keylane.errors import UsageError
from keylane.wire.batches import BatchError, NewRecord, encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.coordinator.replicated.journal import Fetched, PartitionLog
    from keylane.coordinator.transactions.transactional_ids import Producer
    from keylane.delivery.steps.formats import Entry, Step
    from keylane.delivery.steps.table import StepTable

    Told = Callable[["Lost | None"], None]

SPARE_RECORDS = 1_000
"""Of a log that may be of no use before what is old is copied to the end."""
MAX_SEQUENCE = 2**31 - 1


class Lost(NamedTuple):
    """The steps are not this member's any more: nothing that is not acknowledged counts."""

    reason: str


class _Write(NamedTuple):
    key: bytes
    value: bytes
    told: Told
    position: int = 0
    """It is in the log nowhere below this."""
    is_last: bool = True
    """False for a piece of an answer that others follow: alone it is of no use."""


class StepLog:
    """Of one partition, for one assignment: who loses it makes another one."""

    def __init__(
        self,
        connect: Callable[[], PartitionLog],
        table: StepTable,
        owner: str,
        clock_ms: Callable[[], int],
        piece_bytes: int,
        begin: int = 0,
    ) -> None:
        """`connect` makes a log whose `init` takes epochs of the partition's transactional id; it is closed here.
        `table` is empty. `owner` is told in marks. `piece_bytes` of an answer go into one batch at most. Below `begin`
        the log has nothing of use."""
        self._connect = connect
        self._table = table
        self._owner = owner
        self._clock_ms = clock_ms
        self._piece_bytes = piece_bytes
        self._log: PartitionLog | None = None
        self._producer: Producer | None = None
        self._is_marked = False
        """Whether the mark of this epoch is on its way."""
        self._sequence = 0
        self._unanswered: deque[_Write] = deque()
        """In the log's order; the mark is none of them."""
        self._pieces: list[_Write] = []
        """Of an answer whose last piece has no acknowledgement yet: those that have one. A mark ends what is begun, so
        behind another one all of them are appended again."""
        self._position = begin
        """Up to here the table has the log."""
        self._loads_to: int | None = None
        """Where the mark ends, up to which the log is read."""
        self._is_open = False
        self._opening: list[Told] = []
        self._was_refused = False
        """Whether the log has refused a batch since it took the last one."""
        self._lost: Lost | None = None

    @property
    def lost(self) -> Lost | None:
        """Why nothing can be kept any more, if so."""
        return self._lost

    def open(self, told: Told) -> None:
        """Told once the table has all that anybody had acknowledged; or why not."""
        if self._is_open or self._lost is not None:
            told(self._lost)
            return
        self._opening.append(told)
        if self._log is None:
            self._begin()

    def answer(self, step: Step) -> bytes | None:
        """What is kept of a step, once it is open."""
        assert self._is_open, "nobody knows yet what is kept"
        return self._table.answer(step)

    def keep(self, step: Step, answer: bytes, told: Told) -> None:
        """Told once the answer is there for whoever runs the record again; or that it counts for nothing."""
        *before, last = pieces_of(step, answer, self._piece_bytes)
        for piece in before:
            self._write(piece, _nothing_waits, is_last=False)
        self._write(last, told)

    def forget(self, step: Step, told: Told) -> None:
        """Told once the step has no answer any more."""
        self._write(Forgotten(step), told)

    def confirm(self, told: Told) -> None:
        """Told once it is sure that nobody has taken over meanwhile; or that somebody has."""
        self._write(Mark(self._owner), told)

    def complete(self, offsets: Iterable[int]) -> None:
        """The group has committed these records: nobody asks for their steps."""
        self._table.complete(offsets)

    def trim(self) -> int:
        """The offset below which the log is of no use. What keeps much of it is copied to its end, for next time."""
        if not self._is_open or self._lost is not None:
            return 0
        if not self._unanswered:  # else there may be copies among them
            for step in self._table.old_steps(self._position, SPARE_RECORDS):
                answer = self._table.answer(step)
                assert answer is not None
                self.keep(step, answer, _nothing_waits)
        # What has no acknowledgement may be in the log nevertheless, and another owner may have taken it from there.
        oldest = next(chain(self._pieces, self._unanswered), None)
        places = (self._table.first_needed, None if oldest is None else oldest.position)
        return min((place for place in places if place is not None), default=self._position)

    def close(self) -> None:
        """What has no acknowledgement by now counts for nothing."""
        self._lose("its partition is not read here any more")

    # --- the owner's epoch ---

    def _begin(self) -> None:
        """Become the owner, or go on as the owner."""
        if self._log is not None:
            self._log.close()
        self._is_marked = False
        try:
            self._log = log = self._connect()
        except UsageError as error:  # of settings
            self._lose(str(error))
            return
        log.init(self._producer, partial(self._initialised, log))

    def _initialised(self, log: PartitionLog, answer: Producer | Refused) -> None:
        if log is not self._log:
            return
        if isinstance(answer, Refused):
            self._refused(answer)
            return
        self._producer, self._sequence, self._is_marked = answer, 0, True
        self._append(_Write(*encode(Mark(self._owner)), _nothing_waits), is_mark=True)
        self._unanswered.extendleft(reversed(self._pieces))
        self._pieces.clear()
        for write in self._unanswered:
            self._append(write)

    def _refused(self, answer: Refused) -> None:
        if answer.is_passing:
            self._begin()
        else:
            self._lose(answer.reason)

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = Lost(reason)
        if self._log is not None:
            self._log.close()
            self._log = None
        told = [*self._opening, *(write.told for write in self._unanswered)]
        self._opening.clear()
        self._unanswered.clear()
        for one in told:
            one(self._lost)

    # --- appending ---

    def _write(self, entry: Entry, told: Told, *, is_last: bool = True) -> None:
        if self._lost is not None:
            told(self._lost)
            return
        assert self._is_open, "nobody knows yet what is kept"
        write = _Write(*encode(entry), told, self._position, is_last)
        self._unanswered.append(write)
        if self._is_marked:  # else it goes out behind the mark
            self._append(write)

    def _append(self, write: _Write, *, is_mark: bool = False) -> None:
        assert self._log is not None
        assert self._producer is not None
        batch = encode_batch(
            [NewRecord(write.key, write.value)],
            timestamp_ms=self._clock_ms(),
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            base_sequence=self._sequence,
        )
        self._sequence = self._sequence + 1 & MAX_SEQUENCE
        self._log.append(batch, partial(self._appended, self._log, write, is_mark))

    def _appended(self, log: PartitionLog, write: _Write, is_mark: bool, answer: int | Refused) -> None:
        if log is not self._log:
            return
        if isinstance(answer, Refused):
            if self._was_refused and not answer.is_passing:
                self._lose(answer.reason)
                return
            self._was_refused = not answer.is_passing
            self._begin()
        elif is_mark and not self._is_open:
            self._loads_to = answer + 1
            self._read_on()
        else:
            self._take(answer, write)
            if not is_mark:
                self._was_refused = False
                self._unanswered.popleft()
                if write.is_last:
                    self._pieces.clear()
                else:
                    self._pieces.append(write)
                write.told(None)

    def _take(self, offset: int, write: _Write) -> None:
        assert self._producer is not None
        self._table.take(offset, self._producer, write.key, write.value)
        self._position = offset + 1

    # --- reading ---

    def _read_on(self) -> None:
        assert self._log is not None
        self._log.read(self._position, partial(self._fetched, self._log))

    def _fetched(self, log: PartitionLog, answer: Fetched | Refused) -> None:
        if log is not self._log:
            return
        if isinstance(answer, Refused):
            if answer.is_passing:
                self._read_on()
            else:
                self._lose(answer.reason)
            return
        try:
            self._position = self._table.read(answer.data, self._position)
        except (BatchError, StepFormatError) as error:
            self._lose(f"the log of steps cannot be read: {error}")
            return
        assert self._loads_to is not None
        if self._position < self._loads_to:
            self._read_on()
            return
        self._is_open = True
        opening, self._opening = self._opening, []
        for told in opening:
            told(None)


def _nothing_waits(lost: Lost | None) -> None:
    """The last piece of an answer tells of it, and copies are made again by the next owner."""
