"""The states of a consumer group (classic protocol) and every transition between them: the one table.

`Group` enters a state only along a row of this table, and the diagram in docs/offset-store.md is drawn from it.

Source: Apache Kafka's `ClassicGroupState`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(Enum):
    """Values are the names that DescribeGroups and ListGroups use."""

    EMPTY = "Empty"
    """No members. Offsets may be there; simple consumers may commit."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The next generation is decided; waiting for its leader's assignment to be given and durable."""
    STABLE = "Stable"
    """Every member can have its assignment; heartbeats keep it."""
    DEAD = "Dead"
    """Deleted or upgraded, or its coordinator is closing. Nothing leads out."""


class Transition(NamedTuple):
    source: State
    target: State
    cause: str


TRANSITIONS = (
    Transition(State.EMPTY, State.PREPARING_REBALANCE, "a member joins"),
    Transition(State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE, "all members joined, or the rebalance timed out"),
    Transition(State.PREPARING_REBALANCE, State.EMPTY, "no member is left"),
    Transition(State.COMPLETING_REBALANCE, State.STABLE, "the leader's assignment is durable"),
    Transition(State.COMPLETING_REBALANCE, State.PREPARING_REBALANCE, "a member joins, changes, leaves or times out"),
    Transition(State.STABLE, State.PREPARING_REBALANCE, "a member joins, changes, leaves or times out"),
    Transition(State.EMPTY, State.DEAD, "the group is deleted, or the coordinator closes"),
    Transition(State.PREPARING_REBALANCE, State.DEAD, "a consumer group takes its place, or the coordinator closes"),
    Transition(State.COMPLETING_REBALANCE, State.DEAD, "a consumer group takes its place, or the coordinator closes"),
    Transition(State.STABLE, State.DEAD, "a consumer group takes its place, or the coordinator closes"),
)

ALLOWED = frozenset((row.source, row.target) for row in TRANSITIONS)
