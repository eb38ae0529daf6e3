"""`PromptCommits`: commits that something waits for, on a thread of their own.

The idea: the intake thread sends a commit between two polls, and a poll may wait for records. Where a record may not
start before a commit is acknowledged, or keeps its place until then, that wait would be paid for each of them; and a
store is told of a commit first. So this thread sends the commit as soon as the loop asks for it, waits for its answer,
and hands that on.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from keylane.consumer.events import CommitAnswered, IntakeFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.commits import CommitEntry
    from keylane.consumer.ports import ConsumerPort

ANSWER_S = 5.0
"""How long an answer is waited for. A commit without one may have been made, and is made again."""


class PromptCommits:
    """Commits one after the other, from `start` to `close`.

    `sending` is held from the look at what is still wanted until the answer, so that no older offset goes out after a
    revoke's. Thread safety: `put` is the loop's, `start` and `close` are the intake's.
    """

    def __init__(
        self,
        consumer: ConsumerPort,
        sending: threading.Lock,
        report: Callable[[object], None],
        heard: Callable[[float], None],
        name: str,
    ) -> None:
        self._consumer = consumer
        self._sending = sending
        self._report = report
        self._heard = heard
        self._queue: SimpleQueue[list[CommitEntry] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-commit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, entries: list[CommitEntry]) -> None:
        self._queue.put(entries)

    def close(self) -> None:
        """Returns once no commit is on its way; call it before the client closes."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        try:
            while (entries := self._queue.get()) is not None:
                self._commit(entries)
        except BaseException as error:  # reported: the consumer stops with it
            self._report(IntakeFailed(error))

    def _commit(self, entries: list[CommitEntry]) -> None:
        with self._sending:
            sent = [entry for entry in entries if entry.partition.wanted]
            sent_at = monotonic()
            problems = self._consumer.commit_now(sent, ANSWER_S) if sent else {}
        if len(problems) < len(sent):
            self._heard(sent_at)
        self._report(CommitAnswered(entries, problems, sent))
