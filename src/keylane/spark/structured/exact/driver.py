"""The shell around `protocol`: its requests become questions to Kafka, with the pauses and the time that they get."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka.memory_topics import SINKS, faults
from keylane.kafka.open_transactions import TransactionsClient
from keylane.spark.structured.exact import protocol
from keylane.spark.structured.exact.protocol import Answer, Described, Producer, Transaction
from keylane.spark.structured.exact.record import NAME, SinkRecord, driver_id, task_prefix, topic_of
from keylane.spark.structured.options import FIRST_ANSWER_S
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from keylane.spark.structured.exact.protocol import Plan, Request
    from keylane.spark.structured.exact.record import Entry

logger = logger_of("keylane.spark")

ASK_AGAIN_S = 0.02
"""Before a question is asked again: the end of a transaction takes some milliseconds."""
MOST_PAUSE_S = 0.5
ASK_FOR_S = 60.0
"""How long one question is asked again: a cluster takes some ten seconds to replace a node."""
DRIVER_TIMEOUT_MS = 60_000
"""Of the driver's own transaction, which takes milliseconds."""

REPLICATION = -1
"""The broker's default."""

Outcome = TypeVar("Outcome")


class Sink(NamedTuple):
    """Which sink, and where."""

    name: str
    settings: Mapping[str, Any]
    may_begin: bool = False
    """See `Plan`."""


def start(sink: Sink) -> Plan:
    """Before the tasks of each batch. Raises `UsageError`, `PeerError`, and what `protocol.start` does."""
    with TransactionsClient(sink.settings) as client:
        _make_topic(sink, client)
        return _run(protocol.start(may_begin=sink.may_begin), sink, client)


def end_transactions(sink_name: str, kafka: Mapping[str, str]) -> None:
    """End what a query that was stopped, or that failed, left open in Kafka: what it had decided is committed, the rest
    is aborted, and readers of committed records go on at once. The query's next start does the same.

    `kafka` are librdkafka's settings. A query of this `sinkName` that runs is shut out, and fails. Raises `UsageError`,
    `BrokerUnavailableError` and `PeerError`.
    """
    if not NAME.fullmatch(sink_name):
        raise UsageError(f"end_transactions({sink_name!r}): give the sinkName of the query")
    if not kafka.get("bootstrap.servers"):
        raise UsageError("end_transactions: kafka has no bootstrap.servers: give HOST:PORT")
    with TransactionsClient(kafka) as client:
        error, _ = client.partitions(topic_of(sink_name))
    if error != codes.UNKNOWN_TOPIC_OR_PARTITION:  # then no query has begun under the name
        start(Sink(sink_name, kafka))


def commit(sink: Sink, plan: Plan, query: str, batch: int, entries: Sequence[Entry]) -> None:
    """Raises `PeerError`, and what `protocol.commit` does."""
    with TransactionsClient(sink.settings) as client:
        _run(protocol.commit(plan, query, batch, entries, int(time.time() * 1000)), sink, client)


def abort(sink: Sink, plan: Plan) -> None:
    """Raises `PeerError`."""
    with TransactionsClient(sink.settings) as client:
        if not _run(protocol.abort(plan), sink, client):
            logger.warning("sink %s: another run has begun, and ends what this batch left open", sink.name)


def described(sink: Sink, transactional_id: str) -> Described:
    """The open transaction of a task. Raises `PeerError`, and `NotOpenError` when it has ended."""
    with TransactionsClient(sink.settings) as client:
        return _run(protocol.described(transactional_id), sink, client)


def _make_topic(sink: Sink, client: TransactionsClient) -> None:
    topic = topic_of(sink.name)
    begun = time.monotonic()
    while True:
        error, partitions = client.partitions(topic)
        if error == codes.NONE and partitions == 1:
            _check_kept(sink, topic)
            return
        if error == codes.NONE:
            raise UsageError(
                f"topic {topic!r} has {partitions} partitions, and a sink's record has one: delete it, or give another "
                "sinkName"
            )
        if error == codes.UNKNOWN_TOPIC_OR_PARTITION:
            from keylane.kafka.admin import Admin

            Admin(sink.settings).create_topics({topic: 1}, replication_factor=REPLICATION, config=SINKS.config)
        elif error not in protocol.AGAIN:
            raise UsageError(f"topic {topic!r} cannot be used (error {error} of Kafka's): rights Describe, Read, Write")
        if time.monotonic() - begun > FIRST_ANSWER_S:
            raise BrokerUnavailableError(
                f"no broker at {sink.settings['bootstrap.servers']} has topic {topic!r} within {FIRST_ANSWER_S} s: "
                "check the address, and that the broker runs"
            )
        time.sleep(ASK_AGAIN_S)


def _check_kept(sink: Sink, topic: str) -> None:
    """Raises `UsageError` for a topic that forgets which batches were written."""
    from keylane.kafka.admin import Admin

    try:
        wrong = faults(SINKS, Admin(sink.settings).topic_settings(topic), 1)
    except PeerError as error:
        logger.info("topic %r: its configs cannot be looked at: %s", topic, error)
        return
    if wrong:
        raise UsageError(f"topic {topic!r} cannot hold what a sink has written: {'; '.join(wrong)}")


def _run(steps: Generator[Request, Answer, Outcome], sink: Sink, client: TransactionsClient) -> Outcome:
    """Raises what the steps do, and `BrokerUnavailableError` for a question that nobody answers in its time."""
    request = next(steps)
    begun, pause_s = time.monotonic(), ASK_AGAIN_S
    while True:
        answer = _asked(request, sink, client)
        before = request
        try:
            request = steps.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        if request is not before:
            begun, pause_s = time.monotonic(), ASK_AGAIN_S
            continue
        if time.monotonic() - begun > ASK_FOR_S:
            raise BrokerUnavailableError(
                f"sink {sink.name}: {type(request).__name__} has had no answer that settles it for {ASK_FOR_S:.0f} s "
                f"(error {answer.code} of Kafka's last): check the brokers; what is decided is finished at the next "
                "start"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _asked(request: Request, sink: Sink, client: TransactionsClient) -> Answer:
    topic, driver = topic_of(sink.name), driver_id(sink.name)
    match request:
        case protocol.Open():
            error, ids = client.open_ids(task_prefix(sink.name), topic)
            if error != codes.NONE or not ids:
                return Answer(error, [])
            error, held = client.describe(ids)
            open_now = {name: one for name, one in held.items() if one.is_open}
            return Answer(error, [Transaction(name, Producer(*one[:2])) for name, one in open_now.items()])
        case protocol.Init(expected):
            error, *producer = client.init(driver, DRIVER_TIMEOUT_MS, expected or (-1, -1))
            return Answer(error, Producer(*producer))
        case protocol.Read():
            error, value = client.newest(topic)
            return Answer(error, None if value is None else SinkRecord.of_json(value))
        case protocol.Describe(ids):
            error, held = client.describe(ids)
            return Answer(error, {name: Described(Producer(*one[:2]), *one[2:]) for name, one in held.items()})
        case protocol.Add(producer):
            return Answer(client.add_topic(driver, *producer, topic))
        case protocol.Append(producer, sequence, record):
            key, value = sink.name.encode(), record.to_json()
            return Answer(
                client.append(topic, key, value, transactional_id=driver, producer=producer, sequence=sequence)
            )
        case protocol.Decide(producer):
            return Answer(client.end(driver, *producer, committed=True))
        case protocol.Undo(producer):
            return Answer(client.end(driver, *producer, committed=False))
        case protocol.End(name, producer, committed):
            return Answer(client.end(name, *producer, committed=committed))
