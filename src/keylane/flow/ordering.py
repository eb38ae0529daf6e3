"""Which items of a source may run at the same time: shards of first-in-first-out queues.

The idea: a shard has at most one item out (ready, running, waiting, or held by its owner), or a few that were handed
over together. The others of the shard wait behind in the order of their numbers, and completing the last one out brings
out the next. KEY has a shard a key of the source, PARTITION one for the source, UNORDERED none. An item without a key
has nothing to keep its place relative to: under KEY it is a shard of its own, so items without a key are unordered
among themselves.

A key's queue is no object of its own: of each item that has one behind it the source knows that one, and of each key
the last. That costs nothing where most keys have one item, and what was handed over together and has not run is still
in its place.

The caller hands in a source's items in the order of their numbers, and releases exactly what it was given. Numbers go
beside the payloads, because asking each for its number again costs as much as what is done here. Those that follow one
another are a `range`, which costs nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice, takewhile
from operator import methodcaller
from typing import TYPE_CHECKING, Protocol

from keylane.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.options import Ordering


class Payload(Protocol):
    """What is fed to a flow. Clients' messages are as they are; `offset` is an item's number in its source."""

    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def __len__(self) -> int:
        """Bytes that count against a bound of memory."""


NUMBER_OF = methodcaller("offset")
KEY_OF = methodcaller("key")


RUN = 256
"""Items that stand in the queue of what is ready as one. What is left of a run when some are taken is copied."""


class Ready:
    """What may run, in the order of its turn: runs of numbers, ascending in each, and their payloads."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: deque[tuple[Sequence[int], Sequence[Payload]]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> Iterator[int]:
        return chain.from_iterable(numbers for numbers, _ in self._runs)

    def put(self, numbers: Sequence[int], payloads: Sequence[Payload], *, first: bool = False) -> None:
        """Behind all others, or `first`."""
        self._count += len(numbers)
        runs = [(numbers[at : at + RUN], payloads[at : at + RUN]) for at in range(0, len(numbers), RUN)]
        if first:
            self._runs.extendleft(reversed(runs))
        else:
            self._runs.extend(runs)

    def take(self, most: int) -> tuple[Sequence[int], Sequence[Payload]]:
        """Up to `most` of the first run."""
        numbers, payloads = self._runs.popleft()
        if len(numbers) > most:
            self._runs.appendleft((numbers[most:], payloads[most:]))
            numbers, payloads = numbers[:most], payloads[:most]
        self._count -= len(numbers)
        return numbers, payloads


class Shards:
    """The ordering of one source's items. As it is UNORDERED: every item may run."""

    def admit(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> tuple[Sequence[int], Sequence[Payload]]:
        """Take newly fed items; return what may run at once, in order."""
        return numbers, payloads

    def release(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> list[Payload]:  # noqa: ARG002 - for others
        """These are complete, each the last of its shard that was out: return the next ones, which may run now."""
        return []

    def passed(self, numbers: Sequence[int]) -> None:
        """These are complete, and the next of their shards were handed over with them."""

    def behind(self, number: int, most: int, limit: int) -> list[Payload]:  # noqa: ARG002 - for others
        """Up to `most` items that wait behind one that is out, in order, with numbers up to `limit`."""
        return []

    @property
    def count(self) -> int:
        """Shards with an item out or waiting."""
        return 0


class ByPartition(Shards):
    """PARTITION: one item of the source at a time."""

    def __init__(self) -> None:
        self._is_out = False
        self._waiting: deque[Payload] = deque()
        """Those that were handed over with the one that is out stay in it until one of them is released."""

    def admit(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> tuple[Sequence[int], Sequence[Payload]]:
        ready = 0 if self._is_out else 1
        self._waiting.extend(payloads[ready:])
        self._is_out = self._is_out or bool(payloads)
        return numbers[:ready], payloads[:ready]

    def release(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> list[Payload]:  # noqa: ARG002 - the protocol's
        following = []
        waiting = self._waiting
        for number in numbers:
            if not self._is_out:
                raise InternalError(f"number {number} was released, but is not out")
            while waiting and waiting[0].offset() <= number:
                waiting.popleft()
            if waiting:
                following.append(waiting.popleft())
            else:
                self._is_out = False
        return following

    def behind(self, number: int, most: int, limit: int) -> list[Payload]:
        waiting = self._waiting
        skipped = 0
        while skipped < len(waiting) and waiting[skipped].offset() <= number:
            skipped += 1
        return list(takewhile(lambda one: one.offset() <= limit, islice(waiting, skipped, skipped + most)))

    @property
    def count(self) -> int:
        return int(self._is_out)


class ByKey(Shards):
    """KEY: one item of a key at a time; items without a key run freely."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        """By key, the last item's number, while one of it is out."""
        self._next: dict[int, Payload] = {}
        """By number, the item behind."""

    def admit(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> tuple[Sequence[int], Sequence[Payload]]:
        firsts: list[int] = []
        ready: list[Payload] = []
        lasts, nexts = self._last, self._next
        for number, payload in zip(numbers, payloads, strict=True):
            key = payload.key()
            if key is not None:
                last = lasts.setdefault(key, number)
                if last is not number:
                    nexts[last] = payload
                    lasts[key] = number
                    continue
            firsts.append(number)
            ready.append(payload)
        return (firsts, ready) if len(firsts) < len(numbers) else (numbers, payloads)

    def release(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> list[Payload]:
        following = []
        lasts, nexts = self._last, self._next
        for number, payload in zip(numbers, payloads, strict=True):
            behind = nexts.pop(number, None)
            if behind is not None:
                following.append(behind)
            elif (key := payload.key()) is not None and lasts.pop(key, None) != number:
                raise InternalError(f"number {number} was released, but nothing of its key is out")
        return following

    def passed(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._next[number]

    def behind(self, number: int, most: int, limit: int) -> list[Payload]:
        found: list[Payload] = []
        nexts = self._next
        one = nexts.get(number)
        while one is not None and len(found) < most and (number := one.offset()) <= limit:
            found.append(one)
            one = nexts.get(number)
        return found

    @property
    def count(self) -> int:
        return len(self._last)


def shards_for(ordering: Ordering) -> Shards:
    """The shards of a new source."""
    return {"key": ByKey, "partition": ByPartition, "unordered": Shards}[ordering]()
