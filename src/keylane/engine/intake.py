"""The intake thread: the only one that touches the Kafka client (docs/adr/0003).

The idea: between polls it does what the loop has asked for (commit, pause, …); inside a poll the client calls back for
rebalances, and a revoke waits there for the loop's last commit. It polls only as many records as the loop has allowed.
"""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.engine.events import (
    Assigned,
    CommitAnswered,
    ConsumerFailed,
    GroupCommitted,
    IntakeClosed,
    IntakeFailed,
    LogEnds,
    Lost,
    PolledRecords,
    Revoking,
)
from keylane.errors import InternalError, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.engine.assignment import Start
    from keylane.engine.commits import CommitEntry, CommitProblem
    from keylane.engine.ports import ConsumerPort, TopicPartition

logger = logging.getLogger("keylane.engine")

POLL_S = 0.05
"""How long one poll waits for a record, and so what the loop asks for waits for the poll."""

STANDSTILL_S = 0.05
"""How often a standing poll looks whether it may go on, beside being told."""

MAX_POLL = 10_000
"""Records in one poll: large, because each poll waits for the interpreter's lock; bounded, to keep batches prompt."""

LOG_ENDS_S = 0.5
"""How often the high watermarks are reported."""

ANSWER_MARGIN_S = 5.0
"""How much longer than the loop's own bound a revoke waits for the loop."""


class Intake:
    """Owns the consumer from `start` until it reports `IntakeClosed`.

    Thread safety: `allow`, `ask`, `commit`, `pause`, `resume` and `close` are the loop's; the rest is the intake
    thread's.
    """

    def __init__(
        self, consumer: ConsumerPort, report: Callable[[object], None], *, revoke_timeout_s: float, name: str
    ) -> None:
        self._consumer = consumer
        self._report = report
        self._answer_within_s = revoke_timeout_s + ANSWER_MARGIN_S
        self._requests: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._allowed = 0
        self._polled = 0
        self._standing = False
        self._closing = False
        self._on_its_way: list[CommitEntry] | None = None
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
        self._requests.put((self._commit, entries))

    def pause(self, names: list[TopicPartition]) -> None:
        self._requests.put((self._consumer.pause, names))

    def resume(self, names: list[TopicPartition]) -> None:
        self._requests.put((self._consumer.resume, names))

    def ask_committed(self, names: list[TopicPartition]) -> None:
        self._requests.put((self._ask_committed, names))

    def close(self) -> None:
        self._consumer.interrupt()
        self._requests.put((self._close, None))

    # --- the intake thread ---

    def _run(self) -> None:
        try:
            self._consumer.subscribe(self)
            while not self._closing:
                self._obey()
                self._poll()
        except BaseException as error:  # reported: the consumer stops with it
            self._report(IntakeFailed(error))
        try:
            self._consumer.close()
        except BaseException as error:  # reported, like the above
            self._report(IntakeFailed(error))
        self._report(IntakeClosed())

    def _obey(self) -> None:
        """Do what was asked for; while the poll stands still, wait here for the next request."""
        self._standing = self._polled >= self._allowed
        try:
            while not self._closing:
                do, argument = self._requests.get(self._standing, STANDSTILL_S)
                do(argument)
        except Empty:
            self._standing = False

    def _poll(self) -> None:
        room = self._allowed - self._polled
        if room <= 0 or self._closing:
            return
        try:
            polled = self._consumer.poll(min(room, MAX_POLL), POLL_S)
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
        # A revoke inside the last poll may have overtaken this request. What it committed is newer; sending the older
        # offsets after it would take the group back, under the new owner's feet.
        current = [entry for entry in entries if entry.assignment.wanted]
        if not current:
            self._report(CommitAnswered(entries, {}))
            return
        self._on_its_way = entries
        self._consumer.commit(current)

    def _ask_committed(self, names: Iterable[TopicPartition]) -> None:
        self._report(GroupCommitted(self._consumer.group_committed(names)))

    def _close(self, _: None) -> None:
        self._closing = True

    # --- called by the consumer, inside poll and close ---

    def on_assigned(self, starts: list[Start]) -> None:
        self._report(Assigned(starts))

    def on_revoked(self, names: list[TopicPartition]) -> None:
        request = Revoking(names)
        self._report(request)
        try:
            entries = request.answer.get(timeout=self._answer_within_s)
        except Empty:
            text = f"the loop did not say within {self._answer_within_s:.0f} s what to commit of the revoked {names}"
            raise InternalError(text) from None
        if not entries:
            return
        # A commit that is on its way was sent before, on the same connection; the broker applies this one after it.
        problems = self._consumer.commit_now(entries)
        again = [entry for entry in entries if (found := problems.get(entry.name)) and found.metadata_too_large]
        self._report(CommitAnswered(entries, problems))
        if again:  # there is no later commit that could leave the map out
            bare = [entry._replace(metadata="") for entry in again]
            self._report(CommitAnswered(bare, self._consumer.commit_now(bare)))

    def on_lost(self, names: list[TopicPartition]) -> None:
        self._report(Lost(names))

    def on_committed(self, problems: dict[TopicPartition, CommitProblem]) -> None:
        entries, self._on_its_way = self._on_its_way, None
        if entries is not None:
            self._report(CommitAnswered(entries, problems))


def _nothing(_: object) -> None:
    """Asked for only to end a wait."""
