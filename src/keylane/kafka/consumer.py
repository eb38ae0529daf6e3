"""`KafkaConsumer`: the engine's consumer port on confluent-kafka; and `Fetcher`, the client of it that reads.

The idea: two clients, because librdkafka stops fetching everything that a client has while its group rebalances, and
drops what it has prefetched. One is the group's member (`GroupMember`), on a thread of its own, as rebalance callbacks
wait. The other one takes no part in the group: on the intake thread it reads what it is told to, and what a rebalance
leaves alone is read on without a pause (docs/adr/0008).
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from itertools import groupby
from queue import Empty, SimpleQueue
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Message, TopicPartition

from keylane.consumer.ports import Polled
from keylane.errors import PeerError
from keylane.kafka import exact
from keylane.kafka.certificates import CertificateWatch
from keylane.kafka.clients import Consumer
from keylane.kafka.faults import (
    DAMAGED,
    NO_PARTITION,
    OUT_OF_RANGE,
    PARTITION_END,
    Faults,
    client_of,
    commit_problem,
    damage_of,
    error_of,
)
from keylane.kafka.group_member import GroupMember
from keylane.kafka.group_wait import GroupWait
from keylane.kafka.instance_name import InstanceName
from keylane.kafka.leaders import Leaders
from keylane.kafka.letters_topic import warn_of_letters
from keylane.kafka.log_changes import Reached, changes_of
from keylane.kafka.logs import ANSWER_S, Logs, Patience
from keylane.kafka.offset_server_check import check_offset_servers
from keylane.kafka.open_wait import OpenWait
from keylane.kafka.places import SERVERS, are_apart, for_groups
from keylane.kafka.presence import STEADY, Heartbeats, Presence, interval_ms, session_s
from keylane.kafka.settings import (
    consumer_settings,
    fetch_bytes,
    fetcher_settings,
    is_cooperative,
    makes_topics,
    member_settings,
)
from keylane.kafka.topic_ids import AnotherTopicError, TopicIds
from keylane.kafka.unassigned_wait import UnassignedWait
from keylane.kafka.unreadable import UnreadableBatches
from keylane.options import DeadLetter
from keylane.patterns import is_pattern
from keylane.pipeline import OFFSETS_SERVERS, External

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from keylane.consumer.commits import CommitProblem
    from keylane.consumer.ports import ConsumerListener, Offset
    from keylane.consumer.snapshot import Waits
    from keylane.consumer.start import Start
    from keylane.kafka import exact_transactions
    from keylane.kafka.group_times import GroupTimes
    from keylane.kafka.membership import Target
    from keylane.kafka.topic_ids import Question
    from keylane.pipeline import Pipeline

COMMIT_POLL_S = 0.005
"""How long a poll may wait for records while a commit is on its way: its answer is looked for between polls."""


class KafkaConsumer:
    """A member of a consumer group, and what it reads.

    Raises `UsageError` when librdkafka refuses the settings. Thread safety: one thread at a time; `check` and `ends`
    come before `subscribe`. The listener is called on two threads: for commits the caller's, for rebalances another.
    """

    def __init__(self, pipeline: Pipeline, client_id: str | None = None) -> None:
        self._pipeline = pipeline
        self._groups = for_groups(pipeline.kafka)
        """Settings of whoever asks the group's coordinator."""
        self._faults = Faults()
        self._certificates = CertificateWatch(pipeline.kafka, client_id or "keylane", self._faults.fail)
        self._faults.on_refusal = self._certificates.refused
        self._patience = Patience(str(pipeline.kafka[SERVERS]))
        self._group_patience = self._patience
        if are_apart(pipeline.kafka):
            self._group_patience = Patience(str(pipeline.kafka[OFFSETS_SERVERS]), OFFSETS_SERVERS)
        self._settings = consumer_settings(pipeline.kafka, client_id) | {"error_cb": self._faults.report}
        self._name = client_id or "keylane"
        self._presence = Presence(pipeline.kafka, monotonic())
        self.group_times: GroupTimes | None = None
        """What the broker has decided, under KIP-848, as of the last assignment. Any thread; changed here only."""
        self._external = isinstance(pipeline.commit, External)
        self._commit_is_on_its_way = False
        self._listener: ConsumerListener | None = None
        self._check_starts: Callable[[Sequence[Start]], Sequence[Start]] = as_they_are
        self._before_commit: Callable[[Sequence[Offset]], None] = lambda _: None
        self._epochs = itertools.count(1)
        is_static = "group.instance.id" in pipeline.kafka and pipeline.kafka.get("group.protocol") != "consumer"
        self._instance = InstanceName(self._groups) if is_static and not pipeline.assignment else None
        self.has_assignment = bool(pipeline.assignment)
        """Whether the group has once given this member what it is to have: nothing perhaps, but under KIP-848, where
        one that waits for others has nothing either. Any thread."""
        self._group = self._member_client()
        exact.check(self._group, str(self._settings["client.id"]))
        self._logs = self._new_logs()
        self._asked: tuple[Question, Sequence[Offset]] | None = None
        """Before a commit: whether its topics are those that were read."""
        self._commits = exact.CommitQueue(self._group)
        self._read_with(self._settings)
        rejoin = None if self._instance is None else lambda: self._member.rejoin()
        self._unassigned = UnassignedWait(
            pipeline.kafka, pipeline.subscription, self._name, lambda: self._member.partitions, rejoin
        )

    def _read_with(self, settings: Mapping[str, Any]) -> None:
        """Before the start: what reads has a client of these."""
        reader = client_of(Consumer, fetcher_settings(settings), "consumer")
        logs = Logs(reader, self._patience, self._faults)
        self._fetcher = Fetcher(reader, logs, self._faults, self.suspect, self._pipeline.kafka)
        self._topic_ids = TopicIds(reader)
        self._member = self._new_member()

    def _member_client(self) -> Consumer:
        kafka = self._groups
        heartbeats = Heartbeats(kafka, self._heard, self._faults.fail, self._presence)
        statistics = {"statistics.interval.ms": interval_ms(kafka), "stats_cb": heartbeats.read}
        client = client_of(Consumer, member_settings(for_groups(self._settings)) | statistics, "consumer")
        self._group_wait = GroupWait(kafka, client.memberid, self._name)
        if not self._pipeline.assignment:
            heartbeats.joins = self._joins
            heartbeats.told = self._told
        return client

    def _new_logs(self) -> Logs:
        """Whom the member asks about topics and logs: its own client, which is connected to the brokers as a rule."""
        if not are_apart(self._pipeline.kafka):
            return Logs(self._group, self._patience, self._faults)
        client = client_of(Consumer, fetcher_settings(self._settings), "consumer")
        return Logs(client, self._patience, self._faults, is_own=True)

    def _told(self, times: GroupTimes) -> None:
        self.group_times = times
        if self._listener is not None:
            self._listener.on_session(times.session_s)

    def _joins(self, state: str, now: float) -> None:
        """librdkafka's state of the member: one of KIP-848's protocol is steady while it waits for others."""
        is_kip_848 = self._pipeline.kafka.get("group.protocol") == "consumer"
        state = "wait-sync" if is_kip_848 and not self._member.has_partitions else state
        self._group_wait.joins(state, now)
        self.has_assignment = self.has_assignment or state == STEADY

    def _new_member(self) -> GroupMember:
        """Of the client that is the group's member now."""
        member = GroupMember(
            self._group,
            self._commits,
            self._pipeline,
            self._fetcher,
            self._logs,
            self._group_patience,
            self._faults,
            cooperative=is_cooperative(self._pipeline.kafka),
            name=self._name,
            epochs=self._epochs,
            instance=self._instance,
            check_starts=self._checked_starts,
            before_commit=self._check_commit,
        )
        member.on_lost = lambda: self._presence.lost(monotonic())
        return member

    def _checked_starts(self, starts: Sequence[Start]) -> Sequence[Start]:
        self._topic_ids.know(one.topic for one in starts)
        return self._check_starts(starts)

    def _check_commit(self, offsets: Sequence[Offset]) -> None:
        self._check_topics(one.name[0] for one in offsets)
        self._before_commit(offsets)

    def _check_topics(self, topics: Iterable[str]) -> None:
        """Raises `AnotherTopicError`."""
        if (question := self._topic_ids.question(topics)) is not None:
            self._topic_ids.check(question, question.wait())

    def trouble(self) -> str | None:
        """Why this is no member of its group that has its partitions, or soon will; None when it is, and the group has
        all that is to be read. Any thread."""
        if self._pipeline.assignment:
            return None
        unassigned = self._unassigned.wait
        return self._presence.trouble(monotonic()) or (None if unassigned is None else str(unassigned))

    def _join_again(self) -> None:
        """The member was given up: another one takes its place. What it had is lost, and given anew."""
        assert self._listener is not None, "given up before the start"
        self._group_wait.close()
        self._member.close()
        self._group = self._member_client()
        self._logs = self._new_logs()
        self._commits = exact.CommitQueue(self._group)
        self._member = self._new_member()
        self._member.start(self._listener)

    @property
    def session_s(self) -> float | None:
        """The session timeout; None without a group to take part in."""
        return None if self._pipeline.assignment else session_s(self._pipeline.kafka)

    @property
    def waits(self) -> Waits | None:
        """What this member waits for while it joins its group, or cannot read on; and what nobody in its group has. Any
        thread."""
        return self._group_wait.wait or self._fetcher.open_wait.wait or self._unassigned.wait

    def changes(self, starts: Sequence[Start]) -> dict[tuple[str, int], int | None]:
        """From which offset on each log has other records than those of which its start is true; None where it has
        none. Without the logs of which nobody can say it."""
        reached = {
            (one.topic, one.partition): Reached(
                one.offsets.base, one.leader_epoch, one.log_start, one.log_end, has_map=bool(one.offsets.span)
            )
            for one in starts
        }
        return changes_of(self._pipeline.kafka, reached, self._patience.pause)

    def check_starts(
        self, check: Callable[[Sequence[Start]], Sequence[Start]], before_commit: Callable[[Sequence[Offset]], None]
    ) -> None:
        """Have `check` called with the starts of partitions before anything of them begins, and begin with those that
        it returns; and `before_commit` before each `commit_now`. What they raise ends the consumer, or keeps the commit
        from being made. Call it before `subscribe`."""
        self._check_starts = check
        self._before_commit = before_commit

    # --- before joining the group ---

    def check(self, partitions: Iterable[tuple[str, int]] = ()) -> None:
        """Raises `BrokerUnavailableError` when no broker answers in time, and `UsageError` for what is not there: a
        topic that the pipeline reads or produces to, its dead-letter topic too, or one of `partitions`; and for
        `offsets.servers` that are none, or another cluster's.
        """
        pipeline = self._pipeline
        if are_apart(pipeline.kafka):
            of_groups = Logs(self._group, self._group_patience, self._faults)
            check_offset_servers(pipeline.kafka, of_groups, self._logs)
        count = self._logs.check(pipeline.subscription, partitions, "ending_offsets")
        if pipeline.assignment:
            self._logs.check({topic for topic, _ in pipeline.assignment}, pipeline.assignment, "assignment")
            count = len(pipeline.assignment)
        if smaller := fetch_bytes(count, pipeline.kafka):
            self._fetcher.close()
            self._read_with(self._settings | smaller)
        wanted = [*pipeline.outputs, *([rule.topic] if isinstance(rule := pipeline.on_exhausted, DeadLetter) else ())]
        if wanted and not makes_topics(pipeline.kafka):
            self._logs.check_outputs(wanted)
        if isinstance(rule, DeadLetter):
            warn_of_letters(pipeline.kafka, rule.topic)

    def ends(self) -> dict[tuple[str, int], int]:
        """The log end offset of every partition that the pipeline reads."""
        known = Logs(self._group, self._group_patience, self._faults)  # the member reads what its client knows
        names = self._pipeline.assignment or known.partitions(self._pipeline.subscription)
        return {name: self._logs.bounds(*name)[1] for name in names}

    # --- the port ---

    def subscribe(self, listener: ConsumerListener) -> None:
        self._listener = listener
        self._certificates.start()
        self._member.start(listener)
        if not self._pipeline.assignment:
            self._unassigned.start()
        topics = self._pipeline.reads
        if not is_pattern(topics[0]):
            self._fetcher.expect(topics[0])

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        self._serve_commits()
        if self._member.is_given_up and not self._commit_is_on_its_way:
            self._join_again()
        polled = self._fetcher.poll(max_records, COMMIT_POLL_S if self._commit_is_on_its_way else timeout_s)
        self._serve_commits()
        self._faults.raise_failure()
        return polled

    def fail(self, error: BaseException) -> None:
        """The next poll raises this. Any thread."""
        self._faults.fail(error)

    def pause(self, epochs: Mapping[tuple[str, int], int]) -> None:
        self._fetcher.pause(epochs)

    def resume(self, epochs: Mapping[tuple[str, int], int]) -> None:
        self._fetcher.resume(epochs)

    def log_ends(self) -> Mapping[tuple[str, int], int]:
        return self._fetcher.log_ends()

    def interrupt(self) -> None:
        self._patience.close()
        self._group_patience.close()

    def close(self) -> None:
        self.interrupt()
        self._commits.forget()
        if self._asked is not None:
            self._asked[0].close()
        self._group_wait.close()
        self._unassigned.close()
        self._certificates.close()
        self._member.close()
        self._fetcher.close()
        self._faults.raise_broken()

    def suspect(self, topic: str) -> None:
        """A broker does not know this topic: find out whether it was deleted. Any thread."""
        self._member.suspect(topic)

    # --- for transactions ---

    def reload(self, partitions: Sequence[tuple[tuple[str, int], int]]) -> None:
        """See `keylane.consumer.ports.TransactionsPort.reload`."""
        self._member.reload(partitions)

    def owning(self, epochs: Mapping[tuple[str, int], int]) -> AbstractContextManager[exact_transactions.Member | None]:
        """See `GroupMember.owning`. Any thread, as `reload`. None, too, where a topic is another one now, which ends
        the consumer."""
        try:
            self._check_topics(topic for topic, _ in epochs)
        except AnotherTopicError as error:
            self._faults.fail(error)
            return nullcontext()
        return self._member.owning(epochs)

    # --- commits ---

    def commit(self, offsets: Sequence[Offset]) -> None:
        if self._external:  # whoever keeps them is told by on_commit
            self._answered({})
            return
        self._commit_is_on_its_way = True
        question = self._topic_ids.question(one.name[0] for one in offsets)
        if question is None:
            self._send(offsets)
        else:
            self._asked = question, offsets

    def _send(self, offsets: Sequence[Offset]) -> None:
        try:
            self._commits.send(offsets)
        except KafkaException as raised:
            self._answered(dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised))))

    def commit_now(
        self, offsets: Sequence[Offset], timeout_s: float | None = None
    ) -> dict[tuple[str, int], CommitProblem]:
        return {} if self._external else self._member.commit_now(offsets, timeout_s)

    def seek(
        self,
        targets: Mapping[tuple[str, int], Target],
        others: Target | None,
        moved: Callable[[Mapping[tuple[str, int], str]], None] | None = None,
    ) -> None:
        """Go on elsewhere with these partitions, and with all others that are assigned; `moved` is told, on a thread of
        the client's, which do so now (empty), and why others do not. Any thread."""
        self._member.seek(targets, others, moved)

    def _heard(self, heard_at: float) -> None:
        self._presence.heard(heard_at)
        if self._listener is not None:
            self._listener.on_heard(heard_at)

    def _serve_commits(self) -> None:
        if self._asked is not None:
            question, offsets = self._asked
            if (found := question.answer()) is None:
                return
            self._asked = None
            self._topic_ids.check(question, found)
            self._send(offsets)
        if self._commit_is_on_its_way and (answer := self._commits.answer()) is not None:
            self._answered(exact.problems_of(*answer))

    def _answered(self, problems: dict[tuple[str, int], CommitProblem]) -> None:
        self._commit_is_on_its_way = False
        for name in [name for name, problem in problems.items() if problem.missing]:
            self.suspect(name[0])
        assert self._listener is not None, "a commit before the start"
        self._listener.on_committed(problems)

    def group_committed(self, names: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
        try:
            found = exact.committed(self._group, names, ANSWER_S)
        except KafkaException as raised:
            self._faults.report(error_of(raised))
            return {}
        for one in found:
            if one.offset < 0:  # nothing was committed; or it went with the topic
                self.suspect(one.topic)
        return {
            (one.topic, one.partition): one.offset if one.offset >= 0 else None for one in found if one.error is None
        }


def as_they_are(starts: Sequence[Start]) -> Sequence[Start]:
    return starts


def consume_some(client: Consumer, most: int, timeout_s: float) -> list[Any]:
    """What is there; when that is nothing, one that comes within the time, and what is there then. In one call, the
    client would wait until there are as many as `most`."""
    messages: list[Any] = client.consume(most, 0)
    if not messages:
        messages = client.consume(1, timeout_s)
        if messages and most > 1:
            messages += client.consume(most - 1, 0)
    return messages


class Fetcher:
    """Reads partitions from given positions.

    Thread safety: `assign` and `unassign` are for any thread and take effect inside the next `poll`; everything else
    is the intake thread's.
    """

    def __init__(
        self,
        client: Consumer,
        logs: Logs,
        faults: Faults,
        missing: Callable[[str], None] = lambda _: None,
        kafka: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`missing` is told of topics that a broker does not know. `kafka`: the pipeline's settings."""
        self._client = client
        self._logs = logs
        self._faults = faults
        self._missing = missing
        self._leaders = Leaders(client)
        self._requests: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._epochs: dict[tuple[str, int], int] = {}
        """The partitions that are read, and the epoch of each assignment."""
        self._topics: set[str] = set()
        """All that were ever read."""
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}
        """Offset and leader epoch of the last record that was read."""
        self._paused: set[tuple[str, int]] = set()
        self.open_wait = OpenWait()
        self._unreadable = UnreadableBatches(kafka, faults)
        self._has_room = False
        """Whether the last poll asked for records."""

    # --- any thread ---

    def assign(self, starts: list[Start]) -> None:
        """Read these too. A partition that was read before must have been unassigned."""
        self._requests.put((self._assign, starts))

    def unassign(self, names: list[tuple[str, int]]) -> None:
        self._requests.put((self._unassign, names))

    # --- the intake thread ---

    def expect(self, topic: str) -> None:
        """An assignment of this topic may come: connect before it does."""
        self._leaders.learn([topic])

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        """See `ConsumerPort.poll`."""
        for_assignment_s = 0 if self._epochs else timeout_s  # nothing else can come first
        self._obey(for_assignment_s)
        self._has_room = max_records > 0
        if not self._has_room:
            return None
        messages = consume_some(self._client, max_records, timeout_s - for_assignment_s)
        return self._by_partition(messages) if messages else None

    def pause(self, epochs: Mapping[tuple[str, int], int]) -> None:
        """See `ConsumerPort.pause`."""
        self._obey()
        if ours := self._current(epochs):
            self._client.pause(ours)
            self._paused.update((one.topic, one.partition) for one in ours)

    def resume(self, epochs: Mapping[tuple[str, int], int]) -> None:
        """See `ConsumerPort.resume`."""
        self._obey()
        if ours := self._current(epochs):
            self._client.resume(ours)
            self._paused.difference_update((one.topic, one.partition) for one in ours)

    def log_ends(self) -> Mapping[tuple[str, int], int]:
        ends = {}
        for name in self._epochs:
            _, high = self._client.get_watermark_offsets(TopicPartition(*name), cached=True)
            if high >= 0:  # below: nothing was fetched yet
                ends[name] = high
        self.open_wait.look(ends, self._paused, monotonic())
        if self._has_room:
            self._unreadable.look(ends, self._paused | self.open_wait.names, monotonic())
        return ends

    def close(self) -> None:
        self._client.close()

    def _obey(self, timeout_s: float = 0) -> None:
        """Carry out what was asked for since the last poll; wait so long for the first."""
        try:
            while True:
                do, argument = self._requests.get(timeout=timeout_s)
                timeout_s = 0
                do(argument)
        except Empty:
            pass

    def _assign(self, starts: list[Start]) -> None:
        positions = [_position(one) for one in starts]
        self._leaders.learn(one.topic for one in starts)
        self._client.incremental_assign(positions)
        self._client.resume(positions)  # librdkafka keeps a pause over an assignment; a new one has none
        for one, position in zip(starts, positions, strict=True):
            self._epochs[one.topic, one.partition] = one.epoch
            self._unreadable.reach((one.topic, one.partition), position.offset)
            self._topics.add(one.topic)

    def _unassign(self, names: list[tuple[str, int]]) -> None:
        self._client.incremental_unassign(self._ours(names))
        for name in names:
            self._epochs.pop(name, None)
            self._paused.discard(name)
            self._newest.pop(name, None)
            self.open_wait.forget(name)
            self._unreadable.forget(name)

    def _current(self, epochs: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
        """Those whose assignment is still of that epoch."""
        return [TopicPartition(*name) for name, epoch in epochs.items() if self._epochs.get(name) == epoch]

    def _ours(self, names: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """Those that were not taken from us since they were asked for."""
        return [TopicPartition(*name) for name in names if name in self._epochs]

    def _by_partition(self, messages: list[Any]) -> Polled:
        polled = Polled()
        if any(map(Message.error, messages)):
            for message in messages:
                if message.error() is not None:
                    self._on_event(message, polled)
            messages = [message for message in messages if message.error() is None]
        lists: dict[Any, list[Any]] = {}  # of topic and partition
        one_topic = len(self._topics) == 1  # then messages need not be asked for it
        for topic, of_topic in [(*self._topics, messages)] if one_topic else groupby(messages, Message.topic):
            for partition, run in groupby(of_topic, Message.partition):
                lists.setdefault((topic, partition), []).extend(run)
        for name, some in lists.items():
            polled.count += len(some)
            self.open_wait.read(name, some[-1].offset())
            if name in self._epochs:
                self._check_leader(name, some[-1])
                self._unreadable.reach(name, some[-1].offset() + 1)
                polled.batches.append((name, self._epochs[name], some))
        return polled

    def _check_leader(self, name: tuple[str, int], last: Message) -> None:
        """Within one log leader epochs rise. The client holds those against the log that rise, and passes over those
        that fall, as they do where all brokers were put back to an older copy."""
        offset, epoch = last.offset() or 0, last.leader_epoch()
        if epoch is None:  # an old broker's, or of a batch in an old format
            return
        last_offset, last_epoch = self._newest.get(name, (offset, epoch))
        if offset > last_offset and epoch < last_epoch:
            went_back = f"the leader epoch went back, from {last_epoch} at offset {last_offset} to {epoch} at {offset}"
            raise PeerError(_cut(name, went_back))
        self._newest[name] = offset, epoch

    def _on_event(self, message: Any, polled: Polled) -> None:
        """A message that is not a record: the end of a partition, or an error."""
        error = message.error()
        name = (message.topic(), message.partition())
        if error.code() == PARTITION_END:
            if name in self._epochs:
                self.open_wait.ended(name, message.offset())
                self._unreadable.reach(name, message.offset())
                polled.ends.append((name, self._epochs[name], message.offset()))
        elif error.code() == OUT_OF_RANGE:
            if name in self._epochs:
                if message.offset() is None:
                    raise PeerError(_cut(name, f"its log was cut below what was read of it ({error.str()})"))
                self._out_of_range(name, message.offset(), polled)
        elif error.code() in DAMAGED:
            # What the client reads on behind it would make the damaged records look like ones that are not there.
            self._epochs.pop(name, None)
            self._faults.fail(damage_of(message))
        else:
            self._faults.report(error, name[0])
            if error.code() in NO_PARTITION:
                self._missing(name[0])

    def _out_of_range(self, name: tuple[str, int], position: int, polled: Polled) -> None:
        """The log has nothing at the position: retention overtook it, or the log was cut."""
        log_start, log_end = self._logs.bounds(*name)
        if position > log_end:
            raise PeerError(_cut(name, f"the position {position} is beyond the end of the log at {log_end}"))
        if position < log_start:
            polled.log_starts.append((name, self._epochs[name], log_start))
        self._move(name, max(position, log_start))

    def _move(self, name: tuple[str, int], position: int) -> None:
        """Read on from this position. `seek` does not do it: it is refused where the client has stopped fetching."""
        moved = [TopicPartition(*name, position)]
        self._unreadable.reach(name, position)
        self._client.incremental_unassign(moved)
        self._client.incremental_assign(moved)
        if name in self._paused:
            self._client.pause(moved)


def _position(start: Start) -> TopicPartition:
    """Where to read from. The client holds the leader epoch against the log when the leader changes."""
    epoch = -1 if start.is_unchecked else start.leader_epoch
    return TopicPartition(start.topic, start.partition, max(start.offsets.base, start.log_start), leader_epoch=epoch)


def _cut(name: tuple[str, int], what: str) -> str:
    return (
        f"{name[0]}-{name[1]}: {what} (was the topic made anew, or its log cut?): start again; the start asks where "
        "the log was cut, and says what to do where the group has committed more"
    )
