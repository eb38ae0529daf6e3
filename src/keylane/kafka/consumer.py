"""`KafkaConsumer`: the engine's consumer port on confluent-kafka.

The idea: librdkafka is a member of the group and fetches; where a partition starts, when it is committed and when it is
given up is decided by keylane. Rebalance callbacks run inside `poll` and `close`, on the thread that calls them: an
assign asks the broker for what the group has committed and resolves the start, a revoke waits for the listener.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from keylane.engine.assignment import Start
from keylane.engine.ports import Polled
from keylane.engine.start import Committed, resolve
from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka import exact
from keylane.kafka.faults import OUT_OF_RANGE, PARTITION_END, PASSING, Faults, commit_problem, describe, error_of
from keylane.kafka.settings import consumer_settings, is_cooperative

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka import KafkaError

    from keylane.engine.commits import CommitProblem
    from keylane.engine.ports import ConsumerListener, Offset
    from keylane.offsets import OffsetMap
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.kafka")

FIRST_ANSWER_S = 10.0
"""How long the first question to a broker waits: longer means that there is none."""

ANSWER_S = 5.0
"""How long one question to a broker waits before it is asked again."""

ASK_AGAIN_S = 0.2
"""Pause between two questions, while a broker restarts."""

RESOLVE_S = 60.0
"""How long an assignment may take to learn its start: a broker's restart, and well below max.poll.interval.ms."""


