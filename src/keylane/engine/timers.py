"""An asyncio loop that keeps time to some hundredths of a millisecond.

The idea: epoll takes its timeout in milliseconds, so asyncio rounds it up, and a handler that sleeps or gives up after
1.2 ms goes on after 2. An epoll object is itself a file that can be waited for; `select` takes microseconds.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectors import SelectorKey

FD_SETSIZE = 1_024
"""`select` takes file descriptors below this."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the program's own kind if it chose one (uvloop); else asyncio's, with finer timers where it uses
    epoll."""
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop or selectors.DefaultSelector.__name__ != "EpollSelector":
        return loop
    loop.close()
    return asyncio.SelectorEventLoop(FineSelector())


class FineSelector(selectors.DefaultSelector):
    """epoll whose timeouts are not rounded up to a millisecond. With so many files open when it is made that its own
    number is beyond what `select` takes, they are."""

    def __init__(self) -> None:
        super().__init__()
        self._fine = (self.fileno(),) if self.fileno() < FD_SETSIZE else ()
        """What `select` waits for, if it can."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """As its base's; `timeout` is in seconds."""
        if timeout is not None and timeout > 0 and self._fine:
            if not select.select(self._fine, (), (), timeout)[0]:
                return []
            timeout = 0
        return super().select(timeout)
