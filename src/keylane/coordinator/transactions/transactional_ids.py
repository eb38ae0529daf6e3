"""Transactional ids as a state machine: requests and the time in, error codes or the next state out.

There is no clock, journal or socket here. A decision is either an error code or the `Transaction` to make durable;
until `stored` says that it is, the id is busy and everyone else is told CONCURRENT_TRANSACTIONS. So what is served is
what a restart would load, and one id has one change under way at a time.

Sources: KIP-98, KIP-360 (a producer asks for a new epoch with the one it has), KIP-890 (only partitions that were added
are written to; each transaction of a producer that knows it has an epoch of its own); the rules of Apache Kafka's
`TransactionCoordinator` and `TransactionMetadata`.
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
LAST_EPOCH = LAST_USED_EPOCH + 1
CLASSIC, TAGGED_RECORDS, EPOCH_A_TRANSACTION = 0, 1, 2
"""Levels of `transaction.version`. From the second one on records have tagged fields; at the third a producer that asks
for it gets a new epoch with each transaction's end, and adds no partitions itself (KIP-890)."""

TopicPartition = tuple[str, int]


class Producer(NamedTuple):
    """A producer id and the epoch in which it is used."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """What is known of one transactional id. `last_epoch` is not stored, as in Kafka: it only recognises a repeated
    InitProducerId, whose answer was lost."""

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
    """The one in the state before this."""
    next_producer_id: int = NO_PRODUCER_ID
    """Of a prepared transaction whose end used the last epoch up: what its producer goes on with."""
    client_version: int = CLASSIC
    """How its producer asked for the last change: `CLASSIC` or `EPOCH_A_TRANSACTION`."""

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether this producer id has no epoch left to give."""
        return self.epoch >= LAST_USED_EPOCH


def _move(current: Transaction, target: State, now_ms: int, **changes: object) -> Transaction:
    assert (current.state, target) in ALLOWED, f"{current.state} -> {target}"
    moved = current._replace(state=target, updated_ms=now_ms, previous_producer_id=current.producer_id)
    return moved._replace(**changes)  # type: ignore[arg-type]


def _ended_to_next_epoch(current: Transaction, target: State, now_ms: int, next_id: int | None) -> Transaction:
    """The end of a transaction that raises the epoch: what its producer sent before and comes late is refused."""
    assert next_id is not None or not current.is_exhausted
    return _move(
        current,
        target,
        now_ms,
        epoch=min(current.epoch + 1, LAST_EPOCH),
        last_epoch=current.epoch,
        next_producer_id=next_id if current.is_exhausted else NO_PRODUCER_ID,
        client_version=EPOCH_A_TRANSACTION,
        started_ms=now_ms if current.state in IDLE else current.started_ms,
    )


def fenced(current: Transaction, now_ms: int, level: int, next_id: int | None) -> Transaction:
    """The end of an open transaction against its producer's will: aborted, and in an epoch that nobody was given."""
    fence = _move(current, State.PREPARE_EPOCH_FENCE, now_ms)
    if level >= EPOCH_A_TRANSACTION:
        return _ended_to_next_epoch(fence, State.PREPARE_ABORT, now_ms, next_id)
    epoch = min(current.epoch + 1, LAST_EPOCH)
    return _move(fence, State.PREPARE_ABORT, now_ms, epoch=epoch, last_epoch=NO_EPOCH, client_version=CLASSIC)


