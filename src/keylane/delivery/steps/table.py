"""`StepTable`: what the log of one partition's steps adds up to, as a fold over its records in their order. Pure.

The idea: a log is owned by one producer at a time, whose mark stands before all that it appends. Brokers refuse what an
earlier owner appends behind the mark of a later one; where a broker had forgotten the earlier one, it stands there, and
is not believed. So all who read the log up to the same offset have the same table. Its owner takes in what was
acknowledged to it in the same way, and has the table that a restart would load.

The last whole answer of a step counts: so an owner may copy an old one to the end, and trim the log. One that is not
whole when the next owner begins will never be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.delivery.steps.formats import Forgotten, Mark, StepFormatError, decode
from keylane.wire.batches import decode_records, fetched_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.delivery.steps.formats import Piece, Step


class KeptStep(NamedTuple):
    """What a step came to."""

    step: Step
    answer: bytes
    written_ms: int
    """When it was written, or copied to the log's end; in milliseconds since the epoch."""


class _Kept(NamedTuple):
    answer: bytes
    log_offset: int
    """Of its first piece."""
    pieces: int
    written_ms: int


class _Begun(NamedTuple):
    data: list[bytes]
    pieces: int
    log_offset: int


class StepTable:
    """Of one partition of an input topic. Thread safety: none; its owner is who reads and writes the log."""

    def __init__(self, topic_id: str, partition: int, is_complete: Callable[[int], bool] = lambda _: False) -> None:
        """Steps of records of other topics, which had the name before, are of no use to anybody; nor are those of
        records whose offset is complete by this."""
        self._is_complete = is_complete
        self._topic_id = topic_id
        self._partition = partition
        self._owner: Producer | None = None
        """Until the first mark it is whoever wrote what stands first: the log was trimmed behind that one's mark."""
        self._kept: dict[int, dict[Step, _Kept]] = {}
        """By the record's offset."""
        self._begun: dict[Step, _Begun] = {}
        self.disbelieved = 0
        """Records of the log that were not believed."""

    def read(self, data: bytes, position: int) -> int:
        """The log's next batches, from this offset on; returns the offset behind them. Raises `BatchError`, and
        `StepFormatError` as `take`."""
        for at, header in fetched_batches(data, position):
            producer = Producer(header.producer_id, header.producer_epoch)
            for record in () if header.is_control else decode_records(data, at):
                self.take(record.offset, producer, record.key, record.value, record.timestamp_ms)
            position = header.next_offset
        return position

    def take(
        self, log_offset: int, producer: Producer, key: bytes | None, value: bytes | None, written_ms: int = 0
    ) -> None:
        """The log's next record. Raises `StepFormatError` for one of the owner's that is not of the form: a newer
        release wrote it."""
        if producer.producer_id < 0:  # whoever has no epoch owns no log, whatever it writes there
            self.disbelieved += 1
            return
        try:
            entry = decode(key, value)
        except StepFormatError:
            if producer == self._owner:
                raise
            self.disbelieved += 1
            return
        if self._owner is None or isinstance(entry, Mark):
            self._owner = producer
        if isinstance(entry, Mark):
            self._begun.clear()
        elif producer != self._owner:
            self.disbelieved += 1
        elif entry.step.record[:2] == (self._topic_id, self._partition):
            if self._is_complete(entry.step.record.offset):
                return
            if isinstance(entry, Forgotten):
                self._forget(entry.step)
            else:
                self._take_piece(log_offset, entry, written_ms)

    def answer(self, step: Step) -> bytes | None:
        """What the step came to, if that is kept."""
        found = self._kept.get(step.record.offset, {}).get(step)
        return None if found is None else found.answer

    def steps_of(self, offset: int) -> Iterable[Step]:
        """The steps of the record at this offset that have an answer."""
        return self._kept.get(offset, {}).keys()

    def kept(self, offset: int) -> list[KeptStep]:
        """All that is kept of the record at this offset, and of others that were there before it."""
        return [KeptStep(step, one.answer, one.written_ms) for step, one in self._kept.get(offset, {}).items()]

    def complete(self, offsets: Iterable[int]) -> None:
        """Records that run no more: nobody asks for their steps."""
        for offset in offsets:
            self._kept.pop(offset, None)

    @property
    def first_needed(self) -> int | None:
        """The log's first offset that has something of use; None where nothing has."""
        kept = (one.log_offset for steps in self._kept.values() for one in steps.values())
        return min((*kept, *(one.log_offset for one in self._begun.values())), default=None)

    def old_steps(self, log_end: int, spare: int) -> list[Step]:
        """Steps to copy to the log's end, the oldest first: before them and between them more than half of the log,
        and more than `spare` records, are of no use."""
        kept = sorted((one.log_offset, step) for steps in self._kept.values() for step, one in steps.items())
        most = spare + 2 * sum(one.pieces for steps in self._kept.values() for one in steps.values())
        return [step for log_offset, step in kept if log_end - log_offset > most]

    def _take_piece(self, log_offset: int, piece: Piece, written_ms: int) -> None:
        step = piece.step
        begun = _Begun([], piece.pieces, log_offset) if piece.number == 0 else self._begun.pop(step, None)
        if begun is None or (len(begun.data), begun.pieces) != (piece.number, piece.pieces):
            return
        begun.data.append(piece.data)
        if len(begun.data) < begun.pieces:
            self._begun[step] = begun
            return
        self._begun.pop(step, None)
        kept = _Kept(b"".join(begun.data), begun.log_offset, begun.pieces, written_ms)
        self._kept.setdefault(step.record.offset, {})[step] = kept

    def _forget(self, step: Step) -> None:
        self._begun.pop(step, None)
        steps = self._kept.get(step.record.offset, {})
        steps.pop(step, None)
        if not steps:
            self._kept.pop(step.record.offset, None)
