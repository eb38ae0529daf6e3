"""`Task`: an item that is in hand, or the head of a queue, and why nothing is done with it; made when somebody asks."""

from __future__ import annotations

from typing import Literal, NamedTuple

Why = Literal[
    "running", "store", "pool", "queued", "delivering", "retry", "throttled", "scheduled", "rate", "service", "paused",
    "commit", "ready",
]  # fmt: skip
"""running: in the function. store: in the function, which waits for a connection of its store. pool: in the function,
which waits for a place in the pool of HTTP calls. queued: with the workers, and not begun. delivering: its outputs wait
for the broker, or its result for somebody to see it. retry: it failed, and has a time. throttled: its service asks for
a slower pace. scheduled: it has a time of its own. rate: its rate is used up. service: its service is down. paused: by
the user. commit: it is too far ahead of what is committed. ready: it waits for a free worker."""

Stands = Literal["running", "queued", "delivering", "behind", "commit"]
"""Where an item is that can not be taken out: as in `Why`; behind: an earlier one of its shard."""


class Task(NamedTuple):
    """An item."""

    name: tuple[str, int]
    """Of its source."""
    number: int
    why: Why
    attempt: int = 1
    since: float | None = None
    """When its first attempt began, or was handed over; None before that."""
    due: float | None = None
    """When it goes on, where that is known."""
    behind: int = 0
    """Items of its shard that wait for it."""
    key: bytes | None = None


class Queue(NamedTuple):
    """Items of one shard that wait for its head."""

    head: int | None
    """Its number; None where the source has one shard, which is not told from the items in hand."""
    behind: int
    key: bytes | None
