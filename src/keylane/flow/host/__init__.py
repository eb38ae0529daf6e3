"""Tuning to the machine: timers, one processor, the search for cycles, the end of worker processes with their parent.

Nothing here changes what an engine does, only how soon; and nothing outside imports it. The engine has one door to it
(`keylane.flow.workers.tuning`), behind which nothing is done when this folder is not there (docs/adr/0081).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from keylane.flow.host.linux import PR_SET_PDEATHSIG, prctl

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from keylane.flow.host.one_processor import OneProcessor

# Imports are where they are needed: a worker process needs the last function alone, and asyncio takes 50 ms.


def while_running() -> AbstractContextManager[None]:
    """Around the life of a consumer: Python looks for cycles less often."""
    from keylane.flow.host.collector import collected_rarely

    return collected_rarely()


def keep_time(threads: int = 1) -> None:
    """In a thread that handlers run on, one of so many: it waits without the kernel's slack."""
    from keylane.flow.host.timers import keep_time

    keep_time(threads)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """For coroutines: a loop with fine timers."""
    from keylane.flow.host.timers import new_event_loop

    return new_event_loop()


def keeper(random: Callable[[], float]) -> OneProcessor:
    """For `one_processor=True`. `random` gives floats from 0 to 1."""
    from keylane.flow.host.one_processor import OneProcessor

    return OneProcessor(random)


def end_with_parent() -> None:
    """Have the kernel end this process with its parent (prctl(2), PR_SET_PDEATHSIG)."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
