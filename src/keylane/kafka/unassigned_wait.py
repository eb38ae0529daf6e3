"""`UnassignedWait`: partitions that are to be read, and that no member of the group has.

The idea: partitions that are added are divided once the group hears of them, within a refresh of its members' metadata.
One that missed that never will: with the classic protocol a static member that was away gets back what it had, and
takes the partitions of now for what they always were. Nothing fails then, and the group looks as if it had no lag. So
who has what is asked now and then, and what nobody has for longer than a refresh takes is told, and mended.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.consumer.snapshot import Unassigned
from keylane.errors import KeylaneError
from keylane.kafka.admin import Admin
from keylane.kafka.logs import matching
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from keylane.kafka.group_descriptions import Partition

logger = logger_of("keylane.waits")

FIRST_S = 5.0
"""The first question, after the start."""
AGAIN_S = 5.0
"""Between two questions while nobody has some; and how much longer than a refresh they are waited for."""
ANSWER_MS = 2_000
"""For one question; closing waits for it."""
REFRESH = "topic.metadata.refresh.interval.ms"
REFRESH_MS = 300_000
"""librdkafka's default."""


def unassigned(topics: Sequence[str], counts: Mapping[str, int], has: Collection[Partition]) -> list[Partition]:
    """The partitions of these topics that nobody has, of so many. Of topics that an expression matches only where
    somebody has others: what it matches, brokers and clients do not see alike (internal topics, new ones)."""
    known = {topic for topic, _ in has} | {topic for topic in topics if not topic.startswith("^")}
    wanted = (topic for topic in matching(topics, list(counts)) if topic in known)
    return [(topic, one) for topic in wanted for one in range(counts.get(topic, 0)) if (topic, one) not in has]


class UnassignedWait:
    """Looks after a group, for one of its members. Thread safety: any thread; questions have a thread of their own."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        topics: Sequence[str],
        name: str,
        ours: Callable[[], set[Partition]],
        rejoin: Callable[[], None] | None,
    ) -> None:
        """`topics` as they are subscribed to; `ours`: what the member has; `rejoin`: has the member join anew, so that
        the group divides all of it (None: where that would not help)."""
        self.wait: Unassigned | None = None
        """What nobody has."""
        self._kafka = kafka
        self._group = str(kafka["group.id"])
        self._topics = topics
        self._ours = ours
        self._rejoin = rejoin
        self._refresh_s = max(1.0, int(kafka.get(REFRESH, REFRESH_MS)) / 1000)
        self._since: float | None = None
        """From when on nobody had some."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-unassigned", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The member will leave."""
        self._closed.set()
        self.wait = None
        if self._thread.ident is not None:
            self._thread.join(ANSWER_MS / 1000)

    def _run(self) -> None:
        pause_s = FIRST_S
        while not self._closed.wait(pause_s):
            try:
                found = self._ask()
            except KeylaneError as error:
                logger.debug("what the members of the group have cannot be asked: %s", error)
                found = None
            if found is not None:
                self._take(found, monotonic())
            pause_s = AGAIN_S if self._since is not None or found is None else self._refresh_s

    def _ask(self) -> Unassigned | None:
        """What nobody has now; None while that is not to be told."""
        admin = Admin(self._kafka, timeout_ms=ANSWER_MS)
        counts = admin.topics()
        described = admin.describe_group(self._group)
        if described.state != "stable":
            return None
        has = {name for one in described.members for name in (*one.assignment, *one.target)}
        return Unassigned(self._group, tuple(unassigned(self._topics, counts, has | self._ours())))

    def _take(self, found: Unassigned, now: float) -> None:
        """Tell what nobody has for longer than a refresh takes, and mend it; again after as long."""
        if not found.partitions:
            self._since = self.wait = None
            return
        self._since = now if self._since is None else self._since
        if now < self._since + self._refresh_s + AGAIN_S or self._closed.is_set():
            return
        if found != self.wait:
            logger.warning("%s", found)
        self.wait, self._since = found, now
        if self._rejoin is not None:
            self._rejoin()
