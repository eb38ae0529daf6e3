"""`Revokes`: partitions that the group takes back, while their records in handlers come to an end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.engine.assignment import Assignment

logger = logging.getLogger("keylane.engine")


@dataclass(slots=True, eq=False)
class Revoke:
    token: Any
    """Whom to answer."""
    assignments: list[Assignment]
    deadline: float

    @property
    def busy(self) -> list[Assignment]:
        """Those with records in handlers."""
        return [one for one in self.assignments if one.wanted and one.in_handlers]

    def warn(self) -> None:
        """Of what is given up."""
        for one in self.busy:
            logger.warning(
                "%s-%d is given up with %d records in handlers; they may run again elsewhere",
                *one.name,
                one.in_handlers,
            )


class Revokes:
    """Those that were not answered yet, in order. Each waits for its handlers, at most `timeout_s`."""

    __slots__ = ("_timeout_s", "_waiting")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waiting: list[Revoke] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, assignments: list[Assignment], token: Any, now: float) -> None:
        """Nothing of these starts any more."""
        for assignment in assignments:
            assignment.stop()
        self._waiting.append(Revoke(token, assignments, now + self._timeout_s))

    def deadlines(self, now: float, more_s: float = 0.0) -> list[float]:
        """When each has had its time; and then once more, where something may take `more_s` longer."""
        return [one.deadline if now < one.deadline else one.deadline + more_s for one in self._waiting]

    def ready(self, now: float, *, at_once: bool) -> list[Revoke]:
        """Those whose handlers are through, or have had their time; `at_once`: all."""
        return [one for one in self._waiting if at_once or now >= one.deadline or not one.busy]

    def take(self, now: float, *, at_once: bool) -> Iterator[Revoke]:
        """The same, which then wait no more."""
        for revoke in self.ready(now, at_once=at_once):
            self.remove(revoke)
            revoke.warn()
            yield revoke

    def remove(self, revoke: Revoke) -> None:
        self._waiting.remove(revoke)
