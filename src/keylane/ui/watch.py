"""Watches: a thread for each group that somebody looks at, and what they saw, for every page that shows it.

The idea: a watch makes a view a second and tells what has changed, once for all pages. A page that comes is told the
whole view first. A watch goes on for a while when nobody looks, so that the history has no holes.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Protocol

from keylane.errors import UsageError
from keylane.telling import logger_of
from keylane.ui.looks import GroupLook, GroupsLook
from keylane.ui.views import changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.desk import Report
    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.ui.history import History, Point

logger = logger_of("keylane.ui")

MOST_WATCHED = 12
"""Groups at once: each has a thread and a client."""
IDLE_S = 10 * 60.0
"""How long a group is watched when no page shows it any more: as long as its history goes back."""
SWEEP_S = 15.0
MOST_BEHIND = 30
"""What a page that does not read may be behind, in views, before it has to begin again."""


class Look(Protocol):
    """What is watched."""

    @property
    def history(self) -> History | None:
        """None where there is none."""

    def next(self, closing: threading.Event) -> Report:
        """The view of now, after a wait."""

    def add_point(self) -> Point | None: ...
    def close(self) -> None: ...


class Watch:
    """One thread that looks, until `close`. `publish` is called there, with what has changed, in JSON, and the whole
    view."""

    def __init__(self, name: str, look: Callable[[], Look], publish: Callable[[bytes, Report], None]) -> None:
        self._look, self._publish = look, publish
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keylane-ui-{name or 'groups'}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask it to end."""
        self._closing.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        look = self._look()
        view: Report = {}
        try:
            while not self._closing.is_set():
                before, view = view, view | look.next(self._closing)
                told, point = changes(before, view), look.add_point()
                if point is not None:
                    told["point"] = point
                if told:
                    points = [] if look.history is None else list(look.history.points)
                    self._publish(_json(told), view | {"history": points})
        except Exception:  # the page goes on without
            logger.exception("a watch of the page ended by a defect of keylane's")
        finally:
            look.close()


def _json(told: Report) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


class _Watched:
    """A watch, and the pages that show it."""

    def __init__(self) -> None:
        self.pages: set[asyncio.Queue[bytes | None]] = set()
        self.view: Report | None = None
        """None before the first."""
        self.since = 0.0
        """Nobody looks since then, in the loop's seconds."""

    def take(self, told: bytes, view: Report) -> None:
        begins, self.view = self.view is None, view
        for page in list(self.pages):
            if page.qsize() >= MOST_BEHIND:  # its browser begins again by itself
                self.pages.discard(page)
                page.put_nowait(None)
            else:
                page.put_nowait(_whole(view) if begins else told)


def _whole(view: Report) -> bytes:
    return _json(view | {"whole": True})


class Hub:
    """Everything that is watched. Thread safety: the loop's thread."""

    def __init__(self, kafka: Settings, admin: Admin) -> None:
        self._kafka, self._admin = kafka, admin
        self._loop = asyncio.get_running_loop()
        self._watched: dict[str, tuple[_Watched, Watch]] = {}
        self._ending: list[Watch] = []
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def join(self, group: str) -> asyncio.Queue[bytes | None]:
        """What to tell a page, from the whole view on; None ends it. An empty name is the list of groups. Raises
        `UsageError` when too many groups are watched."""
        if group not in self._watched:
            self._begin(group)
        watched, _ = self._watched[group]
        page: asyncio.Queue[bytes | None] = asyncio.Queue()
        watched.pages.add(page)
        if watched.view is not None:
            page.put_nowait(_whole(watched.view))
        return page

    def leave(self, group: str, page: asyncio.Queue[bytes | None]) -> None:
        if group in self._watched:
            watched, _ = self._watched[group]
            watched.pages.discard(page)
            watched.since = self._loop.time()

    async def close(self) -> None:
        """End all watches, and tell all pages."""
        self._sweeper.cancel()
        for watched, _ in self._watched.values():
            for page in watched.pages:
                page.put_nowait(None)
        for group in list(self._watched):
            self._end(group)
        await asyncio.gather(*(asyncio.to_thread(one.join) for one in self._ending))

    def _begin(self, group: str) -> None:
        if len(self._watched) >= MOST_WATCHED:
            idle = [name for name, (watched, _) in self._watched.items() if not watched.pages]
            if not idle:
                raise UsageError(f"{MOST_WATCHED} groups are shown already: close the page of another one")
            self._end(min(idle, key=lambda name: self._watched[name][0].since))
        watched = _Watched()

        def publish(told: bytes, view: Report) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(watched.take, told, view)

        def look() -> Look:
            return GroupLook(self._kafka, self._admin, group) if group else GroupsLook(self._admin)

        self._watched[group] = (watched, Watch(group, look, publish))

    def _end(self, group: str) -> None:
        _, watch = self._watched.pop(group)
        watch.close()
        self._ending.append(watch)

    def _sweep(self) -> None:
        now = self._loop.time()
        for group, (watched, _) in list(self._watched.items()):
            if not watched.pages and now > watched.since + IDLE_S:
                self._end(group)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
