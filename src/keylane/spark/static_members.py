"""The group instance ids of a query's lanes, and who else may hold them.

Ids are used again by the next run of the query, so two things must be told apart at its start: the entries that an
ended run leaves in the group until its session timeout, and lanes that still run (of a driver that died a moment ago
and whose lanes drain, or of another query under the same name). The first are taken over, the second waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.spark.lanes import ORPHAN_LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Between two looks at the group while members of an earlier run expire."""
SLACK_S = 5.0
"""For the broker's own timers beside the session timeout."""

_ended_here: dict[tuple[str, str], float] = {}
"""(group, instance id) -> when a query of this process ended it, in monotonic seconds. Nothing can run under it."""
_ended_here_lock = threading.Lock()


class StaticMembers:
    """The ids `<prefix>-0` to `<prefix>-<n-1>` in one group."""

    def __init__(
        self, group: str, prefix: str, lanes: int, session_timeout_s: float, instance_ids: Callable[[], frozenset[str]]
    ) -> None:
        """`instance_ids` asks the broker for the group instance ids of the group's members."""
        self._used = [f"{prefix}-{lane}" for lane in range(lanes)]
        self._group = group
        self._prefix = prefix
        self._session_timeout_s = session_timeout_s
        self._instance_ids = instance_ids

    def id_of(self, lane: int) -> str:
        """The id of a lane, which may have been added later."""
        made = f"{self._prefix}-{lane}"
        if made not in self._used:
            self._used.append(made)
        return made

    def await_earlier(self, is_stopping: Callable[[], bool]) -> None:
        """Waits until no lane that may still run holds one of the ids.

        Raises `UsageError` when they do not expire: then another query runs under this name.
        """
        longest = self._session_timeout_s + ORPHAN_LIMIT_S + SLACK_S
        deadline = time.monotonic() + longest
        said = False
        while held := self._held():
            if is_stopping():
                return
            if time.monotonic() > deadline:
                raise UsageError(
                    f"group {self._group!r} has had the members {', '.join(held)} for {longest:.0f} s: another query "
                    "runs under this name; stop it, or give this one its own name=, or members='dynamic'"
                )
            if not said:
                logger.info(
                    "group %s: waiting until the members %s of an earlier run expire", self._group, ", ".join(held)
                )
                said = True
            time.sleep(POLL_S)

    def ended(self) -> None:
        """Notes that nothing runs under the ids any more, for the next query of this process."""
        with _ended_here_lock:
            _ended_here.update({(self._group, one): time.monotonic() for one in self._used})

    def _held(self) -> list[str]:
        listed = self._instance_ids()
        fresh = time.monotonic() - self._session_timeout_s - SLACK_S  # what ended before has expired: the entry is new
        with _ended_here_lock:
            free = {one for (group, one), at in _ended_here.items() if group == self._group and at > fresh}
        return [one for one in self._used if one in listed and one not in free]
