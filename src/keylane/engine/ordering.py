"""Which records of a partition may run at the same time: shards of first-in-first-out queues.

The idea: a shard has at most one record out (ready, in a handler, waiting for a retry, or waiting for its outputs), or
a few that were handed over together (`Chain`). The others of the shard wait behind in offset order, and completing the
last one out brings out the next. KEY has a shard a key of the partition, PARTITION one for the partition, UNORDERED
none. A record without a key has nothing to keep its place relative to: under KEY it is a shard of its own, so records
without a key are unordered among themselves.

The caller hands in a partition's work in offset order, and releases exactly what it was given.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from keylane.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.work import Work
    from keylane.options import Ordering


class Shards(Protocol):
    """The ordering of one partition's work."""

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        """Take newly polled work; return what may run at once, in offset order."""

    def release(self, work: Work) -> Work | None:
        """`work` is complete: return the next of its shard, which may run now."""

    def follow(self, work: Work, most: int, limit: int) -> list[Work]:
        """Up to `most` records that wait behind `work`, in order, with offsets up to `limit`; they are out, too."""

    def put_back(self, works: Sequence[Work]) -> None:
        """Records that `follow` gave have not run: they wait again, before the others of their shard."""

    def behind(self, work: Work) -> int:
        """How many records wait behind `work`."""

    @property
    def count(self) -> int:
        """Shards with a record out or waiting."""


class Unordered:
    """UNORDERED: every record may run."""

    __slots__ = ()

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        return works

    def release(self, work: Work) -> Work | None:  # noqa: ARG002 - the protocol's
        return None

    def follow(self, work: Work, most: int, limit: int) -> list[Work]:  # noqa: ARG002 - the protocol's
        return []

    def put_back(self, works: Sequence[Work]) -> None:
        assert not works, works

    def behind(self, work: Work) -> int:  # noqa: ARG002 - the protocol's
        return 0

    @property
    def count(self) -> int:
        return 0


class ByPartition:
    """PARTITION: one record of the partition at a time."""

    __slots__ = ("_busy", "_queue")

    def __init__(self) -> None:
        self._queue: deque[Work] = deque()
        self._busy = False

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        self._queue.extend(works)
        if self._busy or not self._queue:
            return ()
        self._busy = True
        return (self._queue.popleft(),)

    def release(self, work: Work) -> Work | None:
        if not self._busy:
            raise InternalError(f"{work.name} was released, but no record of its partition is out")
        if self._queue:
            return self._queue.popleft()
        self._busy = False
        return None

    def follow(self, work: Work, most: int, limit: int) -> list[Work]:  # noqa: ARG002 - the protocol's
        return _take(self._queue, most, limit)

    def put_back(self, works: Sequence[Work]) -> None:
        self._queue.extendleft(reversed(works))

    def behind(self, work: Work) -> int:  # noqa: ARG002 - the protocol's
        return len(self._queue)

    @property
    def count(self) -> int:
        return int(self._busy)


class ByKey:
    """KEY: one record of a key at a time; records without a key run freely."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: dict[bytes, deque[Work] | None] = {}
        """A key is here while a record of it is out. None stands for an empty queue: most keys never need one."""

    def admit(self, works: Sequence[Work]) -> Sequence[Work]:
        ready = []
        shards = self._shards
        for work in works:
            key = work.key
            if key is None:
                ready.append(work)
            elif key not in shards:
                shards[key] = None
                ready.append(work)
            else:
                queue = shards[key]
                if queue is None:
                    shards[key] = deque((work,))
                else:
                    queue.append(work)
        return ready

    def release(self, work: Work) -> Work | None:
        key = work.key
        if key is None:
            return None
        try:
            queue = self._shards[key]
        except KeyError:
            raise InternalError(f"{work.name} was released, but no record of its key {key!r} is out") from None
        if queue:
            return queue.popleft()
        del self._shards[key]
        return None

    def follow(self, work: Work, most: int, limit: int) -> list[Work]:
        queue = None if work.key is None else self._shards[work.key]
        return _take(queue, most, limit) if queue else []

    def put_back(self, works: Sequence[Work]) -> None:
        if not works:
            return
        key = works[0].key
        assert key is not None, works
        queue = self._shards[key]
        if queue is None:
            self._shards[key] = deque(works)
        else:
            queue.extendleft(reversed(works))

    def behind(self, work: Work) -> int:
        queue = None if work.key is None else self._shards[work.key]
        return len(queue) if queue else 0

    @property
    def count(self) -> int:
        return len(self._shards)


def _take(queue: deque[Work], most: int, limit: int) -> list[Work]:
    taken: list[Work] = []
    while queue and len(taken) < most and queue[0].offset <= limit:
        taken.append(queue.popleft())
    return taken


def shards_for(ordering: Ordering) -> Shards:
    """The shards of a newly assigned partition."""
    if ordering == "key":
        return ByKey()
    return ByPartition() if ordering == "partition" else Unordered()
