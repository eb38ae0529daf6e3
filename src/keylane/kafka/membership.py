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
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from keylane.engine.assignment import Start
from keylane.engine.start import Committed, StartRule
from keylane.kafka import exact, exact_transactions
from keylane.kafka.faults import commit_problem, error_of
from keylane.kafka.logs import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from confluent_kafka import KafkaError

    from keylane.engine.commits import CommitProblem
    from keylane.engine.events import Revoking
    from keylane.engine.ports import ConsumerListener, Offset
    from keylane.kafka.faults import Faults
    from keylane.kafka.fetcher import Fetcher
    from keylane.kafka.logs import Logs, Patience
    from keylane.offsets import OffsetMap
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.kafka")

POLL_S = 0.05
"""How long one poll of the group waits, and so how long closing waits for it."""

REVOKING_POLL_S = 0.005
"""The same while partitions are being revoked: others wait for them."""

CLOSE_S = 5.0
"""How long closing waits for the client to leave the group. Without a coordinator it would wait a session timeout."""


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
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._fetcher = fetcher
        self._logs = logs
        self._patience = patience
        self._faults = faults
        self._cooperative = cooperative
        self._by_hand = bool(pipeline.assignment)
        self._listener: ConsumerListener | None = None
        self.check_starts: Callable[[Sequence[Start]], None] | None = None
        """Called with the starts of partitions before anything of them begins; what it raises ends the consumer."""
        self._epoch = 0
        self._ours: dict[tuple[str, int], int] = {}
        """What the group has given to this member, and the epoch of each assignment."""
        self._owning = threading.Lock()
        """Guards `_ours` and the client's life against a transaction's offsets, which are sent on another thread."""
        self._leaving = False
        """Whether the client is being closed."""
        self._reloads: SimpleQueue[Sequence[tuple[tuple[str, int], int]]] = SimpleQueue()
        self._revoking: Revoking | None = None
        """Partitions that the group takes back, and whose records are not through yet."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-group", daemon=True)

    # --- the intake thread ---

    def start(self, listener: ConsumerListener) -> None:
        self._listener = listener
        self._thread.start()

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

    # --- its own thread ---

    def _run(self) -> None:
        try:
            self._begin()
            while not self._closing.is_set():
                self._poll()
            if self._by_hand and self._ours:
                self._revoking = self._listening.on_revoking(sorted(self._ours))
            self._finish_revoke(at_once=True)
        except BaseException as error:  # the intake thread raises it
            self._faults.broken = error
        with self._owning:
            self._leaving = True
        try:
            self._client.close()
        except BaseException as error:  # like the above
            self._faults.broken = self._faults.broken or error

    def _begin(self) -> None:
        """Join the group; or take what is assigned by hand, and take no part in any."""
        if self._by_hand:
            names = [TopicPartition(*name) for name in self._pipeline.assignment]
            self._take(names, self._listening.on_assigned)
            return
        self._client.subscribe(
            list(self._pipeline.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _poll(self) -> None:
        event = self._client.poll(POLL_S if self._revoking is None else REVOKING_POLL_S)
        if event is not None and (error := event.error()) is not None:
            self._faults.report(error)
        self._finish_revoke()
        while not self._reloads.empty():
            self._reload(self._reloads.get())

    def _reload(self, partitions: Sequence[tuple[tuple[str, int], int]]) -> None:
        leaving = [] if self._revoking is None else self._revoking.names
        names = [name for name, epoch in partitions if self._ours.get(name) == epoch and name not in leaving]
        self._fetcher.unassign(names)
        self._take([TopicPartition(*name) for name in names], self._listening.on_reloaded)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if self._revoking is not None:  # the session timed out meanwhile, and the group went on
            self._lose(self._revoking.names)
        self._take(partitions, self._listening.on_assigned)
        if self._cooperative:
            self._client.incremental_assign([])
        else:
            self._client.assign([])

    def _take(self, partitions: list[TopicPartition], tell: Callable[[list[Start]], None]) -> None:
        """Resolve where these start, and let them begin."""
        starts: list[Start] = []
        try:
            starts = self._resolved(partitions)
            if starts and self.check_starts is not None:
                self.check_starts(starts)
        except Exception as error:  # the callback cannot fail: the next poll raises it
            starts = []
            self._faults.fail(error)
        if starts:
            with self._owning:
                self._ours |= {(one.topic, one.partition): one.epoch for one in starts}
            tell(starts)
            self._fetcher.assign(starts)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
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

    def _finish_revoke(self, *, at_once: bool = False) -> None:
        """Commit and give back what is being revoked, once its records are through; `at_once`: wait for that here."""
        revoking = self._revoking
        if revoking is None or not (at_once or revoking.is_answered):
            return
        self._listening.on_revoked(revoking)
        self._give_back(revoking.names)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
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
        self._revoking = None

    @property
    def _listening(self) -> ConsumerListener:
        assert self._listener is not None, "a rebalance before the start"
        return self._listener

    def _known(self, partitions: list[TopicPartition]) -> list[tuple[str, int]]:
        """Those that were assigned: not the ones whose start could not be resolved."""
        return [name for one in partitions if (name := (one.topic, one.partition)) in self._ours]

    # --- where partitions start ---

    def _resolved(self, partitions: list[TopicPartition]) -> list[Start]:
        """Where each partition starts. A start that was not committed is, before anything of it can run."""
        if not partitions:
            return []
        give_up_at = self._patience.give_up_at()
        rule = StartRule.of(self._pipeline)
        starts, first = [], []
        for found in self._committed(partitions, give_up_at):
            offsets, commit_first = rule.resolve(found)
            self._epoch += 1
            starts.append(Start(found.topic, found.partition, self._epoch, offsets, found.log_start, found.log_end))
            if commit_first:
                first.append(_First(found.topic, found.partition, offsets))
        while first:
            problems = self.commit_now(first)
            if not problems:
                break
            text = next(iter(problems.values())).text
            self._patience.wait(give_up_at, f"the starts of {len(problems)} partitions cannot be committed: {text}")
            first = [one for one in first if one.name in problems]
        return starts

    def _committed(self, partitions: list[TopicPartition], give_up_at: float) -> list[Committed]:
        """What the group has committed for each, and what its log holds."""
        while True:
            asked_at = monotonic()
            try:
                found = exact.committed(self._client, [(one.topic, one.partition) for one in partitions], ANSWER_S)
                failed = next((one.error for one in found if one.error is not None), None)
            except KafkaException as raised:
                failed = error_of(raised)
            if failed is None:
                self._listening.on_heard(asked_at)
                break
            what = f"the committed offsets of group {self._pipeline.group_id!r}"
            self._patience.ask_again(failed, give_up_at, what)
        return [
            Committed(
                one.topic,
                one.partition,
                one.offset if one.offset >= 0 else None,
                one.metadata,
                *self._logs.bounds(one.topic, one.partition),
            )
            for one in found
        ]

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
            answered = exact.commit_now(self._client, offsets, exact.NO_TIMEOUT_S if timeout_s is None else timeout_s)
        except KafkaException as raised:
            return dict.fromkeys((one.name for one in offsets), commit_problem(error_of(raised)))
        return problems_of(None, answered)


class _First:
    """The commit of a resolved start: an `Offset` of the port."""

    __slots__ = ("metadata", "name", "offset")

    def __init__(self, topic: str, partition: int, offsets: OffsetMap) -> None:
        self.name = (topic, partition)
        self.offset = offsets.base
        self.metadata = ""


def problems_of(
    error: KafkaError | None, partitions: Sequence[exact.GroupOffset]
) -> dict[tuple[str, int], CommitProblem]:
    """Partitions that were not committed. An error of the request, and of no partition, is every partition's."""
    each: dict[tuple[str, int], Any] = {(one.topic, one.partition): one.error for one in partitions}
    if error is not None and not any(each.values()):
        each = dict.fromkeys(each, error)
    return {name: commit_problem(found) for name, found in each.items() if found is not None}
