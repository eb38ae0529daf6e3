"""`Membership`: the Kafka client that is the group's member, on a thread of its own.

The idea: librdkafka takes part in the group; which partitions are read and where they start, when they are committed
and when they are given up is decided by keylane. So this client is assigned nothing, and never fetches. An assignment
asks the broker for what the group has committed and resolves the start. A revoke is answered to librdkafka only once
its records are through: until then the client goes on polling, so that it stays a member however long that takes.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from keylane.engine.commits import CommitProblem
from keylane.errors import PeerError
from keylane.kafka import exact, exact_transactions
from keylane.kafka.faults import NO_PARTITION, commit_problem, error_of
from keylane.kafka.instance import is_fenced
from keylane.kafka.logs import MissingError
from keylane.kafka.starts import Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from confluent_kafka import KafkaError

    from keylane.engine.assignment import Start
    from keylane.engine.events import Revoking
    from keylane.engine.ports import ConsumerListener, Offset
    from keylane.kafka.faults import Faults
    from keylane.kafka.fetcher import Fetcher
    from keylane.kafka.instance import InstanceName
    from keylane.kafka.logs import Logs, Patience
    from keylane.kafka.starts import Target
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.kafka")

POLL_S = 0.05
"""How long one poll of the group waits, and so how long closing waits for it."""

REVOKING_POLL_S = 0.005
"""The same while partitions are being revoked: others wait for them."""

LOOK_S = 0.5
"""How often it is looked for a topic that a broker does not know."""

DELETED_S = 2.0
"""A topic that brokers do not know for so long was deleted; one that starts may not know all of them for a moment."""

NEXT_TOPIC_S = 5.0
"""How often one of the topics that are assigned is looked for, though nobody missed it."""

LOOK_AGAIN_S = 5.0
"""How often it is looked for a topic that was deleted and may be made anew."""

CLOSE_S = 5.0
"""How long closing waits for the client to leave the group. Without a coordinator it would wait a session timeout."""


LEFT = CommitProblem("this member has left the group", moved_on=True)


class Membership:
    """A member of the consumer group, from `start` to `close`.

    Thread safety: `start`, `close` and the commits are for one other thread, the intake's; `commit_now` is also for
    the listener, inside its callbacks.
    """

    def __init__(
        self,
        client: Consumer,
        pipeline: Pipeline,
        fetcher: Fetcher,
        logs: Logs,
        patience: Patience,
        faults: Faults,
        *,
        cooperative: bool,
        name: str,
        epochs: Iterator[int],
        instance: InstanceName | None,
        check_starts: Callable[[Sequence[Start]], None],
    ) -> None:
        """`epochs` numbers the assignments of a consumer, which may come to be several members one after the other;
        `instance` is its name, when it is a static member of the classic protocol. `check_starts` is called with the
        starts of partitions before anything of them begins; what it raises ends the consumer."""
        self._client = client
        self._pipeline = pipeline
        self._fetcher = fetcher
        self._faults = faults
        self._cooperative = cooperative
        self._by_hand = bool(pipeline.assignment)
        self._listener: ConsumerListener | None = None
        self._check_starts = check_starts
        self._patience = patience
        self._instance = instance
        self.is_given_up = False
        """Whether the coordinator has fenced this member by an earlier id of its own: another one is to take its place,
        once this one is closed."""
        self.on_lost: Callable[[], None] = lambda: None
        """Told when the group has given the partitions to others."""
        self._starts = Starts(client, pipeline, logs, patience, self.commit_now, epochs)
        self._seeks: SimpleQueue[tuple[Mapping[tuple[str, int], Target], Target | None]] = SimpleQueue()
        """Where partitions are to go on; the second is for all that are not in the first."""
        self._targets: dict[tuple[str, int], Target] | None = None
        """Of the seek that waits for records in handlers."""
        self._ours: dict[tuple[str, int], int] = {}
        """What the group has given to this member, and the epoch of each assignment."""
        self._owning = threading.Lock()
        """Guards `_ours` and the client's life against a transaction's offsets, which are sent on another thread."""
        self._leaving = False
        """Whether the client is being closed."""
        self._committing = threading.RLock()
        """Guards the client's life against commits on other threads."""
        self._left = False
        """Whether the client is closed."""
        self._reloads: SimpleQueue[Sequence[tuple[tuple[str, int], int]]] = SimpleQueue()
        self._revoking: Revoking | None = None
        """Partitions that the group takes back, and whose records are not through yet."""
        self._suspected: SimpleQueue[str] = SimpleQueue()
        self._missing: dict[str, float] = {}
        """Since when brokers do not know these topics."""
        self._deleted: dict[str, set[tuple[str, int]]] = {}
        """Topics that are no more, with the partitions that the group had given to this member, and has not taken back.
        """
        self._next_topic_at = 0.0
        self._looks = 0
        self._look_at = 0.0
        """When to look for them next."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-group", daemon=True)

    # --- the intake thread ---

    def start(self, listener: ConsumerListener) -> None:
        self._listener = listener
        self._starts.heard = listener.on_heard
        self._thread.start()

    def seek(self, targets: Mapping[tuple[str, int], Target], others: Target | None) -> None:
        """Go on elsewhere with these partitions, as far as they are assigned. Any thread."""
        self._seeks.put((targets, others))

    def suspect(self, topic: str) -> None:
        """A broker does not know this topic. Any thread."""
        self._suspected.put(topic)

    def close(self) -> None:
        """Leave the group. Without a coordinator that takes long, and is left to the thread: it ends by itself."""
        self._closing.set()
        if self._listener is None:
            self._client.close()
            return
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.warning(
                "the coordinator of group %r does not answer: the group learns by the session timeout that this member "
                "has left",
                self._pipeline.group_id,
            )

    @property
    def has_partitions(self) -> bool:
        """Any thread."""
        return bool(self._ours)

    # --- its own thread ---

    def _run(self) -> None:
        try:
            self._begin()
            while not self._closing.is_set():
                if self.is_given_up:
                    self._closing.wait()
                else:
                    self._poll()
            if self._by_hand and self._ours:
                self._revoking = self._listening.on_revoking(sorted(self._ours))
            self._finish_revoke(at_once=True)
        except BaseException as error:  # the intake thread raises it
            self._faults.broken = error
        with self._owning:
            self._leaving = True
        try:
            with self._committing:
                self._client.close()
                self._left = True
        except BaseException as error:  # like the above
            self._faults.broken = self._faults.broken or error

    def _begin(self) -> None:
        """Join the group; or take what is assigned by hand, and take no part in any."""
        if self._by_hand:
            names = [TopicPartition(*name) for name in self._pipeline.assignment]
            self._take(names, self._listening.on_assigned)
            return
        if self._instance is not None:
            self._instance.look()
        self._client.subscribe(
            list(self._pipeline.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _poll(self) -> None:
        event = self._client.poll(POLL_S if self._revoking is None else REVOKING_POLL_S)
        if event is not None and (error := event.error()) is not None:
            if self._instance is not None and is_fenced(self._client, error):
                self._on_fenced(self._instance)
                return
            self._faults.report(error)
            if error.code() in NO_PARTITION and (topic := event.topic()):
                self.suspect(topic)
        self._finish_revoke()
        while not self._reloads.empty():
            self._reload(self._reloads.get())
        if self._revoking is None:
            self._begin_seek()
            self._look_for_topics()

    def _look_for_topics(self) -> None:
        """Find out which of those that a broker did not know are no more, and which are there again. Where nothing
        comes and nothing is committed nobody meets the deletion, so one topic after the other is looked for anyway."""
        now = monotonic()
        while not self._suspected.empty():
            self._missing.setdefault(self._suspected.get(), now)
        if now >= self._next_topic_at and (topics := sorted({topic for topic, _ in self._ours})):
            self._next_topic_at = now + NEXT_TOPIC_S
            self._looks += 1
            self._missing.setdefault(topics[self._looks % len(topics)], now)
        if not self._missing or now < self._look_at:
            return
        self._look_at = now + (LOOK_S if self._missing.keys() - self._deleted else LOOK_AGAIN_S)
        for topic in list(self._missing):
            try:
                found = self._client.list_topics(topic, timeout=LOOK_S).topics[topic]
            except KafkaException:  # nobody says that it is not there
                continue
            if found.error is None:
                del self._missing[topic]
                self._is_there(topic, found.partitions)
            elif found.error.code() in NO_PARTITION and now >= self._missing[topic] + DELETED_S:
                self._is_deleted(topic)

    def _is_deleted(self, topic: str) -> None:
        if topic not in self._deleted:
            names = sorted(name for name in self._ours if name[0] == topic)
            self._deleted[topic] = set(names)
            self._forget(names)
            self._listening.on_deleted(topic, names)

    def _is_there(self, topic: str, partitions: Collection[int]) -> None:
        """If it was deleted before, it is a new one. What the group has not taken back meanwhile begins again."""
        names = self._deleted.pop(topic, None)
        if names is None:
            return
        logger.warning("topic %r was made anew", topic)
        self._take(
            [TopicPartition(*name) for name in sorted(names) if name[1] in partitions], self._listening.on_assigned
        )

    def _on_fenced(self, instance: InstanceName) -> None:
        """librdkafka has given the client up: nothing of it can be committed any more."""
        self._lose(sorted(self._ours))
        try:
            instance.check_fence(self._client, self._patience)
        except PeerError as error:
            self._faults.fail(error)
        else:
            logger.warning(
                "FENCED_INSTANCE_ID: member %r of group %r was fenced by an earlier id of its own, and joins again",
                instance.name,
                self._pipeline.group_id,
            )
            self.is_given_up = True

    def _reload(self, partitions: Sequence[tuple[tuple[str, int], int]]) -> None:
        leaving = [] if self._revoking is None else self._revoking.names
        names = [name for name, epoch in partitions if self._ours.get(name) == epoch and name not in leaving]
        self._fetcher.unassign(names)
        self._take([TopicPartition(*name) for name in names], self._listening.on_reloaded)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if self._instance is not None:
            self._instance.note(self._client)
        if self._targets:  # a cooperative group gives more of them while some are sought in: those stay
            self._finish_revoke(at_once=True)
        elif self._revoking is not None:  # the session timed out meanwhile, and the group went on
            self._lose(self._revoking.names)
        self._no_longer_ours(partitions)  # else they would begin twice
        self._take(partitions, self._listening.on_assigned)
        if self._cooperative:
            self._client.incremental_assign([])
        else:
            self._client.assign([])

    def _no_longer_ours(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._deleted.get(one.topic, set()).discard((one.topic, one.partition))

    def _take(
        self,
        partitions: list[TopicPartition],
        tell: Callable[[list[Start]], None],
        targets: Mapping[tuple[str, int], Target] | None = None,
    ) -> None:
        """Resolve where these start, and let them begin."""
        starts: list[Start] = []
        try:
            names = [(one.topic, one.partition) for one in partitions]
            starts = self._starts_of(names, targets)
            if starts:
                self._check_starts(starts)
        except Exception as error:  # the callback cannot fail: the next poll raises it
            starts = []
            self._faults.fail(error)
        if starts:
            with self._owning:
                self._ours |= {(one.topic, one.partition): one.epoch for one in starts}
            tell(starts)
            self._fetcher.assign(starts)

    def _starts_of(self, names: list[tuple[str, int]], targets: Mapping[tuple[str, int], Target] | None) -> list[Start]:
        """Those of the topics that are there."""
        for name in names:
            if name[0] in self._deleted:
                self._deleted[name[0]].add(name)
        while names := [name for name in names if name[0] not in self._deleted]:
            try:
                return self._starts.resolved(names, targets)
            except MissingError as error:  # deleted, while the group did not know it yet
                topic = error.topic
                self._missing.setdefault(topic, monotonic())
                self._deleted[topic] = {name for name in names if name[0] == topic}
                self._listening.on_deleted(topic, [])
        return []

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._no_longer_ours(partitions)
        names = self._known(partitions)
        if self._revoking is not None:
            self._finish_revoke(at_once=True)
        if not names:
            self._give_back([])
            return
        self._revoking = self._listening.on_revoking(names)
        if self._closing.is_set():
            self._finish_revoke(at_once=True)
        elif self._cooperative:  # any call does to say that librdkafka need not give them back by itself
            self._client.incremental_assign([])
        else:
            self._client.assign([])

    def _begin_seek(self) -> None:
        """Have the records of what is sought come to their end, as for a revoke that the group does not see."""
        try:
            targets, others = self._seeks.get_nowait()
        except Empty:
            return
        chosen = {name: targets.get(name, others) for name in sorted(self._ours)}
        self._targets = {name: target for name, target in chosen.items() if target is not None}
        if self._targets:
            self._revoking = self._listening.on_revoking(list(self._targets))

    def _finish_revoke(self, *, at_once: bool = False) -> None:
        """Commit and give back what is being revoked, once its records are through; `at_once`: wait for that here."""
        revoking = self._revoking
        if revoking is None or not (at_once or revoking.is_answered):
            return
        self._listening.on_revoked(revoking)
        targets = self._targets
        if targets and not self._closing.is_set():
            self._forget(revoking.names)
            names = [TopicPartition(*name) for name in revoking.names]
            self._take(names, self._listening.on_assigned, targets)
        else:
            self._give_back(revoking.names)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._no_longer_ours(partitions)
        self.on_lost()
        self._lose(self._known(partitions))
        self._give_back([])

    def _lose(self, names: list[tuple[str, int]]) -> None:
        if names:
            logger.warning("lost %s: the group went on without this member", ", ".join(f"{t}-{p}" for t, p in names))
            self._listening.on_lost(names)
        self._forget(names)

    def _give_back(self, names: list[tuple[str, int]]) -> None:
        """Let librdkafka tell the group."""
        self._forget(names)
        if self._by_hand:
            return
        if self._cooperative:
            self._client.incremental_unassign([])
        else:
            self._client.unassign()

    def _forget(self, names: list[tuple[str, int]]) -> None:
        self._fetcher.unassign(names)
        with self._owning:
            for name in names:
                self._ours.pop(name, None)
        self._revoking = self._targets = None

    @property
    def _listening(self) -> ConsumerListener:
        assert self._listener is not None, "a rebalance before the start"
        return self._listener

    def _known(self, partitions: list[TopicPartition]) -> list[tuple[str, int]]:
        """Those that were assigned: not the ones whose start could not be resolved."""
        return [name for one in partitions if (name := (one.topic, one.partition)) in self._ours]

    # --- transactions ---

    def reload(self, partitions: Sequence[tuple[tuple[str, int], int]]) -> None:
        """See `ConsumerPort.reload`. Any thread."""
        self._reloads.put(partitions)

    @contextmanager
    def owning(self, epochs: Mapping[tuple[str, int], int]) -> Iterator[exact_transactions.Member | None]:
        """Who this member is in a generation in which it has these partitions in these epochs; None when it is in no
        such generation. Whoever uses it later is refused by the broker if the group has gone on. Any thread."""
        with ExitStack() as stack:
            with self._owning:
                found = None
                if not self._leaving and all(self._ours.get(name) == epoch for name, epoch in epochs.items()):
                    found = stack.enter_context(exact_transactions.member(self._client))
            yield found if found is not None and found.is_in_group else None

    # --- commits ---

    def commit_now(
        self, offsets: Sequence[Offset], timeout_s: float | None = None
    ) -> dict[tuple[str, int], CommitProblem]:
        """Commit, and wait for the answer. Any thread."""
        try:
            with self._committing:
                if self._left:
                    return dict.fromkeys((one.name for one in offsets), LEFT)
                wait_s = exact.NO_TIMEOUT_S if timeout_s is None else timeout_s
                answered = exact.commit_now(self._client, offsets, wait_s)
        except KafkaException as raised:
            return dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised)))
        problems = problems_of(None, answered)
        for name in [name for name, problem in problems.items() if problem.missing]:
            self.suspect(name[0])
        return problems


def problems_of(
    error: KafkaError | None, partitions: Sequence[exact.GroupOffset]
) -> dict[tuple[str, int], CommitProblem]:
    """Partitions that were not committed. An error of the request, and of no partition, is every partition's."""
    each: dict[tuple[str, int], Any] = {(one.topic, one.partition): one.error for one in partitions}
    if error is not None and not any(each.values()):
        each = dict.fromkeys(each, error)
    return {name: commit_problem(found) for name, found in each.items() if found is not None}
