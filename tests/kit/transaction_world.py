"""The transactional ids of a coordinator, for tests of what they decide."""

from __future__ import annotations

from keylane.coordinator.transactions.states import State
from keylane.coordinator.transactions.transactional_ids import (
    CLASSIC,
    EPOCH_A_TRANSACTION,
    Producer,
    Transaction,
    TransactionalIds,
    completed,
)
from keylane.wire import codes

TIMEOUT_MS = 60_000
T0 = ("t", 0)
T1 = ("t", 1)


class World:
    """One coordinator's transactions, a clock, and a journal that is always in time."""

    def __init__(self, level: int = CLASSIC) -> None:
        self.level = level
        self.now = 1_000_000
        self.ids = 100
        self.transactions = TransactionalIds(max_timeout_ms=900_000, expiration_ms=1_000_000)

    def store(self, decided: int | Transaction, name: str = "x") -> int | Transaction:
        if not isinstance(decided, int):
            self.transactions.begin(name, decided)
            self.transactions.stored(name)
        return decided

    def init(self, expected: Producer | None = None, name: str = "x") -> int | Producer:
        new_id = self.new_id(is_needed=self.transactions.needs_producer_id(name, expected, self.level))
        decided = self.transactions.init(name, TIMEOUT_MS, expected, new_id, self.now, self.level)
        self.store(decided, name)
        if isinstance(decided, int):
            return decided
        return decided.producer if decided.state is State.EMPTY else codes.CONCURRENT_TRANSACTIONS

    def new_id(self, *, is_needed: bool) -> int | None:
        self.ids += is_needed
        return self.ids if is_needed else None

    def producer(self) -> Producer:
        producer = self.init()
        assert isinstance(producer, Producer)
        return producer

    def add(self, producer: Producer, *partitions: tuple[str, int]) -> int:
        client_version = EPOCH_A_TRANSACTION if self.level == EPOCH_A_TRANSACTION else CLASSIC
        decided = self.store(self.transactions.add_partitions("x", producer, partitions, self.now, client_version))
        return decided if isinstance(decided, int) else codes.NONE

    def add_classic(self, producer: Producer, *partitions: tuple[str, int]) -> int:
        decided = self.store(self.transactions.add_partitions("x", producer, partitions, self.now))
        return decided if isinstance(decided, int) else codes.NONE

    def end(self, producer: Producer, *, committed: bool = True) -> int:
        decided = self.store(self.transactions.end("x", producer, committed=committed, now_ms=self.now))
        return decided if isinstance(decided, int) else codes.NONE

    def end_to_next(self, producer: Producer, *, committed: bool = True) -> int | Producer:
        """What the producer goes on with, or an error."""
        next_id = self.new_id(is_needed=self.transactions.needs_next_id("x"))
        decided = self.transactions.end_to_next_epoch(
            "x", producer, committed=committed, now_ms=self.now, next_id=next_id
        )
        self.store(decided)
        if isinstance(decided, Transaction):
            return completed(decided, self.now).producer
        return self.current.producer if decided == codes.NONE else decided

    def fence(self) -> int | Transaction:
        next_id = self.new_id(is_needed=self.transactions.needs_next_id("x", self.level))
        return self.store(self.transactions.fence("x", self.now, self.level, next_id))

    def complete(self) -> None:
        self.store(completed(self.current, self.now))

    def state(self) -> State:
        return self.current.state

    @property
    def current(self) -> Transaction:
        current = self.transactions.get("x")
        assert current is not None
        return current