class KafkaConsumer:
    """A member of a consumer group.

    Raises `UsageError` when librdkafka refuses the settings. Thread safety: one thread at a time; `check` and `ends`
    come before `subscribe`.
    """

    def __init__(self, pipeline: Pipeline, client_id: str | None = None) -> None:
        self._pipeline = pipeline
        self._servers = str(pipeline.kafka["bootstrap.servers"])
        self._cooperative = is_cooperative(pipeline.kafka)
        self._faults = Faults()
        settings = consumer_settings(pipeline.kafka, client_id)
        settings |= {"error_cb": self._faults.report, "on_commit": self._on_commit}
        try:
            self._consumer = Consumer(settings)
        except (KafkaException, TypeError, ValueError) as error:
            text = describe(error_of(error)) if isinstance(error, KafkaException) else str(error)
            raise UsageError(f"kafka={dict(pipeline.kafka)!r}: librdkafka refuses these settings: {text}") from None
        exact.check(self._consumer, str(settings["client.id"]))
        self._listener: ConsumerListener | None = None
        self._epoch = 0
        self._epochs: dict[tuple[str, int], int] = {}
        """The partitions that are ours, and the epoch of each assignment."""
        self._starts: dict[tuple[str, int], int] = {}
        """Where each of them started."""
        self._paused: set[tuple[str, int]] = set()
        self._assigned_in_poll: set[tuple[str, int]] = set()
        self._closing = threading.Event()

    # --- before joining the group ---

    def check(self, partitions: Iterable[tuple[str, int]] = ()) -> None:
        """Raises `BrokerUnavailableError` when no broker answers in time, and `UsageError` for what is not there: a
        topic of the pipeline, or one of `partitions`.
        """
        known = self._metadata().topics
        for topic in self._pipeline.topics:
            if topic.startswith("^"):
                raise UsageError(f"topics: {topic!r}: this release takes topic names, not regular expressions")
            if topic not in known or known[topic].error is not None:
                reason = f" ({describe(known[topic].error)})" if topic in known and known[topic].error else ""
                raise UsageError(
                    f"topic {topic!r} does not exist at {self._servers}{reason}: create it, or correct its name"
                )
        for topic, partition in partitions:
            if partition not in known[topic].partitions:
                raise UsageError(
                    f"ending_offsets: {topic!r} has no partition {partition}; it has {len(known[topic].partitions)}"
                )

    def ends(self) -> dict[tuple[str, int], int]:
        """The log end offset of every partition of the pipeline's topics."""
        known = self._metadata().topics
        names = [(topic, partition) for topic in self._pipeline.topics for partition in known[topic].partitions]
        return {name: self._watermarks(*name, give_up_at=monotonic() + RESOLVE_S)[1] for name in names}

    def _metadata(self) -> Any:
        try:
            return self._consumer.list_topics(timeout=FIRST_ANSWER_S)
        except KafkaException as raised:
            self._consumer.poll(0)  # serves the error callback, which knows more
            self._faults.raise_failure()
            reason = self._faults.last or describe(error_of(raised))
            raise BrokerUnavailableError(
                f"no Kafka broker answered at {self._servers!r} within {FIRST_ANSWER_S:.0f} s ({reason}): "
                "check bootstrap.servers, and that the broker runs"
            ) from None

    # --- a member of the group ---

    def subscribe(self, listener: ConsumerListener) -> None:
        self._listener = listener
        self._consumer.subscribe(
            list(self._pipeline.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        """See the port. `consume(n)` would wait for n records or the timeout, so one is waited for, then the rest
        taken."""
        messages: list[Any] = self._consumer.consume(1, timeout_s)
        if messages and max_records > 1:
            self._assigned_in_poll.clear()
            more: list[Any] = self._consumer.consume(max_records - 1, 0)
            messages += self._without_overtaken(more) if self._assigned_in_poll else more
        self._faults.raise_failure()
        return self._by_partition(messages) if messages else None

    def _without_overtaken(self, messages: list[Any]) -> list[Any]:
        """Drop records that a rebalance inside the poll overtook: they may be of the old assignment. They are read
        again."""
        fresh = self._assigned_in_poll
        kept = [one for one in messages if (one.topic(), one.partition()) not in fresh]
        if len(kept) < len(messages):
            self._move({name: self._starts[name] for name in fresh})
        return kept

    def _move(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Read on from these positions. `seek` does not do it: it is refused where the client has stopped fetching."""
        moved = [TopicPartition(*name, offset) for name, offset in positions.items()]
        if self._cooperative:
            self._consumer.incremental_unassign(moved)
            self._consumer.incremental_assign(moved)
        else:
            others = [TopicPartition(*name) for name in self._epochs if name not in positions]
            for one in self._consumer.position(others):
                moved.append(one)
                if one.offset < 0:  # nothing was read of it yet
                    one.offset = self._starts[one.topic, one.partition]
            self._consumer.assign(moved)
        if self._paused:
            self._consumer.pause(self._ours(self._paused))

    def _by_partition(self, messages: list[Any]) -> Polled:
        polled = Polled()
        lists: dict[tuple[str, int], list[Any]] = {}
        last_topic, last_partition = None, -1
        records: list[Any] = []
        for message in messages:
            if message.error() is not None:
                self._on_event(message, polled)
                continue
            topic, partition = message.topic(), message.partition()
            if partition != last_partition or topic != last_topic:
                records = lists.setdefault((topic, partition), [])
                last_topic, last_partition = topic, partition
            records.append(message)
        for name, some in lists.items():
            polled.count += len(some)
            if name in self._epochs:
                polled.batches.append((name, self._epochs[name], some))
        return polled

    def _on_event(self, message: Any, polled: Polled) -> None:
        """A message that is not a record: the end of a partition, or an error."""
        error = message.error()
        name = (message.topic(), message.partition())
        if error.code() == PARTITION_END:
            if name in self._epochs:
                polled.ends.append((name, self._epochs[name], message.offset()))
        elif error.code() == OUT_OF_RANGE:
            if name in self._epochs:
                self._out_of_range(name, message.offset(), polled)
        else:
            self._faults.report(error)

    def _out_of_range(self, name: tuple[str, int], position: int, polled: Polled) -> None:
        """The log has nothing at the position: retention overtook it, or the log was cut."""
        log_start, log_end = self._watermarks(*name, give_up_at=monotonic() + RESOLVE_S)
        if position > log_end:
            raise PeerError(
                f"{name[0]}-{name[1]}: the position {position} is beyond the end of the log at {log_end} "
                "(was the topic made anew, or its log cut?): reset the group's offset, or use another group.id"
            )
        if position < log_start:
            polled.log_starts.append((name, self._epochs[name], log_start))
        self._move({name: max(position, log_start)})

    def pause(self, names: Iterable[tuple[str, int]]) -> None:
        if ours := self._ours(names):
            self._consumer.pause(ours)
            self._paused.update((one.topic, one.partition) for one in ours)

    def resume(self, names: Iterable[tuple[str, int]]) -> None:
        if ours := self._ours(names):
            self._consumer.resume(ours)
            self._paused.difference_update((one.topic, one.partition) for one in ours)

    def _ours(self, names: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """Those that were not taken from us since they were asked for."""
        return [TopicPartition(*name) for name in names if name in self._epochs]

    def log_ends(self) -> Mapping[tuple[str, int], int]:
        ends = {}
        for name in self._epochs:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*name), cached=True)
            if high >= 0:  # below: nothing was fetched yet
                ends[name] = high
        return ends

    def interrupt(self) -> None:
        self._closing.set()

    def close(self) -> None:
        self._closing.set()
        self._consumer.close()

    # --- commits ---

    def commit(self, offsets: Sequence[Offset]) -> None:
        try:
            exact.commit(self._consumer, offsets)
        except KafkaException as raised:
            assert self._listener is not None
            self._listener.on_committed(dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised))))

    def commit_now(self, offsets: Sequence[Offset]) -> dict[tuple[str, int], CommitProblem]:
        try:
            answered = exact.commit_now(self._consumer, offsets)
        except KafkaException as raised:
            return dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised)))
        return _problems(None, answered)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if self._listener is not None:
            self._listener.on_committed(_problems(error, partitions))

    def group_committed(self, names: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
        try:
            found = exact.committed(self._consumer, names, ANSWER_S)
        except KafkaException as raised:
            self._faults.report(error_of(raised))
            return {}
        return {
            (one.topic, one.partition): one.offset if one.offset >= 0 else None for one in found if one.error is None
        }

    # --- rebalances ---

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        starts: list[Start] = []
        try:
            starts = self._resolved(partitions)
        except Exception as error:  # the callback cannot fail: poll raises it
            self._faults.failure = self._faults.failure or error
        positions = [TopicPartition(s.topic, s.partition, max(s.offsets.base, s.log_start)) for s in starts]
        if self._cooperative:
            self._consumer.incremental_assign(positions)
        else:
            self._consumer.assign(positions)
        if positions:
            self._consumer.resume(positions)  # librdkafka keeps a pause over a rebalance; a new assignment has none
        for start, position in zip(starts, positions, strict=True):
            name = (start.topic, start.partition)
            self._epochs[name] = start.epoch
            self._starts[name] = position.offset
            self._assigned_in_poll.add(name)
        if starts:
            assert self._listener is not None
            self._listener.on_assigned(starts)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        names = self._names(partitions)
        if names:
            assert self._listener is not None
            self._listener.on_revoked(names)
        self._let_go(names)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        names = self._names(partitions)
        if names:
            logger.warning("lost %s: the group went on without this member", ", ".join(f"{t}-{p}" for t, p in names))
            assert self._listener is not None
            self._listener.on_lost(names)
        self._let_go(names)

    def _names(self, partitions: list[TopicPartition]) -> list[tuple[str, int]]:
        return [name for one in partitions if (name := (one.topic, one.partition)) in self._epochs]

    def _let_go(self, names: list[tuple[str, int]]) -> None:
        if self._cooperative:
            self._consumer.incremental_unassign([TopicPartition(*name) for name in names])
        else:
            self._consumer.unassign()
        for name in names:
            del self._epochs[name], self._starts[name]
            self._paused.discard(name)
            self._assigned_in_poll.discard(name)

    def _resolved(self, partitions: list[TopicPartition]) -> list[Start]:
        """Where each partition starts. A start that was not committed is, before anything of it can run."""
        if not partitions:
            return []
        give_up_at = monotonic() + RESOLVE_S
        starts, first = [], []
        for found in self._committed(partitions, give_up_at):
            offsets, commit_first = resolve(self._pipeline.group_id, found, self._pipeline.offset_reset)
            self._epoch += 1
            starts.append(Start(found.topic, found.partition, self._epoch, offsets, found.log_start, found.log_end))
            if commit_first:
                first.append(_First(found.topic, found.partition, offsets))
        while first:
            problems = self.commit_now(first)
            if not problems:
                break
            text = next(iter(problems.values())).text
            self._wait_to_ask_again(give_up_at, f"the starts of {len(problems)} partitions cannot be committed: {text}")
            first = [one for one in first if one.name in problems]
        return starts

    def _committed(self, partitions: list[TopicPartition], give_up_at: float) -> list[Committed]:
        """What the group has committed for each, and what its log holds."""
        while True:
            try:
                found = exact.committed(self._consumer, [(one.topic, one.partition) for one in partitions], ANSWER_S)
                failed = next((one.error for one in found if one.error is not None), None)
            except KafkaException as raised:
                failed = error_of(raised)
            if failed is None:
                break
            self._ask_again(failed, give_up_at, f"the committed offsets of group {self._pipeline.group_id!r}")
        return [
            Committed(
                one.topic,
                one.partition,
                one.offset if one.offset >= 0 else None,
                one.metadata,
                *self._watermarks(one.topic, one.partition, give_up_at),
            )
            for one in found
        ]

    def _watermarks(self, topic: str, partition: int, give_up_at: float) -> tuple[int, int]:
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
            except KafkaException as raised:
                self._ask_again(error_of(raised), give_up_at, f"the log of {topic}-{partition}")
                continue
            assert low != OFFSET_INVALID, (topic, partition, low, high)
            return low, high

    def _ask_again(self, error: KafkaError, give_up_at: float, what: str) -> None:
        """Wait a moment before the same question; raises when it cannot help, or took too long already."""
        if error.code() not in PASSING and not error.retriable():
            raise PeerError(f"{what} cannot be read: {describe(error)}")
        self._wait_to_ask_again(give_up_at, f"{what} cannot be read: {describe(error)}")

    def _wait_to_ask_again(self, give_up_at: float, text: str) -> None:
        if self._closing.is_set():
            raise BrokerUnavailableError(f"{text}; closed while waiting for the broker at {self._servers!r}")
        if monotonic() >= give_up_at:
            raise BrokerUnavailableError(
                f"{text}; gave up after {RESOLVE_S:.0f} s; check the broker at {self._servers!r}"
            )
        self._closing.wait(ASK_AGAIN_S)


class _First:
    """The commit of a resolved start: an `Offset` of the port."""

    __slots__ = ("metadata", "name", "offset")

    def __init__(self, topic: str, partition: int, offsets: OffsetMap) -> None:
        self.name = (topic, partition)
        self.offset = offsets.base
        self.metadata = ""


def _problems(
    error: KafkaError | None, partitions: Sequence[TopicPartition | exact.GroupOffset]
) -> dict[tuple[str, int], CommitProblem]:
    """Partitions that were not committed. An error of the request, and of no partition, is every partition's."""
    each = {(one.topic, one.partition): one.error for one in partitions}
    if error is not None and not any(each.values()):
        each = dict.fromkeys(each, error)
    return {name: commit_problem(found) for name, found in each.items() if found is not None}
