"""Ctrl-C, SIGTERM and SIGHUP ask a command to stop: it drains, commits, says where it stopped. A second one leaves at
once."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from keylane.demo.stop import StopRequest


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The last one comes when the terminal goes."""


@contextmanager
def stopping(stop: StopRequest, doing: str = "finishing what is in flight and committing") -> Iterator[None]:
    """Within the block the first SIGINT, SIGTERM or SIGHUP makes the request, and says what it is `doing`; the second
    raises `KeyboardInterrupt`."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        line = f"\nkeylane: {name}: {doing}; once more leaves at once\n"
        with suppress(OSError):  # the terminal may be what has gone
            os.write(sys.stderr.fileno(), line.encode())  # a buffered stream may be in the middle of a write just now
        stop.request()

    before = {number: signal.signal(number, on_signal) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
