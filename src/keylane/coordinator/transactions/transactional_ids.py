"""Transactional ids as a state machine: requests and the time in, error codes or the next state out.

There is no clock, journal or socket here. A decision is either an error code or the `Transaction` to make durable;
until `stored` says that it is, the id is busy and everyone else is told CONCURRENT_TRANSACTIONS. So what is served is
what a restart would load, and one id has one change under way at a time.

Sources: KIP-98, KIP-360 (a producer asks for a new epoch with the one it has), KIP-890's first part (only partitions
that were added are written to); the rules of Apache Kafka's `TransactionCoordinator` and `TransactionMetadata`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import MAX_STRING_BYTES
from keylane.coordinator.transactions.states import ALLOWED, IDLE, PREPARED, State
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NOT_STARTED = -1
LAST_USED_EPOCH = 2**15 - 2
"""A producer never gets the last epoch there is: fencing this one needs it."""

TopicPartition = tuple[str, int]


class Producer(NamedTuple):
    """A producer id and the epoch in which it is used."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """What is known of one transactional id. `last_epoch` and `previous_producer_id` are not stored, as in Kafka: they
    only recognise a repeated InitProducerId, whose answer was lost."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    """Those of the open or prepared transaction; of `__consumer_offsets` too."""
    started_ms: int
    """When the transaction began; NOT_STARTED before the first one."""
    updated_ms: int
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether this producer id has no epoch left to give."""
        return self.epoch >= LAST_USED_EPOCH


def _move(current: Transaction, target: State, now_ms: int, **changes: object) -> Transaction:
    assert (current.state, target) in ALLOWED, f"{current.state} -> {target}"
    return current._replace(state=target, updated_ms=now_ms, **changes)  # type: ignore[arg-type]


def fenced(current: Transaction, now_ms: int) -> Transaction:
    """The end of an open transaction against its producer's will: aborted, and in an epoch that nobody was given."""
    fence = _move(current, State.PREPARE_EPOCH_FENCE, now_ms, epoch=current.epoch + 1, last_epoch=NO_EPOCH)
    return _move(fence, State.PREPARE_ABORT, now_ms)


def completed(current: Transaction, now_ms: int) -> Transaction:
    """A prepared transaction, once all its markers are durable."""
    is_commit = current.state is State.PREPARE_COMMIT
    target = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
    return _move(current, target, now_ms, partitions=frozenset())


