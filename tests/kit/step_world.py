"""A log of steps in memory, which fences as Kafka does, and its owners, one step of the world at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.replicated.journal import Fetched, Refused
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.delivery.steps.formats import RecordIdentity, Step
from keylane.delivery.steps.log import StepLog
from keylane.delivery.steps.table import StepTable
from keylane.wire.batches import NewRecord, decode_records, encode_batch, read_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.delivery.steps.log import Lost

    Asked = Callable[[], Callable[[], None]]
    """Does what was asked, and returns who tells the answer."""

PIECE_BYTES = 3
FENCED = Refused("INVALID_PRODUCER_EPOCH")
NO_ANSWER = Refused("no answer", is_passing=True)


def step_of(offset: int, name: str = "ask") -> Step:
    return Step(RecordIdentity("id", 0, offset, 7), name, "")


def empty_table() -> StepTable:
    return StepTable("id", 0)


class Broker:
    """One partition, and who has the epoch of its transactional id."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = 0
        self.producer = Producer(1, -1)
        self._asked_by: Producer | None = None
        """Who asked for the last epoch as the one who had the epoch before."""
        self._known_epoch = -1
        """What the partition's leader knows, of what was appended."""
        self.late: deque[bytes] = deque()
        """What is on its way, though nobody waits for it any more."""

    def init(self, expected: Producer | None) -> Producer | Refused:
        if expected is not None and expected == self._asked_by:
            return self.producer
        if expected not in (None, self.producer):
            return FENCED
        self._asked_by, self.producer = expected, Producer(1, self.producer.epoch + 1)
        return self.producer

    def append(self, batch: bytes) -> int | Refused:
        header, (record,) = read_header(batch), decode_records(batch)
        if header.producer_epoch < self._known_epoch:
            return FENCED
        self._known_epoch = header.producer_epoch
        offset = len(self.batches)
        self.batches.append(
            encode_batch(
                [NewRecord(record.key, record.value)],
                timestamp_ms=header.base_timestamp,
                base_offset=offset,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
        )
        return offset

    def delete_below(self, offset: int) -> None:
        self.start = max(self.start, offset)

    def table(self, log_end: int | None = None) -> StepTable:
        """Of what is there, up to this offset."""
        table = empty_table()
        for batch in self.batches[self.start : log_end]:
            header, (record,) = read_header(batch), decode_records(batch)
            producer = Producer(header.producer_id, header.producer_epoch)
            table.take(header.base_offset, producer, record.key, record.value)
        return table


class _Append(NamedTuple):
    batch: bytes
    told: Callable[[int | Refused], None]


class Connection:
    """A `PartitionLog`: what is asked is done, and later answered, when the test says so."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._questions: deque[Asked] = deque()
        self._unanswered: deque[Callable[[Refused | None], None]] = deque()
        """Tell what came of it, or what is given."""
        self._appends: deque[_Append] = deque()
        self._is_refused = False

    def init(self, expected: Producer | None, told: Callable[[Producer | Refused], None]) -> None:
        def do() -> Callable[[], None]:
            found = self._broker.init(expected)
            return lambda: told(found)

        self._questions.append(do)

    def read(self, offset: int, told: Callable[[Fetched | Refused], None]) -> None:
        def do() -> Callable[[], None]:
            broker = self._broker
            found = Fetched(b"".join(broker.batches[max(offset, broker.start) :]), len(broker.batches))
            return lambda: told(found)

        self._questions.append(do)

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        self._appends.append(_Append(batch, told))

    def close(self) -> None:
        self._broker.late.extend(one.batch for one in self._appends)
        for waiting in (self._questions, self._appends, self._unanswered):
            waiting.clear()

    # --- what the test says ---

    def go_on(self) -> bool:
        """The next thing happens; whether there was any."""
        if self._questions:
            self._questions.popleft()()()
        elif self._unanswered:
            self._unanswered.popleft()(None)
        elif self._appends:
            self.deliver()
        else:
            return False
        return True

    def deliver(self) -> None:
        """The oldest append gets to the broker, and its answer is on its way back."""
        if not self._appends:
            return
        one = self._appends.popleft()
        found = FENCED if self._is_refused else self._broker.append(one.batch)
        self._is_refused |= isinstance(found, Refused)
        self._unanswered.append(lambda given: one.told(found if given is None else given))

    def break_off(self) -> None:
        """No answer comes; what was not delivered may be so later."""
        waiting = [*self._unanswered, *(lambda _, one=one: one.told(NO_ANSWER) for one in self._appends)]
        self._broker.late.extend(one.batch for one in self._appends)
        self._unanswered.clear()
        self._appends.clear()
        for tell in waiting:
            tell(NO_ANSWER)


class Owner:
    """Somebody who has the partition, or had it."""

    def __init__(self, broker: Broker, name: str = "somebody") -> None:
        self._broker = broker
        self.connection = Connection(broker)
        self.steps = StepLog(self._connect, empty_table(), name, lambda: 0, PIECE_BYTES)
        self.is_open = False
        self.kept: dict[Step, bytes] = {}
        """Answers that were acknowledged."""
        self.keeping: set[Step] = set()
        """Whose answers wait for that: whoever asks for one waits with it."""
        self.steps.open(self._opened)

    def _connect(self) -> Connection:
        self.connection = Connection(self._broker)
        return self.connection

    def _opened(self, lost: Lost | None) -> None:
        self.is_open = lost is None

    def keep(self, step: Step, answer: bytes) -> None:
        def told(lost: Lost | None) -> None:
            self.keeping.discard(step)
            if lost is None:
                self.kept[step] = answer

        self.keeping.add(step)
        self.steps.keep(step, answer, told)

    def run(self, most: int = 1_000) -> None:
        """All that can happen, or so much of it."""
        for _ in range(most):
            if not self.connection.go_on():
                return
