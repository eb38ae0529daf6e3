"""A consumer and a producer in memory, behind the engine's ports: a whole engine runs on them without a broker.

The idea: `FakeBroker` holds logs and one group's committed offsets. `FakeConsumer` is that group's only member: it is
assigned every partition when it subscribes, and a test rebalances it with `revoke`, `lose` and `assign`, which take
effect inside its next poll, as with a real client. `FakeProducer` acknowledges at once, unless a topic is told to
fail.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from keylane.consumer.assembly import assemble
from keylane.consumer.events import TransactionAnswered
from keylane.consumer.outputs import Answer
from keylane.consumer.ports import Polled
from keylane.consumer.start import Committed, Start, StartRule
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from keylane.consumer.commits import CommitEntry, CommitProblem
    from keylane.consumer.loop import Loop
    from keylane.consumer.outputs import Answers, Delivery
    from keylane.consumer.ports import ConsumerListener, LastStage, Offset
    from keylane.pipeline import Pipeline
    from keylane.records import Output

TopicPartition = tuple[str, int]


class FakeBroker:
    """Logs, and what one group has committed. Thread safety: any thread."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.logs: dict[TopicPartition, list[PlainMessage]] = {name: [] for name in partitions}
        self.before_commit: Callable[[Sequence[Offset]], None] = lambda _: None
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self.commits: list[dict[TopicPartition, tuple[int, str]]] = []
        """Every commit that was applied, oldest first."""
        self.fail_commits: deque[CommitProblem] = deque()
        """Problems that the next commits meet, one each."""
        self.more = threading.Condition()

    def append(self, name: TopicPartition, values: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Add records of (key, value)."""
        with self.more:
            log = self.logs[name]
            for key, value in values:
                log.append(PlainMessage(*name, len(log), key, value, (), (1, 1_700_000_000_000 + len(log))))
            self.more.notify_all()

    def apply(self, offsets: Sequence[Offset]) -> dict[TopicPartition, CommitProblem]:
        """Commit, or fail as told."""
        self.before_commit(offsets)
        if self.fail_commits:
            return dict.fromkeys((one.name for one in offsets), self.fail_commits.popleft())
        said = {one.name: (one.offset, one.metadata) for one in offsets}
        self.committed |= said
        self.commits.append(said)
        return {}


class FakeConsumer:
    """The group's only member, behind `keylane.consumer.ports.ConsumerPort`."""

    def __init__(self, broker: FakeBroker, *, offset_reset: str = "earliest", group: str = "fake") -> None:
        self._broker = broker
        self._offset_reset = offset_reset
        self._group = group
        self._listener: ConsumerListener | None = None
        self._rebalances: deque[Callable[[], None]] = deque()
        self._epoch = 0
        self.positions: dict[TopicPartition, int] = {}
        """The next offset to poll, of what is assigned."""
        self.epochs: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.pauses = 0
        self.at_end: set[TopicPartition] = set()
        self.closed = False
        self.poll_error: BaseException | None = None
        """Raised by the next poll."""

    # --- the test's side ---

    def assign(self, names: Iterable[TopicPartition]) -> None:
        chosen = list(names)
        self._rebalances.append(lambda: self._assign(chosen, self._told.on_assigned))

    def revoke(self, names: Iterable[TopicPartition]) -> None:
        chosen = list(names)
        self._rebalances.append(lambda: self._revoke(chosen))

    def lose(self, names: Iterable[TopicPartition]) -> None:
        chosen = list(names)
        self._rebalances.append(lambda: self._lose(chosen))

    # --- the port ---

    def subscribe(self, listener: ConsumerListener) -> None:
        self._listener = listener
        self.assign(self._broker.logs)

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        if self.poll_error is not None:
            error, self.poll_error = self.poll_error, None
            raise error
        while self._rebalances:
            self._rebalances.popleft()()
        with self._broker.more:
            polled = self._take(max_records)
            if polled is None:
                self._broker.more.wait(timeout_s)
                polled = self._take(max_records)
        return polled

    def _take(self, max_records: int) -> Polled | None:
        polled = Polled()
        for name, position in self.positions.items():
            if name in self.paused:
                continue
            log = self._broker.logs[name]
            some = log[position : position + max_records - polled.count]
            if some:
                self.at_end.discard(name)
                polled.batches.append((name, self.epochs[name], list(some)))
                polled.count += len(some)
                self.positions[name] = position + len(some)
            elif position == len(log) and name not in self.at_end:
                self.at_end.add(name)
                polled.ends.append((name, self.epochs[name], len(log)))
        return polled if polled.batches or polled.ends else None

    def pause(self, epochs: Mapping[TopicPartition, int]) -> None:
        ours = self._current(epochs)
        self.pauses += len(ours)
        self.paused.update(ours)

    def resume(self, epochs: Mapping[TopicPartition, int]) -> None:
        self.paused.difference_update(self._current(epochs))

    def _current(self, epochs: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        return [name for name, epoch in epochs.items() if name in self.positions and self.epochs[name] == epoch]

    def commit(self, offsets: Sequence[Offset]) -> None:
        problems = self._broker.apply(offsets)
        self._rebalances.append(lambda: self._told.on_committed(problems))  # the answer comes inside the next poll

    def commit_now(
        self,
        offsets: Sequence[Offset],
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, CommitProblem]:
        return self._broker.apply(offsets)

    def group_committed(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        return {name: self._broker.committed[name][0] if name in self._broker.committed else None for name in names}

    def log_ends(self) -> Mapping[TopicPartition, int]:
        return {name: len(self._broker.logs[name]) for name in self.positions}

    def interrupt(self) -> None:
        """Nothing here waits for a broker."""

    def close(self) -> None:
        self._revoke(list(self.positions))
        self.closed = True

    def reload(self, partitions: Sequence[tuple[TopicPartition, int]]) -> None:
        """Begin anew with these, if they are still in this epoch."""
        self._rebalances.append(lambda: self._reload(partitions))

    # --- rebalances ---

    @property
    def _told(self) -> ConsumerListener:
        assert self._listener is not None, "not subscribed"
        return self._listener

    def _assign(self, names: list[TopicPartition], tell: Callable[[list[Start]], None]) -> None:
        starts = []
        for name in names:
            offset, metadata = self._broker.committed.get(name, (None, ""))
            found = Committed(*name, offset, metadata, 0, len(self._broker.logs[name]))
            offsets, first = StartRule(self._group, self._offset_reset).resolve(found)
            if first:
                self._broker.committed[name] = (offsets.base, "")
            self._epoch += 1
            self.epochs[name] = self._epoch
            self.positions[name] = offsets.base
            starts.append(Start(*name, self._epoch, offsets, 0, found.log_end))
        tell(starts)

    def _reload(self, partitions: Sequence[tuple[TopicPartition, int]]) -> None:
        names = [name for name, epoch in partitions if self.epochs.get(name) == epoch]
        self._let_go(names)
        self._assign(names, self._told.on_reloaded)

    def _revoke(self, names: list[TopicPartition]) -> None:
        ours = [name for name in names if name in self.positions]
        if ours:
            self._told.on_revoked(self._told.on_revoking(ours))
        self._let_go(ours)

    def _lose(self, names: list[TopicPartition]) -> None:
        ours = [name for name in names if name in self.positions]
        if ours:
            self._told.on_lost(ours)
        self._let_go(ours)

    def _let_go(self, names: list[TopicPartition]) -> None:
        for name in names:
            del self.positions[name], self.epochs[name]
            self.paused.discard(name)
            self.at_end.discard(name)


class FakeProducer:
    """Acknowledges what it is sent, behind `keylane.consumer.ports.ProducerPort`."""

    def __init__(self, report: Callable[[Answers], None]) -> None:
        self._report = report
        self.sent: list[Output] = []
        """Acknowledged outputs, in order."""
        self.failing: dict[str, BaseException] = {}
        """Topics whose outputs fail, and with what."""
        self.held: Answers | None = None
        """While this is a list, answers are kept in it, until `release`."""
        self.closed = False

    def send(self, deliveries: Sequence[Delivery]) -> None:
        answers: Answers = []
        for delivery in deliveries:
            for index, output in enumerate(delivery.outputs):
                error = self.failing.get(output.topic)
                if error is None:
                    self.sent.append(output)
                answers.append(Answer(delivery, index, error, output.partition or 0, len(self.sent) - 1))
        if self.held is None:
            self._report(answers)
        else:
            self.held += answers

    def release(self) -> None:
        """Give the answers that were held, and hold no more."""
        held, self.held = self.held, None
        if held:
            self._report(held)

    def close(self, timeout_s: float) -> None:
        self.closed = True


class FakeTransactions(FakeProducer):
    """The same with transactions, behind `keylane.consumer.ports.TransactionsPort`; `sent` has the outputs of those
    that were committed."""

    def __init__(
        self,
        report: Callable[[Answers], None],
        tell: Callable[[object], None],
        broker: FakeBroker,
        consumer: FakeConsumer,
    ) -> None:
        super().__init__(report)
        self._tell = tell
        self._broker = broker
        self._consumer = consumer
        self._committed: list[Output] = []

    def start(self) -> None:
        self._tell(TransactionAnswered("start"))

    def commit(self, entries: Sequence[CommitEntry]) -> None:
        problems = self._broker.apply(entries)
        if not problems:
            self._committed = list(self.sent)
        self._tell(TransactionAnswered("commit", next(iter(problems.values()), None)))

    def abort(self, *, renew: bool) -> None:
        self.sent[:] = self._committed
        self._tell(TransactionAnswered("abort"))

    def reload(self, partitions: Sequence[tuple[TopicPartition, int]]) -> None:
        self._consumer.reload(partitions)

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        self.sent[:] = self._committed


class FakeEngine:
    """A whole engine on fakes: real core, loop, intake thread and workers. Use it in a `with` block.

    `loop` is `keylane.consumer.loop.Loop`; leaving the block stops it and waits until every thread has ended.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        broker: FakeBroker,
        *,
        ending_offsets: Mapping[TopicPartition, int] | None = None,
        stream: LastStage | None = None,
    ) -> None:
        self.consumer = FakeConsumer(broker, offset_reset=pipeline.offset_reset, group=pipeline.group_id)
        self._transactional = FakeTransactions(self._report, self._tell, broker, self.consumer)
        is_transactional = pipeline.delivery == "transactional"
        self.producer = self._transactional if is_transactional else FakeProducer(self._report)
        self._to_loop: Callable[[Answers], None] | None = None
        self._tell_loop: Callable[[object], None] | None = None
        self.loop: Loop = assemble(
            pipeline,
            self.consumer,
            self._producer,
            random=lambda: 0.5,
            name="fake",
            ending_offsets=ending_offsets,
            stream=stream,
            make_transactions=self._transactions,
        )

    def _transactions(self, report: Callable[[Answers], None], tell: Callable[[object], None]) -> FakeTransactions:
        self._to_loop, self._tell_loop = report, tell
        self._transactional.start()
        return self._transactional

    def _tell(self, event: object) -> None:
        assert self._tell_loop is not None
        self._tell_loop(event)

    def _producer(self, report: Callable[[Answers], None]) -> FakeProducer:
        self._to_loop = report
        return self.producer

    def _report(self, answers: Answers) -> None:
        assert self._to_loop is not None
        self._to_loop(answers)

    def __enter__(self) -> Self:
        self.loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.loop.stop()
        self.loop.join()
