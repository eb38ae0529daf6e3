"""What a partition remembers of each idempotent or transactional producer, to take every batch once and in order.

A producer stamps its batches with its id, an epoch, and a sequence number per partition that counts records and wraps
after 2^31 - 1. The last five batches are remembered (a producer has at most five requests in flight), so that one sent
again is answered with its first offset instead of being appended twice. Of a transactional one it also knows where its
open transaction began.

Source: KIP-98, KIP-360, and the rules of Apache Kafka's ProducerStateManager. Pure: the time is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.errors import PeerError

if TYPE_CHECKING:
    from keylane.wire.batches import BatchHeader

REMEMBERED_BATCHES = 5
"""Kafka's figure: `max.in.flight.requests.per.connection` may be at most 5 for idempotent producers."""
LAST_SEQUENCE = 2**31 - 1


class OutOfOrderSequenceError(PeerError):
    """A batch that does not follow the producer's last one: one was lost, or is no longer remembered."""


class ProducerEpochError(PeerError):
    """A batch of an epoch that a newer one has fenced."""


class TransactionStateError(PeerError):
    """A batch outside the transaction that its producer has open here."""


class RememberedBatch(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerState(NamedTuple):
    """One producer in one partition."""

    epoch: int
    batches: tuple[RememberedBatch, ...] = ()
    """The last ones of this epoch."""
    last_append_ms: int = 0
    transaction_start: int | None = None
    """The first offset of its open transaction."""


class ProducerDescription(NamedTuple):
    """What is known of a producer; -1 for a sequence or a transaction that there is none of."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_append_ms: int
    transaction_start: int


def last_sequence(header: BatchHeader) -> int:
    """The sequence number of the batch's last record, wrapped."""
    last = header.base_sequence + header.last_offset_delta
    return last if last <= LAST_SEQUENCE else last - LAST_SEQUENCE - 1


class Producers:
    """All producers of one partition."""

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self.highest_id = -1
        """Of all that have appended, remembered or not."""

    def __len__(self) -> int:
        return len(self._states)

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that this one repeats, or None when it may be appended.

        Raises `ProducerEpochError` for a fenced epoch, `OutOfOrderSequenceError` for a gap, and `TransactionStateError`
        for a batch of no transaction while one is open. A producer that the
        partition does not know may start with any sequence: its earlier batches may have expired.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            return None
        if header.producer_epoch != state.epoch:
            if header.producer_epoch < state.epoch:
                raise ProducerEpochError(
                    f"producer {header.producer_id} epoch {header.producer_epoch}: epoch {state.epoch} has fenced it"
                )
            if header.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id}: a new epoch {header.producer_epoch} starts with sequence 0, "
                    f"not {header.base_sequence}"
                )
            return None
        last = last_sequence(header)
        for batch in state.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                return batch
        if state.transaction_start is not None and not header.is_transactional:
            raise TransactionStateError(
                f"producer {header.producer_id} epoch {header.producer_epoch}: a batch of no transaction, where one is "
                f"open since offset {state.transaction_start}"
            )
        # Without a batch, its epoch is known from a marker: sequences start again.
        expected = state.batches[-1].last_sequence + 1 if state.batches else 0
        if header.base_sequence != (expected if expected <= LAST_SEQUENCE else 0):
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} epoch {header.producer_epoch}: sequence {header.base_sequence}, "
                f"where {expected} follows"
            )
        return None

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> bool:
        """Remember a batch that was appended at `base_offset`, without checking it (recovery calls it, too).

        Whether it begins a transaction.
        """
        state = self._state(header)
        last_offset = base_offset + header.last_offset_delta
        batch = RememberedBatch(header.base_sequence, last_sequence(header), base_offset, last_offset)
        begins = header.is_transactional and state.transaction_start is None
        self._states[header.producer_id] = ProducerState(
            state.epoch,
            (*state.batches[1 - REMEMBERED_BATCHES :], batch),
            now_ms,
            base_offset if begins else state.transaction_start,
        )
        return begins

    def end_transaction(self, header: BatchHeader, now_ms: int) -> int | None:
        """Remember a marker; the first offset of the transaction that it ends, if there is one.

        Raises `ProducerEpochError` when a later epoch has written here.
        """
        known = self._states.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            raise ProducerEpochError(
                f"producer {header.producer_id}: a marker of epoch {header.producer_epoch}, after epoch {known.epoch}"
            )
        state = self._state(header)
        self._states[header.producer_id] = state._replace(last_append_ms=now_ms, transaction_start=None)
        return state.transaction_start

    def _state(self, header: BatchHeader) -> ProducerState:
        """The producer's, of the epoch that this batch has: a new one begins its sequences anew."""
        self.highest_id = max(self.highest_id, header.producer_id)
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            start = None if state is None else state.transaction_start
            return ProducerState(header.producer_epoch, transaction_start=start)
        return state

    def state_of(self, producer_id: int) -> ProducerState | None:
        """What is remembered of a producer, to put back if what it appends next is not written."""
        return self._states.get(producer_id)

    def put_back(self, producer_id: int, state: ProducerState | None) -> None:
        """What was remembered before the last append, which was not written."""
        if state is None:
            self._states.pop(producer_id, None)
        else:
            self._states[producer_id] = state

    def described(self) -> list[ProducerDescription]:
        """Every producer that is remembered."""
        return [
            ProducerDescription(
                producer_id,
                state.epoch,
                state.batches[-1].last_sequence if state.batches else -1,
                state.last_append_ms,
                -1 if state.transaction_start is None else state.transaction_start,
            )
            for producer_id, state in self._states.items()
        ]

    def last_batches(self) -> dict[int, int]:
        """Producer id -> base offset of its last batch; -1 when only a marker of it is known."""
        return {
            producer_id: state.batches[-1].base_offset if state.batches else -1
            for producer_id, state in self._states.items()
        }

    def expire(self, before_ms: int) -> None:
        """Forget the producers whose last append was before the given time, but for those in a transaction."""
        self._states = {
            key: state
            for key, state in self._states.items()
            if state.last_append_ms >= before_ms or state.transaction_start is not None
        }

    def snapshot(self) -> dict[str, Any]:
        """Everything, for JSON."""
        states = [
            [
                producer_id,
                state.epoch,
                state.last_append_ms,
                [list(batch) for batch in state.batches],
                state.transaction_start,
            ]
            for producer_id, state in self._states.items()
        ]
        return {"highest_id": self.highest_id, "states": states}

    @classmethod
    def restore(cls, snapshot: dict[str, Any] | list[Any]) -> Producers:
        """The inverse of `snapshot`; an older keylane left the states alone."""
        producers = cls()
        states = snapshot if isinstance(snapshot, list) else snapshot["states"]
        producers.highest_id = max((row[0] for row in states), default=-1)
        if isinstance(snapshot, dict):
            producers.highest_id = snapshot["highest_id"]
        for producer_id, epoch, last_append_ms, batches, transaction_start in states:
            remembered = tuple(RememberedBatch(*batch) for batch in batches)
            producers._states[producer_id] = ProducerState(epoch, remembered, last_append_ms, transaction_start)
        return producers
