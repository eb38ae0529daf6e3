"""`Lease`: until when handlers may start, because the group still counts on this member.

The idea: a process that was frozen (SIGSTOP, a suspended machine, a long pause) wakes up in the middle of its work and
cannot know that the group has given its partitions to others. So a handler starts only within two thirds of the session
timeout since the coordinator was last heard of; what wakes later than that starts nothing until it has been heard
again (docs/adr/0009).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf

logger = logging.getLogger("keylane.consumer")

SHARE = 2 / 3
"""Of the session timeout. The rest is for what the answer took to arrive, and for clocks that do not tick alike."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """What keeps a member in its group, all in milliseconds (`ParallelConsumer.liveness`)."""

    session_timeout_ms: int
    """The group gives the partitions to others when it has not heard of the member for so long."""
    heartbeat_interval_ms: int
    """How often it says that it is there; a thread of librdkafka's does, whatever handlers do."""
    max_poll_interval_ms: int
    """How long the member's client may go without a poll; keylane polls it all the time, however long handlers take."""
    stall_timeout_ms: int
    """When no handler ends for so long, the consumer leaves the group and fails; 0: never."""
    lease_left_ms: int | None
    """For how long handlers may start if the coordinator is not heard any more; None without a group, or before it
    was heard."""


class Lease:
    """Ends some time after the coordinator was last heard of; without a group it never ends.

    Thread safety: any thread. Times are `time.monotonic()`.
    """

    __slots__ = ("_has_lapsed", "_length_s", "until")

    def __init__(self, session_s: float | None = None) -> None:
        self._length_s = None if session_s is None else session_s * SHARE
        self.until = inf
        """Handlers may start before this time."""
        self._has_lapsed = False

    def renew(self, heard_at: float) -> None:
        """The coordinator answered at `heard_at`."""
        if self._length_s is not None:
            until = heard_at + self._length_s
            self.until = until if self.until == inf else max(self.until, until)

    def holds(self, now: float) -> bool:
        """Whether handlers may start; the loop's, which logs the change."""
        has_lapsed = now >= self.until
        if has_lapsed != self._has_lapsed:
            self._has_lapsed = has_lapsed
            if has_lapsed:
                logger.warning("no handler starts: the group's coordinator has not answered for %.1f s", self._length_s)
            else:
                logger.warning("handlers start again: the group's coordinator answers")
        return not has_lapsed