def completed(current: Transaction, now_ms: int) -> Transaction:
    """A prepared transaction, once all its markers are durable."""
    is_commit = current.state is State.PREPARE_COMMIT
    target = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
    goes_on = current.producer
    if current.next_producer_id != NO_PRODUCER_ID:
        goes_on = Producer(current.next_producer_id, 0)
    return _move(
        current,
        target,
        now_ms,
        producer_id=goes_on.producer_id,
        epoch=goes_on.epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


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

    def needs_producer_id(self, transactional_id: str, expected: Producer | None, level: int) -> bool:
        """Whether `init` has to be given a new producer id."""
        current = self._current.get(transactional_id)
        if current is None:
            return True
        if current.state is State.ONGOING:
            return self.needs_next_id(transactional_id, level)
        return current.state in IDLE and current.is_exhausted and (expected is None or expected.epoch == current.epoch)

    def needs_next_id(self, transactional_id: str, level: int = EPOCH_A_TRANSACTION) -> bool:
        """Whether an end that raises the epoch has to be given a new producer id."""
        current = self._current.get(transactional_id)
        return current is not None and current.is_exhausted and level >= EPOCH_A_TRANSACTION

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        new_id: int | None,
        now_ms: int,
        level: int,
    ) -> int | Transaction:
        """InitProducerId. What it gives is `EMPTY`, or, when another producer's transaction has to be aborted first,
        `PREPARE_ABORT`: then the client is told CONCURRENT_TRANSACTIONS, and asks again. `level` is that of
        `transaction.version`."""
        if not _is_name(transactional_id):
            return codes.INVALID_REQUEST
        if not 0 < timeout_ms <= self._max_timeout_ms:
            return codes.INVALID_TRANSACTION_TIMEOUT
        if transactional_id in self._busy:
            return codes.CONCURRENT_TRANSACTIONS
        current = self._current.get(transactional_id)
        if current is None:
            assert new_id is not None
            empty = Transaction(new_id, 0, timeout_ms, State.EMPTY, frozenset(), NOT_STARTED, now_ms)
            return empty._replace(previous_producer_id=new_id)
        if expected is not None and not _is_known(current, expected):
            return codes.PRODUCER_FENCED
        if current.state in PREPARED:
            return codes.CONCURRENT_TRANSACTIONS
        if current.state is State.ONGOING:
            return fenced(current, now_ms, level, new_id)
        if current.is_exhausted and (expected is None or expected.epoch == current.epoch):
            assert new_id is not None
            producer, last_epoch = Producer(new_id, 0), NO_EPOCH if expected is None else current.epoch
        elif expected is None:
            producer, last_epoch = current.producer._replace(epoch=current.epoch + 1), NO_EPOCH
        elif expected.epoch == current.epoch:
            producer, last_epoch = current.producer._replace(epoch=current.epoch + 1), current.epoch
        elif expected.epoch == current.last_epoch:  # the answer to the same request was lost
            producer, last_epoch = current.producer, current.last_epoch
        else:
            return codes.PRODUCER_FENCED
        return _move(
            current,
            State.EMPTY,
            now_ms,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NOT_STARTED,
        )

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        client_version: int = CLASSIC,
    ) -> int | Transaction:
        """AddPartitionsToTxn and AddOffsetsToTxn, and what a producer's records and offsets do by themselves: the first
        partition begins a transaction."""
        if self._is_under_way(transactional_id):
            return codes.CONCURRENT_TRANSACTIONS
        current = self._checked(transactional_id, producer)
        if isinstance(current, int):
            return current
        wanted = current.partitions | frozenset(partitions)
        if current.state is State.ONGOING and wanted == current.partitions:
            return codes.NONE
        started_ms = current.started_ms if current.state is State.ONGOING else now_ms
        return _move(
            current,
            State.ONGOING,
            now_ms,
            partitions=wanted,
            started_ms=started_ms,
            client_version=client_version,
        )

    def end(self, transactional_id: str, producer: Producer, *, committed: bool, now_ms: int) -> int | Transaction:
        """EndTxn, versions 0-4."""
        current = self._checked(transactional_id, producer)
        if isinstance(current, int):
            return current
        if transactional_id in self._busy:
            return codes.CONCURRENT_TRANSACTIONS
        prepared, done = _ends(committed=committed)
        if current.state is State.ONGOING:
            return _move(current, prepared, now_ms, client_version=CLASSIC)
        if current.state is done:  # the answer to the same request was lost
            return codes.NONE
        return codes.CONCURRENT_TRANSACTIONS if current.state is prepared else codes.INVALID_TXN_STATE

    def end_to_next_epoch(
        self, transactional_id: str, producer: Producer, *, committed: bool, now_ms: int, next_id: int | None
    ) -> int | Transaction:
        """EndTxn from version 5 on (KIP-890). Of a producer that has begun nothing, an abort raises the epoch alone."""
        if not _is_name(transactional_id):
            return codes.INVALID_REQUEST
        if self._is_under_way(transactional_id):
            return codes.CONCURRENT_TRANSACTIONS
        current = self._current.get(transactional_id)
        is_repeated = current is not None and _is_ended_by(current, producer)
        if current is None or (current.producer_id != producer.producer_id and not is_repeated):
            return codes.INVALID_PRODUCER_ID_MAPPING
        if current.epoch != producer.epoch and not is_repeated:
            return codes.PRODUCER_FENCED
        prepared, done = _ends(committed=committed)
        if is_repeated:  # the answer to the same request was lost
            return codes.NONE if current.state is done else codes.INVALID_TXN_STATE
        if committed and current.state is not State.ONGOING:
            return codes.INVALID_TXN_STATE
        return _ended_to_next_epoch(current, prepared, now_ms, next_id)

    def fence(self, transactional_id: str, now_ms: int, level: int, next_id: int | None) -> int | Transaction:
        """The abort of a transaction that has taken longer than its producer allowed; NONE when there is none (any
        more)."""
        current = self._current.get(transactional_id)
        if current is None or transactional_id in self._busy or not _is_timed_out(current, now_ms):
            return codes.NONE
        return fenced(current, now_ms, level, next_id)

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
        return [name for name, one in self._current.items() if _is_timed_out(one, now_ms) and name not in self._busy]

    def expired(self, now_ms: int) -> list[str]:
        """Ids that have no transaction and have not been used for the expiration time."""
        before_ms = now_ms - self._expiration_ms
        return [
            name
            for name, one in self._current.items()
            if one.state in IDLE and one.updated_ms <= before_ms and name not in self._busy
        ]

    def _is_under_way(self, transactional_id: str) -> bool:
        """Whether nothing can be said of an id: a change is not durable yet, or markers are being written."""
        current = self._current.get(transactional_id)
        return transactional_id in self._busy or (current is not None and current.state in PREPARED)

    def _checked(self, transactional_id: str, producer: Producer) -> int | Transaction:
        if not _is_name(transactional_id):
            return codes.INVALID_REQUEST
        current = self._current.get(transactional_id)
        if current is None or current.producer_id != producer.producer_id:
            return codes.INVALID_PRODUCER_ID_MAPPING
        return current if current.epoch == producer.epoch else codes.PRODUCER_FENCED


