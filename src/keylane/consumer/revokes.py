"""`Revokes`: partitions that the group takes back, while their records in handlers come to an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keylane.consumer.partitions import Partition
    from keylane.telling import Log


@dataclass(slots=True, eq=False)
class Revoke:
    token: Any
    """Whom to answer."""
    partitions: list[Partition]
    deadline: float

    @property
    def busy(self) -> list[Partition]:
        """Those with records in handlers."""
        return [one for one in self.partitions if one.wanted and one.in_handlers]

    def warn(self, log: Log) -> None:
        """Of what is given up."""
        for one in self.busy:
            log.warning(
                "%s-%d is given up with %d records in handlers; they may run again elsewhere",
                *one.name,
                one.in_handlers,
            )


class Revokes:
    """Those that were not answered yet, in order. Each waits for its handlers, at most `timeout_s`."""

    __slots__ = ("_log", "_timeout_s", "_waiting")

    def __init__(self, timeout_s: float, log: Log) -> None:
        self._timeout_s = timeout_s
        self._log = log
        self._waiting: list[Revoke] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, partitions: list[Partition], token: Any, now: float, *, may_begin: bool) -> None:
        """Nothing of these starts any more; `may_begin` as in `Source.stop`."""
        for partition in partitions:
            partition.source.stop(may_begin=may_begin)
        self._waiting.append(Revoke(token, partitions, now + self._timeout_s))

    def deadlines(self, now: float, more_s: float = 0.0) -> list[float]:
        """When each has had its time; and then once more, where something may take `more_s` longer."""
        return [one.deadline if now < one.deadline else one.deadline + more_s for one in self._waiting]

    def ready(self, now: float, *, at_once: bool) -> list[Revoke]:
        """Those whose handlers are through, or have had their time; `at_once`: all."""
        return [one for one in self._waiting if at_once or now >= one.deadline or not one.busy]

    def give_up(self, revoke: Revoke) -> None:
        """It waits no more."""
        self._waiting.remove(revoke)
        revoke.warn(self._log)
