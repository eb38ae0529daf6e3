"""`SoleMember`: the one member of a consumer group, which reads nothing and commits what others have done.

The idea: a static member (KIP-345) with a fixed instance id. Its commits carry the group's generation, so tools see a
living group with true lag; whoever joins under the same id fences it, and whoever joins beside it is noticed before a
commit. Made for the driver of a DataFrame pipeline.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka import exact
from keylane.kafka.admin import Admin
from keylane.kafka.clients import Consumer
from keylane.kafka.faults import Faults, client_of, commit_problem, error_of
from keylane.kafka.instance_name import InstanceName, is_fenced
from keylane.kafka.logs import Patience
from keylane.kafka.offset_server_check import check_offset_servers
from keylane.kafka.places import SERVERS, are_apart, for_groups, for_records
from keylane.kafka.settings import consumer_settings, member_settings
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from keylane.consumer.commits import CommitProblem
    from keylane.consumer.ports import Offset

logger = logger_of("keylane.kafka")

POLL_S = 0.1
JOIN_S = 60.0
"""How long joining may take: longer than the session timeout of a member that has died."""
COMMIT_S = 10.0
"""How long a commit is tried again while a broker restarts or the group rebalances."""
PAUSE_S = 0.2
DELETED_S = 2.0
"""How long a topic is missing before somebody is asked whether it was deleted."""
LOOK_MS = 2_000
"""How long that question waits."""

DEFAULTS = {"session.timeout.ms": 10_000}


class SoleMember:
    """Joins when it is made; `close` ends its thread.

    Raises `UsageError` when librdkafka refuses the settings, and for `offsets.servers` that are none, or another
    cluster's; `BrokerUnavailableError` when none of those answers. Thread safety: one thread at a time; a thread of its
    own polls.
    """

    def __init__(self, kafka: Mapping[str, Any], topics: Iterable[str], instance_id: str) -> None:
        self._kafka = kafka
        self._group = str(kafka["group.id"])
        self._faults = Faults()
        groups = for_groups(kafka)
        if are_apart(kafka):
            check_offset_servers(kafka, Admin(groups), Admin(for_records(kafka)))
        given = DEFAULTS | groups | {"group.instance.id": instance_id}
        self._settings = member_settings(consumer_settings(given, None))
        self._settings |= {"error_cb": self._faults.report, "enable.partition.eof": False}
        self._consumer = client_of(Consumer, self._settings)
        exact.check(self._consumer, str(self._settings["client.id"]))
        self._committing = threading.Lock()
        """Guards the client's life against commits, which are made on another thread."""
        self._instance = InstanceName(given)
        self._patience = Patience(str(groups[SERVERS]))
        self._topics = frozenset(topics)
        """Replaced by the caller's thread; the thread that polls subscribes to them (another one would hang)."""
        self._deleted: set[str] = set()
        self._assigned: set[tuple[str, int]] = set()
        self._changed = threading.Condition()
        """Guards what is assigned."""
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="keylane-sole-member", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises `PeerError` when this member was fenced: another driver has the group."""
        if self._failure is not None:
            raise PeerError(
                f"group {self._group!r}: this driver is no longer its member ({self._failure}): another query "
                "commits for the group, or it was removed; one query, one group"
            )

    def own(self, names: set[tuple[str, int]], timeout_s: float = JOIN_S) -> None:
        """Wait until the partitions are this member's, but for those whose topic was deleted.

        Raises `PeerError` when the group has other members, or this one was fenced, and `BrokerUnavailableError` when
        it could not be joined in time.
        """
        topics = {topic for topic, _ in names}
        self._topics |= topics
        give_up_at = time.monotonic() + timeout_s
        look_at = time.monotonic() + DELETED_S
        with self._changed:
            while not names <= self._assigned:
                self.check()
                if not self._changed.wait(max(0.0, min(look_at, give_up_at) - time.monotonic())):
                    if time.monotonic() >= give_up_at:
                        break
                    names, look_at = names - self._of_deleted_topics(names), look_at + DELETED_S
            missing = sorted(names - self._assigned)
        if missing:
            shown = ", ".join(f"{topic}-{partition}" for topic, partition in missing[:5])
            kind, text = (
                (PeerError, f"the group has other members, which own {shown}")
                if self._assigned
                else (BrokerUnavailableError, f"it could not be joined within {timeout_s:.0f} s")
            )
            raise kind(f"group {self._group!r}: {text}; a query must be the only member of its group")

    def commit(self, offsets: Sequence[Offset]) -> bool:
        """Commit as the member; whether the broker took all of it that is of topics which are there.

        Raises `PeerError` when the group has other members, or this one was fenced.
        """
        give_up_at = time.monotonic() + COMMIT_S
        try:
            self.own({one.name for one in offsets}, COMMIT_S)
        except BrokerUnavailableError as error:
            logger.warning("%s; its offsets are not committed now", error)
            return False
        left, look_at = list(offsets), time.monotonic() + DELETED_S
        while True:
            self.check()
            problems = self._commit_now(left)
            left = [one for one in left if one.name in problems]
            if left and time.monotonic() >= look_at and any(one.missing for one in problems.values()):
                gone = self._of_deleted_topics(problems.keys())
                left, look_at = [one for one in left if one.name not in gone], time.monotonic() + DELETED_S
            if not left:
                return True
            text = next(iter(problems.values())).text
            if time.monotonic() > give_up_at:
                logger.warning("group %s: %d partitions not committed: %s", self._group, len(left), text)
                return False
            time.sleep(PAUSE_S)

    def close(self) -> None:
        self._closing.set()
        self._patience.close()
        self._thread.join()

    def _of_deleted_topics(self, names: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Those whose topic is no more, which is told once. Asked when a topic was not known for a while, with a
        client of its own: the member's may be asked by the thread that polls it alone."""
        topics = {topic for topic, _ in names}
        try:
            gone = topics - Admin(self._kafka, timeout_ms=LOOK_MS).topics(topics).keys()
        except PeerError as error:  # nobody says that it is not there
            logger.warning("group %r: whether topics were deleted is not known: %s", self._group, error)
            return set()
        for topic in gone - self._deleted:
            logger.error("group %r: topic %r was deleted; nothing is committed of it", self._group, topic)
        self._deleted = (self._deleted - topics) | gone
        return {name for name in names if name[0] in gone}

    def _partitions(self) -> list[tuple[str, int]]:
        """Those of the topics that are there."""
        counts = Admin(self._kafka).topics()
        return [(topic, one) for topic in self._topics for one in range(counts.get(topic, 0))]

    def _commit_now(self, offsets: Sequence[Offset]) -> dict[tuple[str, int], CommitProblem]:
        try:
            with self._committing:
                answered = exact.commit_now(self._consumer, offsets)
        except KafkaException as raised:
            self._faults.report(error_of(raised))
            return dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised)))
        for one in answered:
            if one.error is not None:
                self._faults.report(one.error)
        return exact.problems_of(None, answered)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            one.offset = OFFSET_END  # nothing is read
        consumer.assign(partitions)
        consumer.pause(partitions)
        self._instance.note(consumer)
        self._set_assigned({(one.topic, one.partition) for one in partitions})

    def _on_revoke(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        consumer.unassign()
        self._set_assigned(set())

    def _set_assigned(self, names: set[tuple[str, int]]) -> None:
        with self._changed:
            self._assigned = names
            self._changed.notify_all()

    def _join_again(self) -> None:
        """After a fence by an earlier id of its own. Raises `PeerError` when another process has the name."""
        self._set_assigned(set())
        self._instance.check_fence(self._consumer, self._patience)
        with self._committing:
            self._consumer.close()
            self._consumer = client_of(Consumer, self._settings)

    def _serve(self) -> None:
        subscribed: frozenset[str] = frozenset()
        try:
            self._instance.look(self._partitions, self._patience)
            while not self._closing.is_set():
                if self._topics != subscribed:
                    subscribed = self._topics
                    self._consumer.subscribe(
                        sorted(subscribed),
                        on_assign=self._on_assign,
                        on_revoke=self._on_revoke,
                        on_lost=self._on_revoke,
                    )
                event = self._consumer.poll(POLL_S)
                if event is not None and (error := event.error()) is not None:
                    if is_fenced(self._consumer, error):
                        self._join_again()
                        subscribed = frozenset()
                    else:
                        self._faults.report(error)
                self._faults.raise_failure()
        except Exception as error:  # told by check
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        self._consumer.close()
