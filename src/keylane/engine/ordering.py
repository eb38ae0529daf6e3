"""Which records of a partition may run at the same time: shards of first-in-first-out queues.

The idea: a shard has at most one record out (ready, in a handler, waiting for a retry, or waiting for its outputs), or
a few that were handed over together (`Chain`). The others of the shard wait behind in offset order, and completing the
last one out brings out the next. KEY has a shard a key of the partition, PARTITION one for the partition, UNORDERED
none. A record without a key has nothing to keep its place relative to: under KEY it is a shard of its own, so records
without a key are unordered among themselves.

A key's queue is no object of its own: of each record that has one behind it the partition knows that one, and of each
key the last. That costs nothing where most keys have one record, and what was handed over in a chain and has not run is
still in its place.

The caller hands in a partition's records in offset order, and releases exactly what it was given. Offsets come beside
the messages, because asking each for its offset again costs as much as what is done here.
"""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Protocol

from keylane.engine.work import name_of
from keylane.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.options import Ordering
    from keylane.records import Message


class Shards(Protocol):
    """The ordering of one partition's records."""

    def admit(self, offsets: Sequence[int], messages: Sequence[Message]) -> Sequence[Message]:
        """Take newly polled records; return what may run at once, in offset order."""

    def release(self, offsets: Sequence[int], messages: Sequence[Message]) -> list[Message]:
        """These are complete, each the last of its shard that was out: return the next ones, which may run now."""

    def passed(self, offsets: Sequence[int]) -> None:
        """These are complete, and the next of their shards were handed over with them."""

    def behind(self, message: Message, most: int, limit: int) -> list[Message]:
        """Up to `most` records that wait behind one that is out, in order, with offsets up to `limit`."""

    @property
    def count(self) -> int:
        """Shards with a record out or waiting."""


class Unordered:
    """UNORDERED: every record may run."""

    __slots__ = ()

    def admit(self, offsets: Sequence[int], messages: Sequence[Message]) -> Sequence[Message]:  # noqa: ARG002 - the protocol's
        return messages

    def release(self, offsets: Sequence[int], messages: Sequence[Message]) -> list[Message]:  # noqa: ARG002 - as above
        return []

    def passed(self, offsets: Sequence[int]) -> None:
        """Nothing is ever handed over with them."""

    def behind(self, message: Message, most: int, limit: int) -> list[Message]:  # noqa: ARG002 - as above
        return []

    @property
    def count(self) -> int:
        return 0


class ByPartition:
    """PARTITION: one record of the partition at a time."""

    __slots__ = ("_is_out", "_waiting")

    def __init__(self) -> None:
        self._is_out = False
        self._waiting: deque[Message] = deque()
        """Those of a chain that are out stay in it until one of them is released."""

    def admit(self, offsets: Sequence[int], messages: Sequence[Message]) -> Sequence[Message]:  # noqa: ARG002 - the protocol's
        ready = () if self._is_out else messages[:1]
        self._waiting.extend(messages[len(ready) :])
        self._is_out = self._is_out or bool(ready)
        return ready

    def release(self, offsets: Sequence[int], messages: Sequence[Message]) -> list[Message]:
        following = []
        waiting = self._waiting
        for offset, message in zip(offsets, messages, strict=True):
            if not self._is_out:
                raise InternalError(f"{name_of(message)} was released, but is not out")
            while waiting and waiting[0].offset() <= offset:
                waiting.popleft()
            if waiting:
                following.append(waiting.popleft())
            else:
                self._is_out = False
        return following

    def passed(self, offsets: Sequence[int]) -> None:
        """They leave with the last of their chain."""

    def behind(self, message: Message, most: int, limit: int) -> list[Message]:
        first = message.offset()
        waiting = self._waiting
        skipped = 0
        while skipped < len(waiting) and waiting[skipped].offset() <= first:
            skipped += 1
        return list(takewhile(lambda one: one.offset() <= limit, islice(waiting, skipped, skipped + most)))

    @property
    def count(self) -> int:
        return int(self._is_out)


class ByKey:
    """KEY: one record of a key at a time; records without a key run freely."""

    __slots__ = ("_last", "_next")

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        """By key, the last record's offset, while one of it is out."""
        self._next: dict[int, Message] = {}
        """By offset, the record behind."""

    def admit(self, offsets: Sequence[int], messages: Sequence[Message]) -> Sequence[Message]:
        ready = []
        lasts, nexts = self._last, self._next
        for offset, message in zip(offsets, messages, strict=True):
            key = message.key()
            if key is None:
                ready.append(message)
                continue
            last = lasts.setdefault(key, offset)
            if last is offset:
                ready.append(message)
            else:
                nexts[last] = message
                lasts[key] = offset
        return ready

    def release(self, offsets: Sequence[int], messages: Sequence[Message]) -> list[Message]:
        following = []
        lasts, nexts = self._last, self._next
        for offset, message in zip(offsets, messages, strict=True):
            behind = nexts.pop(offset, None)
            if behind is not None:
                following.append(behind)
            elif (key := message.key()) is not None and lasts.pop(key, None) != offset:
                raise InternalError(f"{name_of(message)} was released, but no record of its key is out")
        return following

    def passed(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            del self._next[offset]

    def behind(self, message: Message, most: int, limit: int) -> list[Message]:
        found: list[Message] = []
        nexts = self._next
        one = nexts.get(message.offset())
        while one is not None and len(found) < most and (offset := one.offset()) <= limit:
            found.append(one)
            one = nexts.get(offset)
        return found

    @property
    def count(self) -> int:
        return len(self._last)


def shards_for(ordering: Ordering) -> Shards:
    """The shards of a newly assigned partition."""
    if ordering == "key":
        return ByKey()
    return ByPartition() if ordering == "partition" else Unordered()