def _ends(*, committed: bool) -> tuple[State, State]:
    """What an end goes through, and where it ends."""
    if committed:
        return State.PREPARE_COMMIT, State.COMPLETE_COMMIT
    return State.PREPARE_ABORT, State.COMPLETE_ABORT


def _is_timed_out(current: Transaction, now_ms: int) -> bool:
    return current.state is State.ONGOING and current.started_ms + current.timeout_ms < now_ms


def _is_ended_by(current: Transaction, producer: Producer) -> bool:
    """Whether the last transaction was ended in this epoch, which was raised for it. A classic end raises none: the
    epoch before is another producer's then."""
    is_ended = current.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    if not is_ended or current.client_version != EPOCH_A_TRANSACTION:
        return False
    if producer.epoch == LAST_USED_EPOCH and current.epoch == 0:  # another producer id follows
        return current.previous_producer_id == producer.producer_id
    return producer == (current.producer_id, current.epoch - 1)


def _is_known(current: Transaction, expected: Producer) -> bool:
    """Whether the producer that asks had this transactional id, now or before its epochs ran out."""
    if expected.producer_id == current.producer_id:
        return True
    return expected.producer_id == current.previous_producer_id and expected.epoch >= LAST_USED_EPOCH


def _is_name(transactional_id: str) -> bool:
    """An id that a record can hold."""
    return bool(transactional_id) and len(transactional_id.encode()) <= MAX_STRING_BYTES
