"""Producers of transactions V2, late requests of all of them, restarts and time: no epoch serves two transactions, and
nothing enters a transaction that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.coordinator.transactions.records import FLEXIBLE_VERSION, decode_transaction, encode_transaction
from keylane.coordinator.transactions.states import PREPARED, State
from keylane.coordinator.transactions.transactional_ids import (
    EPOCH_A_TRANSACTION,
    LAST_USED_EPOCH,
    Producer,
    TransactionalIds,
)
from keylane.wire import codes
from kit.transaction_world import T0, T1, TIMEOUT_MS, World

if TYPE_CHECKING:
    from keylane.coordinator.transactions.transactional_ids import TopicPartition

PARTITIONS = st.sampled_from([T0, T1])


class Epochs(RuleBasedStateMachine):
    """One transactional id."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(EPOCH_A_TRANSACTION)
        self.given: list[Producer] = []
        """All that producers were told, in order."""
        self.written: dict[Producer, set[TopicPartition]] = {}
        """By producer: where its records of the open transaction are."""
        self.decided: dict[Producer, bool] = {}
        """By the producer that asked: whether its transaction was committed."""
        self.cut_off: set[Producer] = set()
        """Those that a fence has ended."""

    @initialize(near_the_end=st.booleans())
    def begin(self, near_the_end: bool) -> None:
        producer = self.world.producer()
        if near_the_end:
            self.world.store(self.world.current._replace(epoch=LAST_USED_EPOCH - 2))
            producer = self.world.current.producer
        self.given.append(producer)

    def pick(self, data: st.DataObject) -> Producer:
        return data.draw(st.sampled_from(self.given[-4:]))

    def tell(self, producer: Producer) -> None:
        if producer != self.given[-1]:
            assert producer not in self.given, "an epoch that was given before"
            self.given.append(producer)

    @rule(data=st.data(), partition=PARTITIONS)
    def write(self, data: st.DataObject, partition: TopicPartition) -> None:
        producer = self.pick(data)
        error = self.world.transactions.check_write("x", producer, partition)
        if error != codes.NONE:
            error = self.world.add(producer, partition)
        if error == codes.NONE:
            assert producer not in self.decided, "behind the end of its transaction"
            assert producer not in self.cut_off, "behind a fence"
            assert producer == self.given[-1], "a later one was given"
            assert self.world.transactions.check_write("x", producer, partition) == codes.NONE
            self.written.setdefault(producer, set()).add(partition)

    @rule(data=st.data(), committed=st.booleans())
    def end(self, data: st.DataObject, committed: bool) -> None:
        producer = self.pick(data)
        answer = self.world.end_to_next(producer, committed=committed)
        if not isinstance(answer, Producer):
            return
        if producer in self.decided:
            assert self.decided[producer] is committed, "another answer to the same question"
            assert answer == self.given[-1]
        else:
            assert not (committed and producer in self.cut_off), "committed, and aborted before"
            assert not committed or self.written.get(producer), "a commit of nothing"
            self.decided[producer] = committed
            if self.world.state() in PREPARED:
                assert self.world.current.partitions == self.written.get(producer, set()), "each gets a marker"
            self.tell(answer)

    @precondition(lambda self: self.world.state() in PREPARED)
    @rule()
    def complete(self) -> None:
        self.world.complete()

    @precondition(lambda self: self.world.state() is State.ONGOING)
    @rule()
    def take_too_long(self) -> None:
        self.world.now += TIMEOUT_MS + 1
        self.cut_off.add(self.world.current.producer)
        self.world.fence()

    @rule()
    def another_producer(self) -> None:
        is_open = self.world.state() is State.ONGOING
        current = self.world.current.producer
        answer = self.world.init()
        if is_open:
            self.cut_off.add(current)
        if isinstance(answer, Producer):
            self.tell(answer)

    @rule()
    def restart(self) -> None:
        """Everything that is stored, and nothing else."""
        stored = encode_transaction(self.world.current, FLEXIBLE_VERSION)
        self.world.transactions = TransactionalIds(max_timeout_ms=900_000, expiration_ms=1_000_000)
        self.world.transactions.restore("x", decode_transaction(stored))

    @invariant()
    def the_last_epoch_is_nobodys(self) -> None:
        assert all(0 <= producer.epoch <= LAST_USED_EPOCH for producer in self.given)


TestEpochs = Epochs.TestCase
