"""`SharedMemory`: bytes that all connections of a server share, first come, first served.

What a connection needs much of it asks for before it takes it: a large request before it is read, a fetch's answer
before its records are. Who is not given it waits for its turn. When nobody has any, the first in line is given it
however much it needs, so nothing stands still for ever; and a client that neither sends nor takes anything is closed
when others wait for what it has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_ANSWER_BYTES = 1024 * 1024
"""An answer waits until there is room for so much of it: many answers of one batch each take longer than one of all."""
LARGE_BYTES = 256 * 1024
"""What is larger is taken one after the other, in different turns of the loop: many at once would hold it."""
STALL_S = 5.0
"""A client that has not moved for so long, nor for as long again, is stopped when others wait for what it has."""


class Share:
    """What one connection has been given of a memory."""

    __slots__ = ("has_room", "moved", "seen", "size", "stop")

    def __init__(self, has_room: Callable[[], None], moved: Callable[[], int], stop: Callable[[], None]) -> None:
        """`has_room` is called when it is to ask again; `moved` changes with each byte that its client sends or takes;
        `stop` closes the connection of a client that does neither."""
        self.has_room = has_room
        self.moved = moved
        self.stop = stop
        self.size = 0
        self.seen = -1
        """`moved`, when it was last looked at."""


class SharedMemory:
    """The memory of one kind of bytes. Thread safety: its loop's."""

    def __init__(self, limit: int, on_turn: Callable[[], None] = lambda: None) -> None:
        """`limit` -1: none. `on_turn` is called when it becomes full, and when there is room again."""
        self._limit = limit
        self._on_turn = on_turn
        self._shares: dict[Share, None] = {}
        self._line: dict[Share, None] = {}
        self._taking: Share | None = None
        """What was given much, and has not said yet how much it takes."""
        self.held = 0

    @property
    def is_full(self) -> bool:
        return 0 <= self._limit <= self.held

    def change(self, by: int) -> None:
        """More of what is little and never waits, or less of it."""
        was_full = self.is_full
        self.held += by
        if was_full is not self.is_full:
            self._on_turn()
        if by < 0:
            self._call_first()

    def ask(self, share: Share, least: int, most: int) -> int:
        """How much of `most` bytes this share is given; 0: it waits in line until there is room for `least`."""
        room = most if self._limit < 0 else min(most, self._limit - self.held)
        is_first = not self._line or next(iter(self._line)) is share
        waits = most > LARGE_BYTES and self._taking is not None
        if waits or not is_first or (room < min(least, most) and self._shares):
            self._line[share] = None
            return 0
        if most > LARGE_BYTES:
            self._taking = share
        self._line.pop(share, None)
        share.size = max(room, min(least, most))
        share.seen = -1
        self._shares[share] = None
        self.change(share.size)
        return share.size

    def settle(self, share: Share, size: int) -> None:
        """What a share really takes, 0 when it is over; then the next in line may ask."""
        if self._taking is share:
            self._taking = None
        by, share.size = size - share.size, size
        if size == 0:
            self._shares.pop(share, None)
        if by:
            self.change(by)
        if by >= 0:
            self._call_first()

    def leave(self, share: Share) -> None:
        """Its connection is over."""
        self._line.pop(share, None)
        self.settle(share, 0)

    def stop_idle(self) -> None:
        """While somebody waits: stop those whose clients have not moved since the last time."""
        for share in list(self._shares) if self._line else ():
            moved = share.moved()
            if moved == share.seen:
                share.stop()
            share.seen = moved

    def _call_first(self) -> None:
        first = next(iter(self._line), None)
        if first is not None:
            first.has_room()


class AnswerRoom:
    """One connection's share of the memory of answers. What is not given back is so when its answer is written."""

    def __init__(self, memory: SharedMemory | None, moved: Callable[[], int], stop: Callable[[], None]) -> None:
        """Without a memory everything is given."""
        self._memory = memory
        self._turn: asyncio.Future[None] | None = None
        self._share = Share(self._has_room, moved, stop)

    async def take(self, most: int) -> int:
        """How many bytes an answer of `most` may have now; waits in line while there is no room."""
        if self._memory is None or most <= 0:
            return most
        while not (given := self._memory.ask(self._share, LEAST_ANSWER_BYTES, most)):
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        return given

    def settle(self, size: int) -> None:
        """The answer has so many bytes."""
        if self._memory is not None and self._share.size:
            self._memory.settle(self._share, size)

    def leave(self) -> None:
        """The connection is over."""
        if self._memory is not None:
            self._memory.leave(self._share)

    def _has_room(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


UNBOUNDED = AnswerRoom(None, lambda: 0, lambda: None)
