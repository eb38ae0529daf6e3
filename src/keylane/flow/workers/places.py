"""Where user code is: the lines of a thread, a suspended coroutine or a traceback, without keylane's around it.

For logs and errors, so files, lines and functions only, never a value.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

Place: TypeAlias = tuple[str, int, str]
"""File, line, function."""

_KEYLANE = Path(__file__).parents[2]
_AROUND = tuple(f"{_KEYLANE / folder}{os.sep}" for folder in ("flow", "consumer", "spark"))
"""Where the code lies that calls handlers."""
_NOT_USERS = f"{_KEYLANE}{os.sep}"
_DEMO = f"{_KEYLANE / 'demo'}{os.sep}"
"""Its handlers are as a user's."""
_ASYNCIO = f"{Path(asyncio.__file__).parent}{os.sep}"

SHOWN = 3
"""Lines that a text shows: the handler's, and the innermost ones."""


def of_traceback(traceback: TracebackType | None) -> list[Place]:
    """Outermost first; empty where nothing but keylane's own code was at work."""
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append((code.co_filename, traceback.tb_lineno or 0, code.co_name))
        traceback = traceback.tb_next
    return [place for place in _users(places) if not _is_keylanes(place)]


def of_thread(thread: int | None) -> list[Place]:
    """What a thread is at now; nothing when it has ended."""
    return [] if thread is None else of_frame(sys._current_frames().get(thread))  # noqa: SLF001 - the only way


def of_frame(frame: FrameType | None) -> list[Place]:
    places: list[Place] = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return _users(places[::-1])


def of_coroutine(coroutine: Any) -> list[Place]:
    """Where a suspended coroutine waits: its own line, and those of what it awaits."""
    places: list[Place] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            places.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return _users(places)


def text_of(places: Sequence[Place]) -> str:
    """In one line: `score (orders.py:12) > read (ssl.py:1104)`."""
    shown = [f"{name} ({PurePath(file).name}:{line})" for file, line, name in places]
    if len(shown) > SHOWN:
        shown = [shown[0], "…", *shown[1 - SHOWN :]]
    return " > ".join(shown)


def _users(places: list[Place]) -> list[Place]:
    """Without keylane's code, and what called it; the innermost one when there is nothing else."""
    around = [index for index, place in enumerate(places) if place[0].startswith(_AROUND)]
    own = places[around[-1] + 1 :] if around else places
    while own and own[0][0].startswith(_ASYNCIO):  # a task that is not keylane's
        own = own[1:]
    return [place for place in own if not _is_keylanes(place)] or places[-1:]


def _is_keylanes(place: Place) -> bool:
    return place[0].startswith(_NOT_USERS) and not place[0].startswith(_DEMO)
