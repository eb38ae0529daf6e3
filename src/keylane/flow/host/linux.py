"""What Linux has and Python does not wrap."""

from __future__ import annotations

import ctypes

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30


def prctl(option: int, value: int = 0) -> int:
    """prctl(2) for the calling thread or process; -1 where the system has no such call, or refuses."""
    try:
        return int(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value)))
    except (OSError, AttributeError):
        return -1


def current_processor() -> int:
    """The processor that the calling thread runs on, from 0 (sched_getcpu(3)).

    Raises `OSError` or `AttributeError` where the system has no such call.
    """
    return int(ctypes.CDLL(None).sched_getcpu())
