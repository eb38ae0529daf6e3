"""What a member waits for whose group gives it nothing: the others that have not joined its rebalance.

The idea: a classic group waits in a rebalance for every member that it knows, and gives a dead one up only after its
session timeout. A member that is started after a kill stands still for as long, beside what its predecessor left
behind. librdkafka says nothing of that; the coordinator knows who is in the group.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from keylane.consumer.snapshot import Wait
from keylane.errors import KeylaneError
from keylane.kafka.admin import Admin
from keylane.kafka.presence import session_s
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.kafka.group_descriptions import GroupDescription

logger = logger_of("keylane.waits")

AFTER_S = 5.0
"""A rebalance that takes longer than this is asked about. Apache Kafka itself waits 3 s for the members of a new group
(`group.initial.rebalance.delay.ms`)."""

AGAIN_S = 2.0
"""Between two questions."""

ANSWER_MS = 2_000
"""For one question; closing waits for it."""

JOINING = frozenset({"init", "wait-join", "wait-metadata", "wait-sync"})
"""librdkafka's states of a member that has no generation yet."""

REBALANCES = frozenset({"preparing_rebalance", "completing_rebalance"})


def wait_of(found: GroupDescription, member_id: str | None, session_timeout_s: float) -> Wait | None:
    """What the member waits for in a group of this description; None when that is nobody else."""
    others = [one for one in found.members if one.member_id != member_id]
    if found.protocol == "consumer":
        wanted = {place for one in found.members if one.member_id == member_id for place in one.target}
        others = [one for one in others if wanted.intersection(one.assignment)]
    elif found.state not in REBALANCES:
        return None
    if not others:
        return None
    return Wait(found.group, tuple(one.member_id for one in others), round(session_timeout_s * 1000))


class GroupWait:
    """Looks after one member of a group.

    Thread safety: any thread, but `joins` is for the one that polls the member. Questions have a thread of their own,
    while there is something to ask.
    """

    def __init__(self, kafka: Mapping[str, Any], member_id: Callable[[], str | None], name: str) -> None:
        self.wait: Wait | None = None
        """What it waits for now, as far as that is known."""
        self._kafka = kafka
        self._ask_member_id = member_id
        self._member_id: str | None = None
        self._name = name
        self._lock = threading.Lock()
        self._since: float | None = None
        self._closed = False
        self._over = threading.Event()
        """Set once the wait that is asked about is over."""
        self._thread: threading.Thread | None = None

    def joins(self, state: str, now: float) -> None:
        """librdkafka's state of the member, now and then; one of `JOINING` also for a member of KIP-848's protocol that
        has joined and has no partitions yet."""
        if state in JOINING and not self._closed:
            self._member_id = self._ask_member_id()
        with self._lock:
            if state not in JOINING or self._closed:
                self._end()
            elif self._since is None:
                self._since = now
            elif self._thread is None and now >= self._since + AFTER_S:
                self._over = threading.Event()
                self._thread = threading.Thread(
                    target=self._ask, args=(self._over,), name=f"{self._name}-group-wait", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """The member will leave."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._end()
        if thread is not None:
            thread.join(ANSWER_MS / 1000)

    def _end(self) -> None:
        self._since = self._thread = None
        self._over.set()
        self.wait = None

    def _ask(self, over: threading.Event) -> None:
        """Until it is over: who is in the group. What cannot be asked now is asked again."""
        admin = Admin(self._kafka, timeout_ms=ANSWER_MS)
        told = False
        while not over.is_set():
            pause_s = AGAIN_S
            try:
                found = admin.describe_group(str(self._kafka["group.id"]))
            except KeylaneError as error:
                logger.debug("who is in the group cannot be asked: %s", error)
                wait = None
            else:
                wait = wait_of(found, self._member_id, session_s(self._kafka))
                if found.protocol == "consumer" and found.state == "stable":
                    pause_s = session_s(self._kafka)  # one member too many: nobody owes it anything, as a rule for long
            with self._lock:
                if over.is_set():
                    return
                self.wait = wait
            if wait is not None and not told:
                logger.warning("%s", wait)
                told = True
            over.wait(pause_s)
