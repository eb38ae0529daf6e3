"""The intake thread: polls, and does what the loop has asked for (docs/adr/0003).

The idea: between polls it carries out the loop's requests (commit, pause, …). It polls only as many records as the loop
has allowed. Rebalances come from the consumer, on a thread of its own or inside a poll: they are passed on to the loop,
and what is revoked is committed there and then.

The idea of the `Lease`: a process that was frozen (SIGSTOP, a suspended machine, a long pause) wakes up in the middle
of its work and cannot know that the group has given its partitions to others. So a handler starts only within two
thirds of the session timeout since the coordinator was last heard of; what wakes later than that starts nothing until
it has been heard again (docs/adr/0009).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.consumer.events import (
    Assigned,
    CommitAnswered,
    ConsumerFailed,
    Deleted,
    GroupCommitted,
    IntakeClosed,
    IntakeFailed,
    LeaseRenewed,
    LogEnds,
    Lost,
    PolledRecords,
)
from keylane.consumer.ports import Revoking
from keylane.consumer.prompt_commits import PromptCommits
from keylane.errors import HandlerError, InternalError, PeerError
from keylane.foreign_errors import line_of
from keylane.pipeline import RebalanceListener
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.consumer.commits import CommitEntry, CommitProblem
    from keylane.consumer.ports import ConsumerPort
    from keylane.consumer.start import Start, TopicPartition


logger = logger_of("keylane.consumer")

SHARE = 2 / 3
"""Of the session timeout. The rest is for what the answer took to arrive, and for clocks that do not tick alike."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """What keeps a member in its group, all in milliseconds (`ParallelConsumer.liveness`)."""

    session_timeout_ms: int
    """The group gives the partitions to others when it has not heard of the member for so long."""
    heartbeat_interval_ms: int
    """How often it says that it is there; a thread of librdkafka's does, whatever handlers do."""
    max_poll_interval_ms: int
    """How long the member's client may go without a poll; keylane polls it all the time, however long handlers take."""
    stall_timeout_ms: int
    """When no handler ends for so long, the consumer leaves the group and fails; 0: never."""
    lease_left_ms: int | None
    """For how long handlers may start if the coordinator is not heard any more; None without a group, or before it
    was heard."""


class Lease:
    """Ends some time after the coordinator was last heard of; without a group it never ends.

    Thread safety: any thread. Times are `time.monotonic()`.
    """

    __slots__ = ("_has_lapsed", "_length_s", "until")

    def __init__(self, session_s: float | None = None) -> None:
        self._length_s = None if session_s is None else session_s * SHARE
        self.until = inf
        """Handlers may start before this time."""
        self._has_lapsed = False

    def last(self, session_s: float) -> None:
        """From the next answer on it lasts by this session timeout; shorter at once."""
        before, self._length_s = self._length_s, session_s * SHARE
        if before is not None and self._length_s < before and self.until != inf:
            self.until -= before - self._length_s

    def renew(self, heard_at: float) -> None:
        """The coordinator answered at `heard_at`."""
        if self._length_s is not None:
            until = heard_at + self._length_s
            self.until = until if self.until == inf else max(self.until, until)

    def holds(self, now: float) -> bool:
        """Whether handlers may start; the loop's, which logs the change."""
        has_lapsed = now >= self.until
        if has_lapsed != self._has_lapsed:
            self._has_lapsed = has_lapsed
            if has_lapsed:
                logger.warning("no handler starts: the group's coordinator has not answered for %.1f s", self._length_s)
            else:
                logger.warning("handlers start again: the group's coordinator answers")
        return not has_lapsed


POLL_S = 0.05
"""How long one poll waits for a record, and so what the loop asks for waits for the poll."""

STANDSTILL_S = 0.05
"""How often a standing poll looks whether it may go on, beside being told."""

ANSWER_S = 0.005
"""The same while a commit is on its way: its answer is looked for between requests."""

LOG_ENDS_S = 0.5
"""How often the high watermarks are reported."""

ANSWER_MARGIN_S = 5.0
"""How much longer than the loop's own bound a revoke waits for the loop."""


