"""The group instance ids of a query's lanes, and who else may hold them.

Ids are used again by the next run of the query, so two things must be told apart at its start: the entries that an
ended run leaves in the group until its session timeout, and lanes that still run (of a driver that died a moment ago
and whose lanes drain, or of another query under the same name). The first are taken over, the second waited for. A
member id tells them apart: nobody else ever has that of a lane that has ended here.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from keylane.errors import KeylaneError, UsageError
from keylane.left_behind import StoppedError, answer_unless_stopped
from keylane.spark.lanes import ORPHAN_LIMIT_S
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logger_of(__name__)

POLL_S = 0.5
"""Between two looks at the group while members of an earlier run expire."""
SLACK_S = 5.0
"""For the broker's own timers beside the session timeout."""

_ended_here: dict[tuple[str, str], str] = {}
"""(group, instance id) -> the member id that it had when a query of this process ended it. Nothing runs as that."""
_ended_here_lock = threading.Lock()


class StaticMembers:
    """The ids `<prefix>-0` to `<prefix>-<n-1>` in one group."""

    def __init__(
        self, group: str, prefix: str, lanes: int, session_timeout_s: float, member_ids: Callable[[], Mapping[str, str]]
    ) -> None:
        """`member_ids` asks the broker for the member ids of the group's static members, by group instance id."""
        self._used = [f"{prefix}-{lane}" for lane in range(lanes)]
        self._group = group
        self._prefix = prefix
        self._session_timeout_s = session_timeout_s
        self._member_ids = member_ids
        self._held_here: set[str] = set()
        """Those that lanes of this query have had."""

    def id_of(self, lane: int) -> str:
        """The id for a lane that starts, which may have been added later."""
        made = f"{self._prefix}-{lane}"
        if made not in self._used:
            self._used.append(made)
        self._held_here.add(made)
        return made

    def await_earlier(self, is_stopping: Callable[[], bool]) -> None:
        """Waits until no lane that may still run holds one of the ids, or until a stop.

        Raises `UsageError` when they do not expire: then another query runs under this name.
        """
        longest = self._session_timeout_s + ORPHAN_LIMIT_S + SLACK_S
        deadline = time.monotonic() + longest
        said = False
        while held := self._held_unless(is_stopping):
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
        """Notes that nothing runs any more under the ids that lanes of this query had, for the next query of this
        process. Where the group cannot be asked, that one waits for their sessions."""
        if not self._held_here:
            return
        try:
            listed = self._member_ids()
        except KeylaneError as error:
            logger.info("group %s: who is left in it is not known: %s", self._group, error)
            return
        with _ended_here_lock:
            _ended_here.update({(self._group, one): listed[one] for one in self._held_here if one in listed})

    def _held_unless(self, is_stopping: Callable[[], bool]) -> list[str]:
        """Those that are held; none after a stop, which does not wait for brokers that do not answer."""
        try:
            return answer_unless_stopped(self._held, is_stopping, "keylane-earlier-lanes")
        except StoppedError:
            return []

    def _held(self) -> list[str]:
        listed = self._member_ids()
        with _ended_here_lock:
            return [one for one in self._used if one in listed and _ended_here.get((self._group, one)) != listed[one]]
