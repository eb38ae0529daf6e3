"""`Work`: what a consumer has in hand, and where records wait and why, as one value that travels.

It is made when somebody asks, and says no more than a page shows: the oldest, the next and the longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from keylane.flow.keys import MAX_CHARACTERS, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keylane.flow.work import Task, Why

MOST = 50
"""Records of each list."""

IN_HAND = ("running", "store", "pool", "queued", "delivering")


class WorkRecord(NamedTuple):
    """A record that is in hand, or at the head of a queue."""

    topic: str
    partition: int
    offset: int
    why: Why
    attempt: int
    age_ms: int | None
    """Since its first attempt began, or was handed to the workers; None before that."""
    due_in_ms: int | None
    """Until it goes on, where that is known."""
    behind: int
    """Records of its key (or partition) that wait for it."""
    key: bytes | None
    """Of what has others behind it."""


class WorkDict(TypedDict):
    """`WorkRecord`, in JSON."""

    lane: int | None
    topic: str
    partition: int
    offset: int
    why: str
    attempt: int
    age_ms: int | None
    due_in_ms: int | None
    behind: int
    key: str | None
    """None also for one that is no text."""
    where: NotRequired[str | None]
    """The expression for just this key, unless that would be too long for one. Older members do not tell."""


@dataclass(frozen=True, slots=True)
class Work:
    """Up to `MOST` records of each kind."""

    in_hand: tuple[WorkRecord, ...] = ()
    """With the workers, or waiting for their outputs: the oldest first."""
    waiting: tuple[WorkRecord, ...] = ()
    """What has a time: the next first."""
    queues: tuple[WorkRecord, ...] = ()
    """The heads of the longest queues, the longest first; and what is held by its key, with or without others."""

    @classmethod
    def of(cls, tasks: Iterable[Task], now: float) -> Work:
        found = [_record(one, now) for one in tasks]
        in_hand = sorted((one for one in found if one.why in IN_HAND), key=lambda one: -(one.age_ms or 0))
        waiting = sorted((one for one in found if one.due_in_ms is not None), key=lambda one: one.due_in_ms or 0)
        queues = sorted((one for one in found if one.behind or one.why == "paused"), key=lambda one: -one.behind)
        return cls(tuple(in_hand[:MOST]), tuple(waiting[:MOST]), tuple(queues[:MOST]))


def with_reasons(work: Work, reasons: Mapping[tuple[str, int, int], Why]) -> Work:
    """The same, with what those wait for that run: by topic, partition and offset."""
    in_hand = (
        one._replace(why=reasons[one[:3]]) if one.why == "running" and one[:3] in reasons else one
        for one in work.in_hand
    )
    return replace(work, in_hand=tuple(in_hand))


def _record(task: Task, now: float) -> WorkRecord:
    topic, partition = task.name
    age_ms = None if task.since is None else round((now - task.since) * 1000)
    due_in_ms = None if task.due is None else max(0, round((task.due - now) * 1000))
    return WorkRecord(topic, partition, task.number, task.why, task.attempt, age_ms, due_in_ms, task.behind, task.key)


def to_dict(record: WorkRecord, lane: int | None, *, shows_keys: bool) -> WorkDict:
    """For JSON."""
    key = record.key if shows_keys else None
    return {
        "lane": lane,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "why": record.why,
        "attempt": record.attempt,
        "age_ms": record.age_ms,
        "due_in_ms": record.due_in_ms,
        "behind": record.behind,
        "key": None if key is None else _text(key),
        "where": None if key is None else _where(key),
    }


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _where(key: bytes) -> str | None:
    found = str(Where((key,)))
    return found if len(found) <= MAX_CHARACTERS else None