class Intake:
    """Owns the consumer from `start` until it reports `IntakeClosed`.

    Thread safety: `allow`, `ask_committed`, `commit`, `pause`, `resume` and `close` are the loop's; rebalances
    (`on_…`) come on the consumer's thread; the rest is the intake thread's.
    """

    def __init__(
        self,
        consumer: ConsumerPort,
        report: Callable[[object], None],
        *,
        revoke_timeout_s: float,
        name: str,
        listener: RebalanceListener | None = None,
        lease: Lease | None = None,
        commits_promptly: bool = False,
        commits_are_heard: bool = True,
    ) -> None:
        self._lease = lease or Lease()
        self._consumer = consumer
        self._listener = listener or RebalanceListener()
        self._report = report
        self._answer_within_s = min(revoke_timeout_s + ANSWER_MARGIN_S, threading.TIMEOUT_MAX)
        self._requests: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._allowed = 0
        self._may_poll = 0
        """What was allowed when the last request was looked for."""
        self._polled = 0
        self._standing = False
        self._closing = False
        self._on_its_way: tuple[list[CommitEntry], list[CommitEntry]] | None = None
        """A commit as it was planned, and what was sent of it."""
        self._sent_at = 0.0
        self._sending = threading.Lock()
        """Held from the look at what is still wanted until a commit of that is sent."""
        self._commits_are_heard = commits_are_heard
        """Whether it is the coordinator that answers commits."""
        self._prompt_commits: PromptCommits | None = None
        if commits_promptly:
            self._prompt_commits = PromptCommits(consumer, self._sending, report, self.on_heard, name)
        self._log_ends_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"{name}-intake", daemon=True)

    # --- the loop's side ---

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def allow(self, total: int) -> None:
        """Up to `total` records may have been polled since the beginning."""
        self._allowed = total
        if self._standing and total > self._polled:
            self._standing = False
            self._requests.put((_nothing, None))

    def commit(self, entries: list[CommitEntry]) -> None:
        if self._prompt_commits is not None:
            self._prompt_commits.put(entries)
        else:
            self._requests.put((self._commit, entries))

    def pause(self, epochs: Mapping[TopicPartition, int]) -> None:
        self._requests.put((self._consumer.pause, epochs))

    def resume(self, epochs: Mapping[TopicPartition, int]) -> None:
        self._requests.put((self._consumer.resume, epochs))

    def ask_committed(self, names: list[TopicPartition]) -> None:
        self._requests.put((self._ask_committed, names))

    def close(self) -> None:
        self._consumer.interrupt()
        self._requests.put((self._close, None))

    # --- the intake thread ---

    def _run(self) -> None:
        try:
            self._consumer.subscribe(self)
            if self._prompt_commits is not None:
                self._prompt_commits.start()
            while not self._closing:
                self._obey()
                self._poll()
        except BaseException as error:  # reported: the consumer stops with it
            self._report(IntakeFailed(error))
        try:
            if self._prompt_commits is not None:
                self._prompt_commits.close()
            self._consumer.close()
        except BaseException as error:  # reported, like the above
            self._report(IntakeFailed(error))
        self._report(IntakeClosed())

    def _obey(self) -> None:
        """Do what was asked for; while the poll stands still, wait here for the next request."""
        self._standing = self._polled >= self._allowed
        try:
            while not self._closing:
                self._may_poll = self._allowed  # first: a pause that came with it is then among the requests
                wait_s = STANDSTILL_S if self._on_its_way is None else ANSWER_S
                do, argument = self._requests.get(self._standing, wait_s)
                do(argument)
        except Empty:
            self._standing = False

    def _poll(self) -> None:
        if self._closing:
            return
        room = max(0, self._may_poll - self._polled)
        try:
            polled = self._consumer.poll(room, POLL_S if room else 0)
        except PeerError as error:  # go on polling: the last commit's answer comes there
            self._report(ConsumerFailed(error))
            return
        if polled is not None:
            self._polled += polled.count
            self._report(PolledRecords(polled, self._polled))
        now = monotonic()
        if now >= self._log_ends_at:
            self._log_ends_at = now + LOG_ENDS_S
            self._report(LogEnds(self._consumer.log_ends()))

    def _commit(self, entries: list[CommitEntry]) -> None:
        assert self._on_its_way is None, "two commits at once"
        # A revoke may have overtaken this request. What it committed is newer; sending the older offsets after it
        # would take the group back, under the new owner's feet.
        with self._sending:
            current = [entry for entry in entries if entry.partition.wanted]
            if current:
                self._on_its_way = (entries, current)
                self._sent_at = monotonic()
                self._consumer.commit(current)
        if not current:
            self._report(CommitAnswered(entries, {}, []))

    def _ask_committed(self, names: Iterable[TopicPartition]) -> None:
        self._report(GroupCommitted(self._consumer.group_committed(names)))

    def _close(self, _: None) -> None:
        self._closing = True

    # --- called by the consumer ---

    def on_assigned(self, starts: list[Start]) -> None:
        for one in starts:
            if one.metadata:
                self._tell(self._listener.on_metadata, (one.topic, one.partition), one.offsets.base, one.metadata)
        self._tell(self._listener.on_assigned, [(one.topic, one.partition) for one in starts])
        self._report(Assigned(starts))

    def on_revoking(self, names: list[TopicPartition]) -> Revoking:
        request = Revoking(names)
        self._report(request)
        return request

    def on_revoked(self, revoking: Revoking) -> None:
        if entries := self._answer_of(revoking):
            self._commit_revoked(entries)
        self._tell(self._listener.on_revoked, revoking.names)

    def _answer_of(self, event: Revoking | Lost) -> list[CommitEntry] | None:
        try:
            return event.answer.get(timeout=self._answer_within_s)
        except Empty:
            text = f"the loop did not say within {self._answer_within_s:.0f} s what is left of {event.names}"
            raise InternalError(text) from None

    def _commit_revoked(self, entries: list[CommitEntry]) -> None:
        with self._sending:  # a commit that was begun before is sent before, and has its answer before this one is sent
            pass
        problems = self._consumer.commit_now(entries)
        again = [entry for entry in entries if (found := problems.get(entry.name)) and found.metadata_too_large]
        self._report(CommitAnswered(entries, problems))
        if again:  # there is no later commit that could leave the map out
            bare = [entry._replace(metadata="") for entry in again]
            self._report(CommitAnswered(bare, self._consumer.commit_now(bare)))

    def on_reloaded(self, starts: list[Start]) -> None:
        self._report(Assigned(starts))

    def on_lost(self, names: list[TopicPartition]) -> None:
        lost = Lost(names)
        self._report(lost)
        self._answer_of(lost)  # the consumer's thread also hears the coordinator, which lets handlers start
        self._tell(self._listener.on_lost, names)

    def on_deleted(self, topic: str, names: list[TopicPartition]) -> None:
        self._report(Deleted(topic))
        if names:
            self._tell(self._listener.on_lost, names)

    def _tell(self, method: Callable[..., None], names: list[TopicPartition] | TopicPartition, *more: object) -> None:
        """Call the user's listener; what it raises ends the consumer, but not the rebalance."""
        try:
            method(names if isinstance(names, tuple) else list(names), *more)
        except BaseException as error:  # reported: the consumer stops with it
            text = f"rebalance_listener.{method.__name__}({names}) raised {line_of(error)}"
            made = HandlerError(text)
            made.__cause__ = error
            self._report(ConsumerFailed(made))

    def on_session(self, session_s: float) -> None:
        self._lease.last(session_s)

    def on_heard(self, heard_at: float) -> None:
        had_ended = monotonic() >= self._lease.until
        self._lease.renew(heard_at)
        if had_ended:
            self._report(LeaseRenewed())

    def on_committed(self, problems: dict[TopicPartition, CommitProblem]) -> None:
        on_its_way, self._on_its_way = self._on_its_way, None
        if on_its_way is not None:
            entries, sent = on_its_way
            if self._commits_are_heard and len(problems) < len(sent):
                self.on_heard(self._sent_at)
            self._report(CommitAnswered(entries, problems, sent))


def _nothing(_: object) -> None:
    """Asked for only to end a wait."""
