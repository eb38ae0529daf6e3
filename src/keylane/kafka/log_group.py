"""`LogGroup`: a process as a member of the group that divides a topic's partitions among those that lead them.

The idea: Kafka's group protocol says who leads what, and sees who is dead. Nothing is fetched, and nothing committed.
Partitions move one by one (KIP-429), so whoever comes or goes leaves the others' leaders where they are. So does a
coordinator that dies: members that do not hear of it for a session have lost their membership, and keep what they lead
until the next one has said who has what. Who is given such a partition meanwhile fences them in the log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from keylane.foreign_errors import line_of
from keylane.kafka.clients import Consumer
from keylane.kafka.faults import client_of, describe, error_of
from keylane.kafka.settings import MEMBER_DEFAULTS
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = logger_of("keylane.kafka")

POLL_S = 0.1
HEARTBEAT_MS = 500
"""How soon a member learns that partitions are to move."""
SESSION_MS = 6_000
"""Kafka's own least value (`group.min.session.timeout.ms`)."""


class LogGroup:
    """Joins when `start` is called, with a thread of its own, in which it calls back:

    `given` with all partitions that are this member's from now on, also when they are those of before; `taken` with
    those that are not any more, which others get when it returns; `lost` with those that others may have already;
    `failed` when the membership ends for good.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        topic: str,
        *,
        group: str,
        name: str,
        given: Callable[[Sequence[int]], None],
        taken: Callable[[Sequence[int]], None],
        lost: Callable[[Sequence[int]], None],
        failed: Callable[[str], None],
        session_timeout_ms: int = SESSION_MS,
    ) -> None:
        """`name` is told to whoever describes the group. Raises `UsageError`."""
        ours = {
            "group.id": group,
            "client.id": name,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": min(HEARTBEAT_MS, session_timeout_ms // 3),
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "allow.auto.create.topics": False,
            "log_level": 2,
            "logger": logger,
        }
        self._consumer = client_of(Consumer, MEMBER_DEFAULTS | dict(settings) | ours)
        self._topic = topic
        self._given = given
        self._taken = taken
        self._lost = lost
        self._failed = failed
        self.member_id = ""
        """In the group; empty before it has joined. Any thread may read it: one that asks the client waits for as long
        as the client is polled, which may be for ever."""
        self._held: set[int] = set()
        """What the group has said is this member's."""
        self._is_closing = threading.Event()
        self._must_rejoin = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keylane-log-group", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def rejoin(self) -> None:
        """Leave and join again: the group then says anew who has what."""
        self._must_rejoin.set()

    def close(self) -> None:
        """Leave the group; `taken` is called for what is left. Returns when the thread has ended."""
        self._is_closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._join()
            while not self._is_closing.is_set():
                self._consumer.poll(POLL_S)
                self.member_id = str(self._consumer.memberid() or "")
                if self._must_rejoin.is_set():
                    self._must_rejoin.clear()
                    self._consumer.unsubscribe()
                    self._join()
            self._consumer.close()
        except KafkaException as raised:
            self._failed(f"the group of the log's servers cannot be joined: {describe(error_of(raised))}")
        except Exception as error:
            logger.exception("a member of the log's group failed")
            self._failed(f"the group of the log's servers: {line_of(error)}")

    def _join(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._forfeited
        )

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        ours = [TopicPartition(one.topic, one.partition, OFFSET_END) for one in partitions]
        consumer.incremental_assign(ours)
        consumer.pause(ours)
        self._held.update(one.partition for one in ours)
        self._given(sorted(self._held))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._taken(self._let_go(partitions))
        consumer.incremental_unassign(partitions)

    def _forfeited(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._lost(self._let_go(partitions))
        consumer.incremental_unassign(partitions)

    def _let_go(self, partitions: list[TopicPartition]) -> list[int]:
        numbers = [one.partition for one in partitions]
        self._held.difference_update(numbers)
        return numbers
