"""`KafkaProducer`: outputs and dead letters on confluent-kafka, idempotent unless the pipeline says otherwise.

The idea: `send` never blocks. librdkafka's queue is the buffer; what it has no room for waits here until reports have
made some. A thread of its own serves the delivery reports and hands them on in batches.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from keylane.consumer.outputs import Answer
from keylane.errors import PeerError, RecordTooLargeError
from keylane.kafka.clients import Producer
from keylane.kafka.faults import ABORTED, Faults, client_of, describe, error_of
from keylane.kafka.missing_topics import NO_TOPIC, way_out
from keylane.kafka.refused_batches import Suspects
from keylane.kafka.settings import producer_settings, transactional_settings
from keylane.kafka.sizes import TOO_LARGE, Limits, size_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.consumer.outputs import Answers, Delivery
    from keylane.records import Output

logger = logger_of("keylane.kafka")

POLL_S = 0.1
"""How long one poll for delivery reports waits; close waits as long for the thread."""


ABANDON_S = 1.0
"""How long a producer that is given up may take to report what it had."""


def check_producer(kafka: Mapping[str, Any], *, transactional: bool = False) -> None:
    """Raises `UsageError` when librdkafka refuses the settings: better at the start than at the first output."""
    _client(kafka, None, Faults(), "check" if transactional else None)


class KafkaProducer:
    """Produces deliveries and reports each output's fate.

    Raises `UsageError` when librdkafka refuses the settings. Thread safety: `send` and `close` are the loop's;
    `report` is called from the poll thread, and from `send` for what is refused at once.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        report: Callable[[Answers], None],
        *,
        client_id: str | None,
        name: str,
        transactional_id: str | None = None,
        fail: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """`fail` is told when the client cannot go on; transactions hear of it by their own calls."""
        self._fail = fail
        self._transactional = transactional_id is not None
        self._suspects = Suspects()
        self._again: list[tuple[Delivery, int, Output]] = []
        """What was refused with its batch, to be produced alone; the poll thread's."""
        self._limits = Limits(kafka)
        self._faults = Faults()
        self._producer = _client(kafka, client_id, self._faults, transactional_id)
        self._report = report
        self._lock = threading.Lock()
        """Guards the backlog, and with it the order of outputs."""
        self._backlog: deque[tuple[Delivery, int, Output]] = deque()
        self._reports: Answers = []
        """Written and handed on by the poll thread alone."""
        self._broken: PeerError | None = None
        """Why the client cannot go on; the poll thread's."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-producer", daemon=True)
        self._thread.start()

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Produce every output of every delivery, in order."""
        with self._lock:
            self._backlog.extend(
                (delivery, index, output) for delivery in deliveries for index, output in enumerate(delivery.outputs)
            )
            refused = self._produce_backlog()
        if refused:
            self._report(refused)

    def close(self, timeout_s: float) -> None:
        """Wait for what is on its way, for at most `timeout_s`, and end the thread."""
        self._serving(self._producer.flush, timeout_s)
        left = len(self._producer) + len(self._backlog)
        if left:
            logger.warning("closed with %d outputs not acknowledged; their records will run again", left)
        self._closing.set()
        self._thread.join()
        self._producer.purge()
        del self._producer  # ends librdkafka's threads

    # --- for transactions ---

    @property
    def client(self) -> Producer:
        return self._producer

    def drop_backlog(self) -> None:
        """What librdkafka had no room for does not go into the next transaction."""
        with self._lock:
            dropped = [
                Answer(delivery, index, PeerError("its transaction was aborted"), refused=True, blameless=True)
                for delivery, index, _ in self._backlog
            ]
            self._backlog.clear()
        if dropped:
            self._report(dropped)

    def abandon(self) -> None:
        """Close at once, reporting everything without an answer as failed."""
        self.drop_backlog()
        self._producer.purge()
        give_up_at = monotonic() + ABANDON_S
        while len(self._producer) and monotonic() < give_up_at:
            self._closing.wait(ABANDON_S / 100)
        self.close(0)

    def _produce_backlog(self) -> Answers:
        """Hand over what librdkafka has room for; returns what it refuses for good."""
        refused: Answers = []
        backlog = self._backlog
        while backlog:
            if self._suspects.are_about and len(self._producer):  # one at a time: the poll thread goes on
                break
            delivery, index, output = backlog[0]
            if refused and refused[-1].delivery is delivery:  # it has failed, so the rest of it need not be produced
                refused.append(refused[-1]._replace(number=index))
                backlog.popleft()
                continue
            try:
                self._producer.produce(
                    output.topic,
                    key=output.key,
                    value=output.value,
                    headers=list(output.headers) or None,
                    on_delivery=partial(self._delivered, delivery, index),
                    **_optional(output),
                )
            except BufferError:  # full: reports make room, and the poll thread goes on here
                break
            except KafkaException as raised:
                error = error_of(raised)
                blameless = error.code() in ABORTED
                refused.append(Answer(delivery, index, self._failed(output, error), refused=True, blameless=blameless))
            except Exception as error:  # an output that is no record (a wrong type): its record's failure
                refused.append(Answer(delivery, index, error, refused=True))
            backlog.popleft()
        return refused

    def _delivered(self, delivery: Delivery, index: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._suspects.acquit(delivery, index)
            offset = message.offset()  # none when the broker had it already, from a request whose answer was lost
            self._reports.append(Answer(delivery, index, None, message.partition(), -1 if offset is None else offset))
            return
        at_fault = self._suspects.accuses(delivery, index, error)
        if not at_fault and not self._transactional:
            self._again.append((delivery, index, delivery.outputs[index]))
            return
        blameless = not at_fault or error.code() in ABORTED  # a transaction is aborted: then its record runs again
        self._reports.append(Answer(delivery, index, self._failed(delivery.outputs[index], error), blameless=blameless))

    def _failed(self, output: Output, error: KafkaError) -> PeerError:
        topic = output.topic
        if error.code() in TOO_LARGE:
            return RecordTooLargeError(f"an output was not taken: {self._limits.refusal(topic, size_of(output))}")
        if error.code() in NO_TOPIC:
            return PeerError(
                f"topic {topic!r}, which an output is for, does not exist ({describe(error)}): {way_out(topic)}"
            )
        return PeerError(f"an output to topic {topic!r} was not acknowledged: {describe(error)}")

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._serving(self._producer.poll, POLL_S)
            if self._backlog or self._again:
                with self._lock:
                    self._backlog.extendleft(reversed(self._again))
                    self._again = []
                    self._reports += self._produce_backlog()
            if self._reports:
                reports, self._reports = self._reports, []
                self._report(reports if self._broken is None else [_caused(one, self._broken) for one in reports])

    def _serving(self, call: Callable[[float], int], timeout_s: float) -> None:
        """Make a call that serves reports. confluent-kafka raises the client's fatal error there, once, instead of
        telling `error_cb`."""
        try:
            call(timeout_s)
        except KafkaException as raised:
            error = PeerError(f"the producer cannot go on: {describe(error_of(raised))}")
            logger.warning("%s", error)
            self._broken = self._broken or error
            self._fail(error)


def _caused(answer: Answer, broken: PeerError) -> Answer:
    """Of a client that cannot go on: what it says of an output is only that it was purged."""
    if answer.error is None or not answer.blameless:
        return answer
    return answer._replace(error=PeerError(f"{answer.error}: {broken}"))


def _optional(output: Output) -> dict[str, Any]:
    """librdkafka takes no None for these."""
    given = {"partition": output.partition, "timestamp": output.timestamp_ms}
    return {name: value for name, value in given.items() if value is not None}


def _client(kafka: Mapping[str, Any], client_id: str | None, faults: Faults, transactional_id: str | None) -> Producer:
    settings = producer_settings(kafka, client_id)
    if transactional_id is not None:
        settings = transactional_settings(kafka, client_id) | {"transactional.id": transactional_id}
    return client_of(Producer, settings | {"error_cb": faults.report}, "producer")
