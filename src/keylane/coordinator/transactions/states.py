"""The states of a transactional id and every transition between them: the one table.

`keylane.coordinator.transactions.transactional_ids` enters a state only along a row of this table, and the tables in
docs/transactions.md are made from it.

Source: Apache Kafka's `TransactionState`, with the rows of transactions V2 (KIP-890).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(Enum):
    """Values are the numbers that `__transaction_state` stores."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that DescribeTransactions and ListTransactions use: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


MEANINGS = {
    State.EMPTY: "the producer has its id and epoch, and no transaction yet",
    State.ONGOING: "a transaction is open; its partitions are known",
    State.PREPARE_COMMIT: "it will be committed, whatever happens; markers are being written",
    State.PREPARE_ABORT: "it will be aborted, whatever happens; markers are being written",
    State.COMPLETE_COMMIT: "it is committed, and every partition has its marker",
    State.COMPLETE_ABORT: "it is aborted, and every partition has its marker",
    State.DEAD: "the transactional id has expired and is forgotten; stored as a tombstone",
    State.PREPARE_EPOCH_FENCE: "the epoch is raised against the running producer; left at once for PrepareAbort, "
    "and never stored",
}

IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""No transaction: one may begin, and the id may expire."""
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""Decided, and not carried out yet."""


class Transition(NamedTuple):
    source: State
    target: State
    cause: str


_BEGINS = "partitions or offsets of a group are added"
_INIT = "InitProducerId: a new epoch"
_EMPTY_END = "EndTxn: abort, of no transaction (transactions V2)"
_EXPIRES = "not used for transactional.id.expiration.ms"

TRANSITIONS = (
    Transition(State.EMPTY, State.EMPTY, _INIT),
    Transition(State.EMPTY, State.ONGOING, _BEGINS),
    Transition(State.ONGOING, State.ONGOING, _BEGINS),
    Transition(State.ONGOING, State.PREPARE_COMMIT, "EndTxn: commit"),
    Transition(State.ONGOING, State.PREPARE_ABORT, "EndTxn: abort"),
    Transition(State.ONGOING, State.PREPARE_EPOCH_FENCE, "its timeout has passed, or another producer asks for the id"),
    Transition(State.PREPARE_EPOCH_FENCE, State.PREPARE_ABORT, "at once"),
    Transition(State.EMPTY, State.PREPARE_ABORT, _EMPTY_END),
    Transition(State.COMPLETE_COMMIT, State.PREPARE_ABORT, _EMPTY_END),
    Transition(State.COMPLETE_ABORT, State.PREPARE_ABORT, _EMPTY_END),
    Transition(State.PREPARE_COMMIT, State.COMPLETE_COMMIT, "every marker is durable"),
    Transition(State.PREPARE_ABORT, State.COMPLETE_ABORT, "every marker is durable"),
    Transition(State.COMPLETE_COMMIT, State.ONGOING, _BEGINS),
    Transition(State.COMPLETE_ABORT, State.ONGOING, _BEGINS),
    Transition(State.COMPLETE_COMMIT, State.EMPTY, _INIT),
    Transition(State.COMPLETE_ABORT, State.EMPTY, _INIT),
    Transition(State.EMPTY, State.DEAD, _EXPIRES),
    Transition(State.COMPLETE_COMMIT, State.DEAD, _EXPIRES),
    Transition(State.COMPLETE_ABORT, State.DEAD, _EXPIRES),
)

ALLOWED = frozenset((row.source, row.target) for row in TRANSITIONS)
