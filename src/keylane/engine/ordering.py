"""Which records of a partition may run at the same time: shards of first-in-first-out queues.

The idea: a shard has at most one record out (ready, in a handler, waiting for a retry, or waiting for its outputs), or
a few that were handed over together (`Chain`). The others of the shard wait behind in offset order, and completing the
last one out brings out the next. KEY has a shard a key of the partition, PARTITION one for the partition, UNORDERED
none. A record without a key has nothing to keep its place relative to: under KEY it is a shard of its own, so records
without a key are unordered among themselves.

A queue is no object of its own: each record names the one behind it (`Work.next`), and the shard knows its last. That
costs nothing where most keys have one or two records, and what was handed over and has not run is still in its place.

The caller hands in a partition's work in offset order, and releases exactly what it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keylane.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.engine.work import Work
    from keylane.options import Ordering


class Shards(Protocol):
    """The ordering of one partition's work."""

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        """Take newly polled work; return what may run at once, in offset order."""

    def release(self, works: Iterable[Work]) -> list[Work]:
        """These are complete, each the last of its shard that was out: return the next ones, which may run now."""

    @property
    def count(self) -> int:
        """Shards with a record out or waiting."""


class Unordered:
    """UNORDERED: every record may run."""

    __slots__ = ()

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        return works

    def release(self, works: Iterable[Work]) -> list[Work]:  # noqa: ARG002 - the protocol's
        return []

    @property
    def count(self) -> int:
        return 0


class ByPartition:
    """PARTITION: one record of the partition at a time."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Work | None = None

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        ready = works[:1] if self._last is None else ()
        last = self._last
        for work in works:
            if last is not None:
                last.next = work
            last = work
        self._last = last
        return ready

    def release(self, works: Iterable[Work]) -> list[Work]:
        following = []
        for work in works:
            if work.next is not None:
                following.append(work.next)
                work.next = None
            elif work is self._last:
                self._last = None
            else:
                raise InternalError(f"{work.name} was released, but is not out")
        return following

    @property
    def count(self) -> int:
        return int(self._last is not None)


class ByKey:
    """KEY: one record of a key at a time; records without a key run freely."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[bytes, Work] = {}
        """By key, while a record of it is out."""

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        ready = []
        lasts = self._last
        for work in works:
            key = work.key
            if key is None:
                ready.append(work)
                continue
            last = lasts.setdefault(key, work)
            if last is work:
                ready.append(work)
            else:
                last.next = lasts[key] = work
        return ready

    def release(self, works: Iterable[Work]) -> list[Work]:
        following = []
        lasts = self._last
        for work in works:
            if work.next is not None:
                following.append(work.next)
                work.next = None
            elif (key := work.key) is not None and lasts.pop(key, None) is not work:
                raise InternalError(f"{work.name} was released, but no record of its key {key!r} is out")
        return following

    @property
    def count(self) -> int:
        return len(self._last)


def followers(work: Work, most: int, limit: int) -> list[Work]:
    """Up to `most` records that wait behind `work` in its shard, in order, with offsets up to `limit`."""
    found: list[Work] = []
    one = work.next
    while one is not None and len(found) < most and one.offset <= limit:
        found.append(one)
        one = one.next
    return found


def shards_for(ordering: Ordering) -> Shards:
    """The shards of a newly assigned partition."""
    if ordering == "key":
        return ByKey()
    return ByPartition() if ordering == "partition" else Unordered()
