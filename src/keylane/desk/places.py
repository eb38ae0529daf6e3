"""Records and topics, as people name them: `TOPIC:PARTITION@OFFSET`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import UsageError
from keylane.telling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}@{self.offset}"


def place(what: str, text: str) -> Place:
    """`TOPIC:PARTITION@OFFSET` of a record, which is called `what`. Raises `UsageError`."""
    found = re.fullmatch(r"(.+):(\d{1,9})@(\d{1,18})", text)
    if found is None:
        raise UsageError(f"{text}: give a {what} as TOPIC:PARTITION@OFFSET, like orders.dead:3@1041")
    return Place(found[1], int(found[2]), int(found[3]))


def check_topic(topic: str, known: Iterable[str]) -> None:
    """Raises `UsageError` for a topic that is not among those that exist."""
    if topic not in (known := list(known)):
        hint = did_you_mean(topic, known) or "`keylane topics list` shows those that do"
        raise UsageError(f"the topic {topic!r} does not exist: {hint}")


def places(names: Iterable[str], topics: Callable[[Iterable[str]], Mapping[str, int]]) -> list[Place]:
    """The records that are named, each once; `topics` says how many partitions topics have. Raises `UsageError`, and
    what `topics` does."""
    found = list(dict.fromkeys(place("record", name) for name in names))
    counts = topics([one.topic for one in found])
    for one in found:
        check_topic(one.topic, counts)
        if one.partition >= counts[one.topic]:
            raise UsageError(f"{one}: the topic has partitions 0 to {counts[one.topic] - 1}")
    return found
