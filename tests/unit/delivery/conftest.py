"""What is left of a sink that a test has not closed: a timer that goes on for ever, beside all later tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_timer_left() -> Iterator[None]:
    yield
    while timers := [one for one in threading.enumerate() if isinstance(one, threading.Timer)]:
        for timer in timers:
            timer.cancel()
            timer.join()  # one that runs just now has made another one