class TransactionalIds:
    """Every transactional id of the coordinator. An `int` from a method is an error code: NONE when all is as asked."""

    def __init__(self, *, max_timeout_ms: int, expiration_ms: int) -> None:
        self._max_timeout_ms = max_timeout_ms
        self._expiration_ms = expiration_ms
        self._current: dict[str, Transaction] = {}
        self._busy: dict[str, Transaction | None] = {}
        """The changes that are not durable yet; None is the end of an id."""

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        return iter(self._current.items())

    def __len__(self) -> int:
        return len(self._current)

    def get(self, transactional_id: str) -> Transaction | None:
        return self._current.get(transactional_id)

    # Changes that are under way

    def begin(self, transactional_id: str, value: Transaction | None) -> None:
        """This change is being made durable; None when the id is dead."""
        assert transactional_id not in self._busy
        self._busy[transactional_id] = value

    def stored(self, transactional_id: str) -> None:
        """The change is durable, and the id's state from now on."""
        self.restore(transactional_id, self._busy.pop(transactional_id))

    def not_stored(self, transactional_id: str) -> None:
        """The change was not written: the id is as it was."""
        del self._busy[transactional_id]

    def restore(self, transactional_id: str, value: Transaction | None) -> None:
        """The id as the journal knew it last."""
        if value is None:
            self._current.pop(transactional_id, None)
        else:
            self._current[transactional_id] = value

    # Requests

    def needs_producer_id(self, transactional_id: str, expected: Producer | None) -> bool:
        """Whether `init` has to be given a new producer id."""
        current = self._current.get(transactional_id)
        if current is None:
            return True
        return current.state in IDLE and current.is_exhausted and (expected is None or expected.epoch == current.epoch)

    def init(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None, new_id: int | None, now_ms: int
    ) -> int | Transaction:
        """InitProducerId. What it gives is `EMPTY`, or, when another producer's transaction has to be aborted first,
        `PREPARE_ABORT`: then the client is told CONCURRENT_TRANSACTIONS, and asks again."""
        if not _is_name(transactional_id):
            return codes.INVALID_REQUEST
        if not 0 < timeout_ms <= self._max_timeout_ms:
            return codes.INVALID_TRANSACTION_TIMEOUT
        if transactional_id in self._busy:
            return codes.CONCURRENT_TRANSACTIONS
        current = self._current.get(transactional_id)
        if current is None:
            assert new_id is not None
            return Transaction(new_id, 0, timeout_ms, State.EMPTY, frozenset(), NOT_STARTED, now_ms)
        if expected is not None and not _is_known(current, expected):
            return codes.PRODUCER_FENCED
        if current.state in PREPARED:
            return codes.CONCURRENT_TRANSACTIONS
        if current.state is State.ONGOING:
            return fenced(current, now_ms)
        if current.is_exhausted and (expected is None or expected.epoch == current.epoch):
            assert new_id is not None
            last = NO_EPOCH if expected is None else current.epoch
            producer = (new_id, 0, last, current.producer_id)
        elif expected is None:
            producer = (current.producer_id, current.epoch + 1, NO_EPOCH, current.previous_producer_id)
        elif expected.epoch == current.epoch:
            producer = (current.producer_id, current.epoch + 1, current.epoch, current.previous_producer_id)
        elif expected.epoch == current.last_epoch:  # the answer to the same request was lost
            producer = (current.producer_id, current.epoch, current.last_epoch, current.previous_producer_id)
        else:
            return codes.PRODUCER_FENCED
        return _move(
            current,
            State.EMPTY,
            now_ms,
            producer_id=producer[0],
            epoch=producer[1],
            last_epoch=producer[2],
            previous_producer_id=producer[3],
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NOT_STARTED,
        )

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition], now_ms: int
    ) -> int | Transaction:
        """AddPartitionsToTxn and AddOffsetsToTxn: the first one begins a transaction."""
        current = self._checked(transactional_id, producer)
        if isinstance(current, int):
            return current
        if transactional_id in self._busy or current.state in PREPARED:
            return codes.CONCURRENT_TRANSACTIONS
        wanted = current.partitions | frozenset(partitions)
        if current.state is State.ONGOING and wanted == current.partitions:
            return codes.NONE
        started_ms = current.started_ms if current.state is State.ONGOING else now_ms
        return _move(current, State.ONGOING, now_ms, partitions=wanted, started_ms=started_ms)

    def end(self, transactional_id: str, producer: Producer, *, committed: bool, now_ms: int) -> int | Transaction:
        """EndTxn."""
        current = self._checked(transactional_id, producer)
        if isinstance(current, int):
            return current
        if transactional_id in self._busy:
            return codes.CONCURRENT_TRANSACTIONS
        prepared = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        done = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
        if current.state is State.ONGOING:
            return _move(current, prepared, now_ms)
        if current.state is done:  # the answer to the same request was lost
            return codes.NONE
        return codes.CONCURRENT_TRANSACTIONS if current.state is prepared else codes.INVALID_TXN_STATE

    def check_write(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> int:
        """Whether this producer may write to this partition now, as a part of its transaction."""
        current = self._checked(transactional_id, producer)
        if isinstance(current, int):
            return current
        if current.state in PREPARED:
            return codes.CONCURRENT_TRANSACTIONS
        if current.state is not State.ONGOING or partition not in current.partitions:
            return codes.INVALID_TXN_STATE
        # Behind the end of a transaction, though it is under way only, nothing of it may stand in a log.
        next_state = self._busy.get(transactional_id, current)
        is_open = next_state is not None and next_state.state is State.ONGOING
        return codes.NONE if is_open else codes.CONCURRENT_TRANSACTIONS

    # Time

    def timed_out(self, now_ms: int) -> list[str]:
        """Ids whose open transaction has taken longer than its producer allowed."""
        return [
            name
            for name, one in self._current.items()
            if one.state is State.ONGOING and one.started_ms + one.timeout_ms < now_ms and name not in self._busy
        ]

    def expired(self, now_ms: int) -> list[str]:
        """Ids that have no transaction and have not been used for the expiration time."""
        before_ms = now_ms - self._expiration_ms
        return [
            name
            for name, one in self._current.items()
            if one.state in IDLE and one.updated_ms <= before_ms and name not in self._busy
        ]

    def _checked(self, transactional_id: str, producer: Producer) -> int | Transaction:
        if not _is_name(transactional_id):
            return codes.INVALID_REQUEST
        current = self._current.get(transactional_id)
        if current is None or current.producer_id != producer.producer_id:
            return codes.INVALID_PRODUCER_ID_MAPPING
        return current if current.epoch == producer.epoch else codes.PRODUCER_FENCED


def _is_known(current: Transaction, expected: Producer) -> bool:
    """Whether the producer that asks had this transactional id, now or before its epochs ran out."""
    if expected.producer_id == current.producer_id:
        return True
    return expected.producer_id == current.previous_producer_id and expected.epoch >= LAST_USED_EPOCH


def _is_name(transactional_id: str) -> bool:
    """An id that a record can hold."""
    return bool(transactional_id) and len(transactional_id.encode()) <= MAX_STRING_BYTES
