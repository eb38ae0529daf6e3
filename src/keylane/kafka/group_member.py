"""`GroupMember`: the Kafka client that is the group's member, on a thread of its own.

The idea: librdkafka takes part in the group; which partitions are read and where they start, when they are committed
and when they are given up is decided by keylane. So this client is assigned nothing, and never fetches. An assignment
asks the broker for what the group has committed and resolves the start. A revoke is answered to librdkafka only once
its records are through: until then the client goes on polling, so that it stays a member however long that takes.
What happens when is decided by `Membership`; here it is done.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeAlias

from confluent_kafka import KafkaException, TopicPartition

from keylane.consumer.commits import CommitProblem
from keylane.errors import PeerError, StoreError, UsageError
from keylane.kafka import exact, exact_transactions
from keylane.kafka.coordinator_requests import take_out
from keylane.kafka.faults import NO_PARTITION, commit_problem, error_of
from keylane.kafka.instance_name import is_fenced, is_unreleased
from keylane.kafka.logs import MissingError
from keylane.kafka.membership import (
    LOOK_S,
    Begin,
    Deleted,
    End,
    Finish,
    GiveBack,
    Keep,
    Lost,
    Membership,
    Stop,
)
from keylane.kafka.places import for_groups
from keylane.kafka.starts import MovedOnError, Starts
from keylane.kafka.topic_ids import AnotherTopicError
from keylane.patterns import for_clients, is_pattern, is_read
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from keylane.consumer.ports import ConsumerListener, Offset, Revoking
    from keylane.consumer.start import Start
    from keylane.kafka.clients import Consumer
    from keylane.kafka.faults import Faults
    from keylane.kafka.instance_name import InstanceName
    from keylane.kafka.logs import Logs, Patience
    from keylane.kafka.membership import Action, Name, Target
    from keylane.pipeline import Pipeline

logger = logger_of("keylane.kafka")

POLL_S = 0.05
"""How long one poll of the group waits, and so how long closing waits for it."""

REVOKING_POLL_S = 0.005
"""The same while partitions are being revoked: others wait for them."""

GIVE_BACK_S = 2.0
"""How long closing waits for the client to take the revocation from itself: no broker is asked."""
UNRELEASED_S = 1.0
"""Between two requests to join under a name that is not free yet."""

CLOSE_S = 5.0
"""How long closing waits for the client to leave the group. Without a coordinator it would wait a session timeout."""
JOINING_S = 1.0
"""After which a client that is still closing is taken to join: what it sends is read when the rebalance is over."""


def refused_before(error: PeerError, offsets: Sequence[Offset], faults: Faults) -> dict[tuple[str, int], CommitProblem]:
    """A commit may not be made, or not now; a store or a topic that is not the one ends the run."""
    is_final = isinstance(error, StoreError | AnotherTopicError)
    if is_final:
        faults.fail(error)
    return dict.fromkeys((one.name for one in offsets), CommitProblem(str(error), fatal=is_final))


LEFT = CommitProblem("this member has left the group", moved_on=True)


Moved: TypeAlias = "Callable[[Mapping[Name, str]], None]"
"""Is told which partitions go on where they were sought (empty), and why others go on where they were."""


class Reader(Protocol):
    """Who reads what is assigned. Any thread."""

    def assign(self, starts: list[Start]) -> None: ...
    def unassign(self, names: list[tuple[str, int]]) -> None: ...


class GroupMember:
    """A member of the consumer group, from `start` to `close`.

    Thread safety: `start`, `close` and the commits are for one other thread, the intake's; `commit_now` is also for
    the listener, inside its callbacks.
    """

    def __init__(
        self,
        client: Consumer,
        commits: exact.CommitQueue,
        pipeline: Pipeline,
        reader: Reader,
        logs: Logs,
        patience: Patience,
        faults: Faults,
        *,
        cooperative: bool,
        name: str,
        epochs: Iterator[int],
        instance: InstanceName | None,
        check_starts: Callable[[Sequence[Start]], Sequence[Start]],
        before_commit: Callable[[Sequence[Offset]], None],
    ) -> None:
        """`commits` are the client's, and end with it. `epochs` numbers the assignments of a consumer, which may come
        to be several members one after the other; `instance` is its name, when it is a static member of the classic
        protocol. `check_starts` is called with the starts of partitions before anything of them begins; what it raises
        ends the consumer. `before_commit` is called with what is going to be committed; what it raises is why it is
        not."""
        self._client = client
        self._commits = commits
        self._pipeline = pipeline
        self._reader = reader
        self._faults = faults
        self._cooperative = cooperative
        self._closing = threading.Event()
        self._membership = Membership(is_by_hand=bool(pipeline.assignment), is_closing=self._closing.is_set)
        self._listener: ConsumerListener | None = None
        self._before_commit = before_commit
        self._patience = patience
        self._logs = logs
        self._instance = instance
        self.is_given_up = False
        """Whether the coordinator has fenced this member by an earlier id of its own, or does not take it yet: another
        one is to take its place, once this one is closed."""
        self.on_lost: Callable[[], None] = lambda: None
        """Told when the group has given the partitions to others."""
        self._starts = Starts(client, pipeline, logs, patience, self.commit_now, epochs, check_starts)
        self._seeks: SimpleQueue[tuple[Mapping[Name, Target], Target | None, Moved | None]] = SimpleQueue()
        """Where partitions are to go on; the second is for all that are not in the first; and who is to hear of it."""
        self._moved: Moved | None = None
        """Who is to hear of the seek that is under way."""
        self._went_on: dict[Name, str] = {}
        """What of it goes on, and why not where it was sought."""
        self._reloads: SimpleQueue[Sequence[tuple[Name, int]]] = SimpleQueue()
        self._suspected: SimpleQueue[str] = SimpleQueue()
        self._must_rejoin = threading.Event()
        self._owning = threading.Lock()
        """Guards what is ours and the client's life against a transaction's offsets, which are sent on another thread.
        """
        self._leaving = False
        """Whether the client is being closed."""
        self._committing = threading.RLock()
        """Guards the client's life against commits on other threads."""
        self._left = False
        """Whether the client is closed."""
        self._is_taken_out = False
        """Whether the group was asked to take this member out, while its client was closing."""
        self._leave_error: Exception | None = None
        """Why that was not done."""
        self._revoking: Revoking | None = None
        """The partitions that were last told to end; they are still at it while `Membership.is_ending`."""
        self._thread = threading.Thread(target=self._run, name=f"{name}-group", daemon=True)

    # --- the intake thread ---

    def start(self, listener: ConsumerListener) -> None:
        self._listener = listener
        self._starts.heard = listener.on_heard
        self._thread.start()

    def seek(self, targets: Mapping[Name, Target], others: Target | None, moved: Moved | None = None) -> None:
        """Go on elsewhere with these partitions, as far as they are assigned. Any thread."""
        self._seeks.put((targets, others, moved))

    def suspect(self, topic: str) -> None:
        """A broker does not know this topic. Any thread."""
        self._suspected.put(topic)

    def rejoin(self) -> None:
        """Give back what is ours, and let another member take this one's place, so that the group divides all anew. Of
        a static member of the classic protocol. Any thread."""
        self._must_rejoin.set()

    def close(self) -> None:
        """Leave the group. Without a coordinator that takes long, and is left to the thread: it ends by itself. A
        member that joins is taken out by a request of keylane's own."""
        self._closing.set()
        if self._listener is None:
            self._commits.close()
            self._client.close()
            self._logs.close()
            return
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and not self._is_taken_out:
            logger.warning(
                "the coordinator of group %r does not answer%s: the group learns by the session timeout that this "
                "member has left",
                self._pipeline.group_id,
                "" if self._leave_error is None else f" ({self._leave_error})",
            )

    @property
    def partitions(self) -> set[Name]:
        """What is ours. Any thread."""
        return set(self._membership.ours)

    @property
    def has_partitions(self) -> bool:
        """Any thread."""
        return bool(self._membership.ours)

    # --- its own thread ---

    def _run(self) -> None:
        try:
            self._begin()
            while not self._closing.is_set():
                if self.is_given_up:
                    self._closing.wait()
                else:
                    self._poll()
            self._do(self._membership.left())
        except BaseException as error:  # the intake thread raises it
            self._faults.broken = error
        with self._owning:
            self._leaving = True
        try:
            with self._committing, self._taken_out_while_it_joins():
                try:
                    self._give_all_back()
                finally:
                    self._commits.close()
                    self._client.close()
                    self._left = True
            self._logs.close()
        except BaseException as error:  # like the above
            self._faults.broken = self._faults.broken or error

    @contextmanager
    def _taken_out_while_it_joins(self) -> Iterator[None]:
        """Inside, the client is closed. What it sends after its request to join is read when the rebalance is over, so
        that the group would wait for it then, too. Not a static member, which stays; under KIP-848 one can leave."""
        kafka = self._pipeline.kafka
        is_dynamic = "group.instance.id" not in kafka and kafka.get("group.protocol") != "consumer"
        member_id = self._client.memberid() if is_dynamic and not self._pipeline.assignment else None
        if not member_id:
            yield
            return
        is_asked = threading.Event()
        leaving = threading.Timer(JOINING_S, self._take_out, [member_id, is_asked])
        leaving.name, leaving.daemon = f"{self._thread.name}-leave", True
        leaving.start()
        try:
            yield
        finally:
            leaving.cancel()
            if not is_asked.is_set():
                leaving.join()

    def _take_out(self, member_id: str, is_asked: threading.Event) -> None:
        """On a thread of its own: brokers that do not answer are waited for."""
        is_asked.set()
        try:
            take_out(for_groups(self._pipeline.kafka), self._pipeline.group_id, member_id)
            self._is_taken_out = True
        except (OSError, PeerError, UsageError) as error:
            self._leave_error = error

    def _give_all_back(self) -> None:
        """Answer the group's revocation before the client closes: one that librdkafka finds while it closes may wait
        for ever (https://github.com/confluentinc/librdkafka/issues/4884). Not a static one: it would leave the group.
        """
        if self.is_given_up or self._pipeline.assignment or "group.instance.id" in self._pipeline.kafka:
            return
        self._client.unsubscribe()
        until = monotonic() + GIVE_BACK_S
        while self._client.assignment() and monotonic() < until:
            self._client.poll(REVOKING_POLL_S)

    def _begin(self) -> None:
        """Join the group; or take what is assigned by hand, and take no part in any."""
        self._starts.look(lambda: list(self._pipeline.assignment) or self._logs.partitions(self._pipeline.subscription))
        if self._pipeline.assignment:
            self._do(self._membership.assigned_by_hand(list(self._pipeline.assignment)))
            return
        if self._instance is not None:
            self._instance.look(lambda: self._logs.partitions(self._pipeline.subscription), self._patience)
        self._client.subscribe(
            [for_clients(one) if is_pattern(one) else one for one in self._pipeline.subscription],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _poll(self) -> None:
        event = self._client.poll(REVOKING_POLL_S if self._membership.is_ending else POLL_S)
        if event is not None and (error := event.error()) is not None:
            if self._instance is not None and is_fenced(self._client, error):
                self._on_fenced(self._instance)
                return
            if is_unreleased(self._client, error):
                self._on_unreleased()
                return
            self._faults.report(error, event.topic())
            if error.code() in NO_PARTITION and (topic := event.topic()):
                self.suspect(topic)
        self._logs.serve()
        self._finish_what_ended()
        while not self._reloads.empty():
            self._do(self._membership.reloaded(self._reloads.get()))
        if not self._membership.is_ending:
            self._tell_moved()
            if self._instance is not None and self._must_rejoin.is_set():
                self._rejoin(self._instance)
                return
            self._do(self._membership.again(monotonic()))
            self._begin_seek()
            self._look_for_topics()

    def _rejoin(self, instance: InstanceName) -> None:
        """First have what is ours come to its end, as for a revoke that the group does not see; then go."""
        if self._membership.ours:
            self._do(self._membership.revoked(sorted(self._membership.ours)))
            return
        self._must_rejoin.clear()
        try:
            instance.leave(self._patience)
        except (PeerError, UsageError) as error:
            logger.warning("member %r of group %r cannot join anew: %s", instance.name, self._pipeline.group_id, error)
        self.is_given_up = True

    def _finish_what_ended(self) -> None:
        """Commit and give back what is ending, once its records are through."""
        if self._membership.is_ending and self._revoking is not None and self._revoking.is_answered:
            self._do(self._membership.finish())

    def _begin_seek(self) -> None:
        """Have the records of what is sought come to their end, as for a revoke that the group does not see."""
        try:
            targets, others, self._moved = self._seeks.get_nowait()
        except Empty:
            return
        self._do(self._membership.sought(targets, others))

    def _tell_moved(self) -> None:
        """The seek before is over: it was done, or its partitions went."""
        moved, went_on = self._moved, self._went_on
        self._moved, self._went_on = None, {}
        if moved is not None:
            moved(went_on)

    def _look_for_topics(self) -> None:
        """Find out which of those that a broker did not know are no more, and which are there again."""
        now = monotonic()
        while not self._suspected.empty():
            self._membership.suspect(self._suspected.get(), now)
        for topic in self._membership.topics_to_look_for(now):
            try:
                answer = self._client.list_topics(topic, timeout=LOOK_S).topics[topic]
            except KafkaException:  # nobody says that it is not there
                continue
            if answer.error is None:
                if self._membership.is_deleted(topic):
                    logger.warning("topic %r was made anew", topic)
                self._do(self._membership.topic_is_there(topic, answer.partitions))
            elif answer.error.code() in NO_PARTITION:
                self._do(self._membership.topic_is_unknown(topic, now))
                if self._membership.is_deleted(topic):
                    self._starts.forget(topic)

    def _on_fenced(self, instance: InstanceName) -> None:
        """librdkafka has given the client up: nothing of it can be committed any more."""
        self._do(self._membership.fenced())
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

    def _on_unreleased(self) -> None:
        """KIP-848: the coordinator keeps the name for a member that did not leave, and librdkafka has given the client
        up. It is asked again until that one's session has ended."""
        self._do(self._membership.fenced())
        if self._faults.is_new("unreleased"):
            logger.warning(
                "UNRELEASED_INSTANCE_ID: the name %r in group %r is still that of a member that did not leave: this "
                "one joins once that one's session has ended (45 s by the brokers' default); if it lives, give each "
                "process a group.instance.id of its own",
                self._pipeline.kafka["group.instance.id"],
                self._pipeline.group_id,
            )
        until = monotonic() + UNRELEASED_S
        while monotonic() < until and not self._patience.pause():
            pass
        self.is_given_up = True

    # --- librdkafka's callbacks, inside `poll` and `close` ---

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if self._instance is not None:
            self._instance.note(self._client)
        self._do(self._membership.assigned(self._read(partitions)))

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._do(self._membership.revoked(self._read(partitions)))

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.on_lost()
        self._do(self._membership.lost(self._read(partitions)))

    def _read(self, partitions: list[TopicPartition]) -> list[Name]:
        """Those that are to be read: an expression is also about internal topics to clients and brokers."""
        return [name for name in _names(partitions) if is_read(self._pipeline.subscription, name[0])]

    # --- what the membership decides ---

    def _do(self, actions: Iterator[Action]) -> None:
        while True:
            with self._owning:  # what is ours changes between two actions
                action = next(actions, None)
            if action is None:
                return
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Begin():
                self._let_begin(action)
            case End(names):
                self._revoking = self._listening.on_revoking(names)
            case Finish():
                assert self._revoking is not None, "the end of partitions that were not told to end"
                self._listening.on_revoked(self._revoking)
            case Lost(names):
                shown = ", ".join(f"{topic}-{partition}" for topic, partition in names)
                logger.warning("lost %s: the group went on without this member", shown)
                self._listening.on_lost(names)
            case Stop(names):
                self._reader.unassign(names)
            case Deleted(topic, names):
                self._listening.on_deleted(topic, names)
            case Keep():  # any call does to say that librdkafka need not do it by itself
                self._client.incremental_assign([]) if self._cooperative else self._client.assign([])
            case GiveBack():
                self._client.incremental_unassign([]) if self._cooperative else self._client.unassign()

    def _let_begin(self, action: Begin) -> None:
        """Resolve where these start, and let them begin."""
        starts: list[Start] = []
        self._commits.settle()  # else what was sent of an earlier assignment can be made after the start was read
        try:
            starts = self._starts_of(action)
        except Exception as error:  # the callback cannot fail: the next poll raises it
            starts = []
            self._faults.fail(error)
        if starts:
            with self._owning:
                self._membership.began({(one.topic, one.partition): one.epoch for one in starts})
            if action.is_reload:
                self._listening.on_reloaded(starts)
            else:
                self._listening.on_assigned(starts)
            self._reader.assign(starts)
            if action.targets:
                self._went_on |= {(one.topic, one.partition): one.not_sought for one in starts}

    def _starts_of(self, action: Begin) -> list[Start]:
        """Those of the topics that are there."""
        while names := self._membership.that_are_there(action.names):
            try:
                return self._starts.resolved(names, action.targets)
            except MissingError as error:
                self._do(self._membership.has_no_log(error.topic, monotonic()))
            except MovedOnError as error:
                logger.warning("%s; %d partitions do not start now", error, len(names))
                self._membership.did_not_begin(replace(action, names=names), monotonic())
                break
        return []

    @property
    def _listening(self) -> ConsumerListener:
        assert self._listener is not None, "a rebalance before the start"
        return self._listener

    # --- transactions ---

    def reload(self, partitions: Sequence[tuple[Name, int]]) -> None:
        """See `ConsumerPort.reload`. Any thread."""
        self._reloads.put(partitions)

    @contextmanager
    def owning(self, epochs: Mapping[tuple[str, int], int]) -> Iterator[exact_transactions.Member | None]:
        """Who this member is in a generation in which it has these partitions in these epochs; None when it is in no
        such generation. Whoever uses it later is refused by the broker if the group has gone on. Any thread."""
        with ExitStack() as stack:
            with self._owning:
                member = None
                ours = self._membership.ours
                if not self._leaving and all(ours.get(name) == epoch for name, epoch in epochs.items()):
                    member = stack.enter_context(exact_transactions.member(self._client))
            yield member if member is not None and member.is_in_group else None

    # --- commits ---

    def commit_now(
        self, offsets: Sequence[Offset], timeout_s: float | None = None
    ) -> dict[tuple[str, int], CommitProblem]:
        """Commit, and wait for the answer. Any thread."""
        try:
            self._before_commit(offsets)
        except PeerError as error:
            return refused_before(error, offsets, self._faults)
        try:
            with self._committing:
                if self._left:
                    return dict.fromkeys((one.name for one in offsets), LEFT)
                answered = self._commits.commit_now(offsets, timeout_s)
        except KafkaException as raised:
            return dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised)))
        problems = exact.problems_of(None, answered)
        for name in [name for name, problem in problems.items() if problem.missing]:
            self.suspect(name[0])
        return problems


def _names(partitions: list[TopicPartition]) -> list[Name]:
    return [(one.topic, one.partition) for one in partitions]
