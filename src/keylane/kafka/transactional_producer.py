"""`TransactionalProducer`: outputs and offsets in transactions, behind `keylane.consumer.ports.TransactionsPort`.

The idea: librdkafka's calls for transactions block, so one thread of its own makes them, one after the other as the
loop asks for them, and reports what became of each. What may be tried again is, here; what has to be aborted, and what
the producer cannot recover from, is the loop's to decide. Offsets go only as a member that has the partitions
(`GroupMember.owning`), which is what fences a zombie (docs/adr/0051).
"""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaException

from keylane.consumer.commits import CommitProblem
from keylane.consumer.events import TransactionAnswered
from keylane.errors import PeerError
from keylane.foreign_errors import line_of
from keylane.kafka.faults import error_of, transaction_problem
from keylane.kafka.producer import KafkaProducer
from keylane.kafka.settings import transactional_id
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import KafkaError, Producer

    from keylane.consumer.commits import CommitEntry
    from keylane.consumer.outputs import Answers, Delivery
    from keylane.kafka.consumer import KafkaConsumer
    from keylane.pipeline import Pipeline

logger = logger_of("keylane.kafka")

CALL_S = 5.0
"""How long one call of librdkafka's waits before it is made again: so long closing waits for it, at most."""

AGAIN_S = 0.05
"""Pause before a call is made again."""

OFFSETS_S = 30.0
"""How long offsets are sent again: after that the transaction is aborted. A commit that was asked for is never given
up: only the broker knows what became of it."""

LAST_ABORT_S = 2.0
"""How long closing waits for the abort of what is open: readers of committed records need not wait for its timeout."""


class TransactionalProducer:
    """A producer whose transactions follow one another; it has one `transactional.id` all its life.

    Raises `UsageError` when librdkafka refuses the settings. Thread safety: `send`, `commit`, `abort` and `close` are
    the loop's; `report` is told of outputs on other threads, `tell` of transactions on the transactions' own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        report: Callable[[Answers], None],
        tell: Callable[[object], None],
        consumer: KafkaConsumer,
        *,
        client_id: str | None,
        name: str,
    ) -> None:
        self.id = transactional_id(pipeline)
        self._make: Callable[[], KafkaProducer] = partial(
            KafkaProducer, pipeline.kafka, report, client_id=client_id, name=name, transactional_id=self.id
        )
        self._tell = tell
        self._consumer = consumer
        self._producer = self._make()
        self._jobs: SimpleQueue[tuple[Literal["commit", "abort"], Callable[[], None]] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-transactions", daemon=True)
        self._thread.start()

    # --- the loop ---

    def send(self, deliveries: Sequence[Delivery]) -> None:
        self._producer.send(deliveries)

    def commit(self, entries: Sequence[CommitEntry]) -> None:
        self._jobs.put(("commit", lambda: self._commit(entries)))

    def abort(self, *, renew: bool) -> None:
        self._jobs.put(("abort", self._renew if renew else self._abort))

    def reload(self, partitions: Sequence[tuple[tuple[str, int], int]]) -> None:
        self._consumer.reload(partitions)

    def close(self, timeout_s: float) -> None:
        """Abort what is open; a commit without an answer is left to its outcome."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(timeout_s + CALL_S)
        if self._thread.is_alive():
            logger.warning("closed while the transaction of %r has no answer; its thread is left behind", self.id)
            return
        self._producer.close(0)

    # --- the transactions' thread ---

    def _serve(self) -> None:
        self._report("start", self._start)
        while (job := self._jobs.get()) is not None:
            self._report(*job)
        try:
            self._client.abort_transaction(LAST_ABORT_S)
        except KafkaException as raised:  # its timeout ends it
            logger.debug("the last transaction of %r was not aborted: %s", self.id, error_of(raised))

    def _report(self, step: Literal["start", "commit", "abort"], do: Callable[[], None]) -> None:
        problem = None
        try:
            do()
        except KafkaException as raised:
            problem = transaction_problem(error_of(raised))
        except PeerError as error:
            problem = CommitProblem(str(error))
        except Exception as error:  # a defect: reported, and the consumer stops with it
            logger.exception("the transactions' thread failed")
            problem = CommitProblem(line_of(error), fatal=True)
        self._tell(TransactionAnswered(step, problem))

    @property
    def _client(self) -> Producer:
        return self._producer.client

    def _start(self) -> None:
        self._again(self._client.init_transactions)
        self._client.begin_transaction()

    def _commit(self, entries: Sequence[CommitEntry]) -> None:
        epochs = {entry.name: entry.partition.epoch for entry in entries}

        def send(timeout_s: float) -> None:
            with self._consumer.owning(epochs) as member:  # each time: meanwhile the group may have gone on
                if member is None:
                    raise PeerError(f"this member has not all of {sorted(epochs)} any more, or is not in its group")
                member.send_offsets(self._client, entries, timeout_s)

        self._again(send, monotonic() + OFFSETS_S)
        self._again(self._client.commit_transaction)
        self._client.begin_transaction()

    def _abort(self) -> None:
        self._producer.drop_backlog()
        self._again(self._client.abort_transaction)
        self._client.begin_transaction()

    def _renew(self) -> None:
        self._producer.abandon()
        self._producer = self._make()
        self._start()

    def _again(self, call: Callable[[float], Any], until: float | None = None) -> None:
        """Make a call until it succeeds, or cannot."""
        while True:
            try:
                call(CALL_S)
            except KafkaException as raised:
                error: KafkaError = error_of(raised)
                if not error.retriable() or (until is not None and monotonic() >= until) or self._closing.is_set():
                    raise
                self._closing.wait(AGAIN_S)
            else:
                return
