"""Ending offsets: when a run that should read only so far has read so far.

The idea: what counts is what the *group* has committed. Partitions of our own are known here; those of other members
are asked for from the broker, but only once our own are through, and not too often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.offsets import PartitionTracker

ASK_EVERY_S = 0.5
"""Time between two questions to the broker for other members' committed offsets."""

SETTLE_S = 5.0
"""How long a committed offset past the ending offset is not believed, before this member has had partitions: a commit
beyond the log's end (a topic made anew) must be told as the error that it is, and the assignment finds that out. Beside
a store it is the same with one at the ending offset."""


class Part(Protocol):
    """A partition of ours."""

    committed: int | None
    tracker: PartitionTracker


class Ending:
    """The ending offsets of a run, and which of them the group has reached."""

    __slots__ = ("_ask_at", "_asking", "_check_at", "_has_store", "_is_new", "_offsets", "_reached", "_settled_at")

    def __init__(self, offsets: Mapping[tuple[str, int], int], *, has_store: bool = False) -> None:
        """`has_store`: an assignment holds what is committed against a store, which may not have seen it."""
        self._offsets = dict(offsets)
        self._has_store = has_store
        self._reached: set[tuple[str, int]] = set()
        self._settled_at: float | None = None
        self._asking = False
        self._ask_at = float("-inf")
        self._check_at: float | None = None
        self._is_new = True
        """Whether something may have changed since `is_reached` looked: with many partitions, looking costs."""

    def of(self, topic: str, partition: int) -> int | None:
        return self._offsets.get((topic, partition))

    def committed(self, offsets: Mapping[tuple[str, int], int | None], now: float) -> None:
        """The broker's answer: what the group has committed (None: nothing)."""
        self._asking = False
        self._is_new = True
        self._ask_at = now + ASK_EVERY_S
        settled = self._settled_at is not None and now >= self._settled_at
        for name, offset in offsets.items():
            end = self._offsets[name]
            if offset is not None and (offset >= end if settled else offset == end and not self._has_store):
                self._reached.add(name)

    def delete(self, topic: str, partitions: Mapping[tuple[str, int], Part]) -> list[str]:
        """The topic is no more, so that its ending offsets count as reached. Returns what was to be processed still, by
        partition: what others have committed of it is gone as well."""
        left = []
        for name, end in self._offsets.items():
            if name[0] != topic or name in self._reached:
                continue
            self._reached.add(name)
            if name not in partitions:
                left.append(f"{topic}-{name[1]} from an offset that this member does not know up to {end}")
            elif (base := partitions[name].tracker.base) < end:
                left.append(f"{topic}-{name[1]} from offset {base} up to {end}")
        self._is_new = True
        return left

    def assigned(self) -> None:
        """This member has partitions."""
        self._settled_at = float("-inf")

    def changed(self) -> None:
        """A commit of ours was acknowledged, or partitions came or went."""
        self._is_new = True

    def is_reached(self, partitions: Mapping[tuple[str, int], Part]) -> bool:
        """Whether the group's committed offsets have reached every ending offset, as far as is known."""
        if not self._is_new:
            return False
        self._is_new = False
        return all(name in self._reached or self._is_ours(name, partitions) for name in self._offsets)

    def ask(self, partitions: Mapping[tuple[str, int], Part], now: float) -> list[tuple[str, int]]:
        """Partitions whose committed offset to ask the broker for now: others', once our own are through."""
        self._check_at = None
        if self._asking:
            return []
        if any(name in self._offsets and not self._is_ours(name, partitions) for name in partitions):
            return []
        waiting = [name for name in self._offsets if name not in self._reached and not self._is_ours(name, partitions)]
        if now < self._ask_at:
            self._check_at = self._ask_at
            return []
        if self._settled_at is None:
            self._settled_at = now + SETTLE_S
        self._asking = bool(waiting)
        return waiting

    def next_check(self) -> float | None:
        """When there is something to ask even if nothing happens."""
        return self._check_at

    def _is_ours(self, name: tuple[str, int], partitions: Mapping[tuple[str, int], Part]) -> bool:
        partition = partitions.get(name)
        return partition is not None and partition.committed is not None and partition.committed >= self._offsets[name]
