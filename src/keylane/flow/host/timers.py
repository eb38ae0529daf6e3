"""Handlers that sleep, or give up after a time, go on when they asked to, to some hundredths of a millisecond.

Two things make them late. epoll takes its timeout in milliseconds, so asyncio rounds it up, and a handler that sleeps
1.2 ms goes on after 2: an epoll object is itself a file that can be waited for, and `select` takes microseconds. And
Linux ends a thread's wait up to 50 µs late, so that waits which end at nearly the same time share an interrupt
(prctl(2), PR_SET_TIMERSLACK).
"""

from __future__ import annotations

import asyncio
import select
import selectors
from typing import TYPE_CHECKING

from keylane.flow.host.linux import PR_GET_TIMERSLACK, PR_SET_TIMERSLACK, prctl

if TYPE_CHECKING:
    from selectors import SelectorKey

FD_SETSIZE = 1_024
"""`select` takes file descriptors below this."""
FEW_THREADS = 32
"""More threads than this wake so often that an interrupt for each costs them more than they gain."""
DEFAULT_SLACK_NS = 50_000


def keep_time(threads: int = 1) -> None:
    """End the waits of the calling thread, one of few `threads`, without the kernel's slack, where the system has such
    a call. Threads that the caller starts take that over. A slack that the program or its service manager chose is
    kept."""
    if threads <= FEW_THREADS and prctl(PR_GET_TIMERSLACK) == DEFAULT_SLACK_NS:
        prctl(PR_SET_TIMERSLACK, 1)


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
