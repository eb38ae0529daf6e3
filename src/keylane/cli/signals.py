"""Ctrl-C and SIGTERM ask a command to stop: it drains, commits, says where it stopped. A second one leaves at once."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from keylane.demo.stop import StopRequest


@contextmanager
def stopping(stop: StopRequest, doing: str = "finishing what is in flight and committing") -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM makes the request, and says what it is `doing`; the second raises
    `KeyboardInterrupt`."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        line = f"\nkeylane: {name}: {doing}; once more leaves at once\n"
        os.write(sys.stderr.fileno(), line.encode())  # a buffered stream may be in the middle of a write just now
        stop.request()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
