"""Produce (0), versions 3-13: append record batches; the answer leaves when they are durable.

v3: record batch format 2 and transactional ids; v5: log start offset; v8: error messages; v9: flexible; v10: leader
tags, not needed with one node; v11: TRANSACTION_ABORTABLE where a partition was not added to the transaction
(INVALID_TXN_STATE before); v12: it is added here (KIP-890); v13: topics by id (KIP-516). acks=1 and acks=all are the
same here, and both wait for the disk. acks=0 gets no answer; when such a request fails, its connection is closed, which
is all that its client can notice.

Checks are those of Apache Kafka's LogValidator: of the header, and that the records can be read (`RecordWalk`); their
keys where the topic is compacted, their times where one in the header is out of bounds. What is checked is prepared
before anything is appended, since it may take long; then all is done at once, in the order of the requests.
Transactional batches are taken for partitions that are in the producer's open transaction (KIP-890's check), so none is
ever left behind its marker. Those of a partition that is added first wait for that to be durable, and whatever their
producer sends meanwhile waits behind them.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from keylane.broker.dispatch import FEW_ITEMS, CloseConnectionError, Preparation, after, answer_of, prepared
from keylane.broker.topics import NO_TOPIC_ID
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.storage.filesystem import StorageError
from keylane.storage.log import Appended
from keylane.storage.producers import OutOfOrderSequenceError, ProducerEpochError, TransactionStateError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.batches import (
    CODECS,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchError,
    BatchHeader,
    check_crc,
    read_header,
    recompressed,
    with_timestamp_type,
)
from keylane.wire.primitives import (
    EMPTY_TAGS,
    array_length,
    compact_array_length,
    compact_string,
    error_text,
    int32,
    string,
)
from keylane.wire.record_walk import RecordWalk, Wanted

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from keylane.broker.dispatch import RequestHeader, Steps, Work
    from keylane.broker.node import Node
    from keylane.broker.topic_files import Topic
    from keylane.broker.topic_values import TopicValues
    from keylane.broker.topics import NamedTopic
    from keylane.coordinator.transaction_service import Joining
    from keylane.storage.log import PartitionLog
    from keylane.storage.shared_sync import Round
    from keylane.wire.versions import Entity

API_KEY = 0
MIN_VERSION = 3
MAX_VERSION = 13
LACKS = "message formats 0 and 1"

logger = logger_of("keylane.broker")

FLEXIBLE_VERSION = 9
_ABORTABLE_VERSION = 11
_ADDING_VERSION = 12
_TOPIC_ID_VERSION = 13
ALL = -1
_ACKS = (ALL, 0, 1)


class RefusedError(Exception):
    """A batch is not taken: error code and sentence."""

    def __init__(self, code: int, message: str, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.record_errors = record_errors


Outcome = Appended | RefusedError


def begin(request: Entity, header: RequestHeader, node: Node) -> Any:
    checked: list[list[Checked]] = []
    return prepared(_check_all(request, header, node, checked), lambda: _begin_checked(request, header, node, checked))


async def append_own(topic: str, partition: int, records: bytes, node: Node) -> None:
    """Append a batch that the broker has made itself, checked as a client's is; durable on return. Raises
    `RefusedError`, and `StorageError`."""
    one = Checked()
    checks = Preparation(_check(one, ALL, topic, partition, records, node), lambda: None)
    checks.advance()
    while not checks.is_over:
        await checks.go_on()
    outcome = _append(Asked(None, MAX_VERSION, codes.NONE), topic, partition, one, node)
    if isinstance(outcome, RefusedError):
        raise outcome
    if outcome.durable is not None:
        await outcome.durable


def _check_all(request: Entity, header: RequestHeader, node: Node, checked: list[list[Checked]]) -> Steps:
    """Fills `checked`: of each topic, each batch."""
    for topic in request.topic_data:
        yield None
        _, name = _named(topic, header, node)
        batches: list[Checked] = []
        checked.append(batches)
        for partition in topic.partition_data:
            yield None
            one = Checked()
            batches.append(one)
            if name is not None:
                try:
                    yield from _check(one, request.acks, name, partition.index, partition.records or b"", node)
                except RefusedError as error:
                    one.refusal = _without_traceback(error)


def _begin_checked(request: Entity, header: RequestHeader, node: Node, checked: Sequence[Sequence[Checked]]) -> Any:
    if header.api_version >= _ADDING_VERSION and request.transactional_id is not None:
        joining = _join(request, header, node)
        if joining is not None:
            return after([joining], lambda: _append_all(request, header, node, checked, joining.error))
    return _append_all(request, header, node, checked)


def _append_all(
    request: Entity,
    header: RequestHeader,
    node: Node,
    checked: Sequence[Sequence[Checked]],
    not_joined: int = codes.NONE,
) -> Any:
    """`not_joined`: why partitions of this request could not be made part of its transaction."""
    asked = Asked(request.transactional_id, header.api_version, not_joined)
    topics: list[ToTopic] = []
    rounds: list[Round] = []
    steps = _append_each(request, header, node, checked, asked, topics, rounds)
    count = len(checked) + sum(map(len, checked))
    if count > FEW_ITEMS:
        return prepared(steps, lambda: after(rounds, lambda: _finish(request, header, node, topics, count)))
    for _ in steps:
        pass
    return after(rounds, lambda: _finish(request, header, node, topics, count))


def _append_each(
    request: Entity,
    header: RequestHeader,
    node: Node,
    checked: Sequence[Sequence[Checked]],
    asked: Asked,
    topics: list[ToTopic],
    rounds: list[Round],
) -> Steps:
    """Fills `topics`, and `rounds` with what has to be waited for."""
    for topic, batches in zip(request.topic_data, checked, strict=True):
        yield None
        named, name = _named(topic, header, node)
        outcomes = []
        for partition, one in zip(topic.partition_data, batches, strict=True):
            yield None
            outcome = _append(asked, name, partition.index, one, node) if name is not None else _unknown_id(named)
            outcomes.append((partition.index, outcome))
            if type(outcome) is Appended and outcome.durable is not None:
                rounds.append(outcome.durable)
        topics.append(ToTopic(named, name, outcomes))


def _named(topic: Entity, header: RequestHeader, node: Node) -> tuple[NamedTopic, str | None]:
    """A topic as the request has it, and its name; None when no topic has that id."""
    if header.api_version < _TOPIC_ID_VERSION:
        return topic.name, topic.name
    topic_id = topic.topic_id or NO_TOPIC_ID
    return topic_id, node.topic_name(topic_id)


def _join(request: Entity, header: RequestHeader, node: Node) -> Joining | None:
    """What transactional records wait for whose partitions are to become part of their transaction first."""
    producer = None
    partitions = []
    for topic in request.topic_data:
        _, name = _named(topic, header, node)
        for partition in topic.partition_data:
            if name is None or node.topics.log(name, partition.index) is None:
                continue
            try:
                batch = read_header(partition.records or b"")
            except BatchError:
                continue  # it is refused with the reason
            if batch.is_transactional:
                producer = producer or Producer(batch.producer_id, batch.producer_epoch)
                partitions.append((name, partition.index))
    if producer is None:
        return None
    return node.coordinator.transactions.join(request.transactional_id, producer, partitions)


class Asked(NamedTuple):
    """What a request says of all its batches."""

    transactional_id: str | None
    version: int
    not_joined: int


class Checked:
    """What was found out about one batch before it is appended, and the batch as its topic keeps it."""

    __slots__ = ("header", "records", "refusal")

    def __init__(self) -> None:
        self.records = b""
        self.header: BatchHeader | None = None
        """None for a batch that has none, or that nothing can be appended of."""
        self.refusal: RefusedError | None = None


class ToTopic(NamedTuple):
    """What became of the batches for one topic."""

    named: NamedTopic
    """As the request has it."""
    name: str | None
    outcomes: Sequence[tuple[int, Outcome]]


def _unknown_id(named: NamedTopic) -> RefusedError:
    return RefusedError(codes.UNKNOWN_TOPIC_ID, f"no topic has the id {named}: look its name up again")


def _finish(request: Entity, header: RequestHeader, node: Node, topics: Sequence[ToTopic], count: int) -> Any:
    """The answer, when every batch is durable or has failed."""
    return answer_of(count, lambda: _made(request, header, node, topics))


def _made(request: Entity, header: RequestHeader, node: Node, topics: Sequence[ToTopic]) -> list[bytes] | None:
    answers = [
        (named, [_answer(index, outcome, node.topics.log(name or "", index)) for index, outcome in outcomes])
        for named, name, outcomes in topics
        if outcomes  # of a topic without partitions nothing is said, as by Apache Kafka
    ]
    if request.acks != 0:
        return encode(header.api_version, answers)
    for named, partitions in answers:
        for partition in partitions:
            if partition.error_code != codes.NONE:
                raise CloseConnectionError(
                    f"produce with acks=0 to {named}-{partition.partition} failed: {partition.error_message}"
                )
    return None


def _check(one: Checked, acks: int, topic_name: str, partition: int, records: bytes, node: Node) -> Steps:
    """All that can be said before the batch is appended. Raises `RefusedError`."""
    if acks not in _ACKS:
        raise RefusedError(codes.INVALID_REQUIRED_ACKS, f"acks={acks}: give -1 (all), 0 or 1")
    if topic_name == OFFSETS_TOPIC:
        raise RefusedError(codes.INVALID_TOPIC_EXCEPTION, f"{OFFSETS_TOPIC} is written by the broker alone")
    values = _topic(node, topic_name, partition).values
    header = check_batch(records, values.max_message_bytes)
    one.records, one.header = records, header
    size = yield from _check_records(records, header, values, (topic_name, partition), node.clock())
    if values.codec is not None and values.codec != header.codec:
        work = functools.partial(recompressed, records, header, values.codec, values.level)
        one.records, one.header = work() if size <= _COMPRESSED_AT_ONCE_BYTES else (yield work)
        _check_size(one.header, values.max_message_bytes)


def _topic(node: Node, topic_name: str, partition: int) -> Topic:
    topic = node.topics.get(topic_name)
    if topic is None or not 0 <= partition < topic.partition_count:
        raise RefusedError(codes.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_name}-{partition} does not exist")
    return topic


def _append(asked: Asked, topic_name: str, partition: int, one: Checked, node: Node) -> Outcome:
    try:
        header = one.header
        if header is None:
            assert one.refusal is not None, (topic_name, partition)
            raise one.refusal
        topic = _topic(node, topic_name, partition)
        log: PartitionLog = topic.logs[partition]
        if header.is_transactional:
            _check_transaction(asked, header, (topic_name, partition), log, node)
            if asked.version >= _ADDING_VERSION:
                _check_first(header, log)
        if one.refusal is not None:
            raise one.refusal
        return _keep(one.records, header, topic.values, log, node.clock())
    except RefusedError as error:
        return _without_traceback(error)
    except OutOfOrderSequenceError as error:
        return RefusedError(codes.OUT_OF_ORDER_SEQUENCE_NUMBER, str(error))
    except ProducerEpochError as error:
        return RefusedError(codes.INVALID_PRODUCER_EPOCH, str(error))
    except TransactionStateError as error:
        return RefusedError(codes.INVALID_TXN_STATE, str(error))
    except StorageError as error:
        return RefusedError(codes.KAFKA_STORAGE_ERROR, str(error))


def _without_traceback(error: RefusedError) -> RefusedError:
    """It is kept until it is answered, and what it was raised from must not be."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _keep(records: bytes, header: BatchHeader, values: TopicValues, log: PartitionLog, now_ms: int) -> Appended:
    """Append a batch with the timestamps that its topic wants."""
    if values.has_append_time:
        records, header = with_timestamp_type(records, header, now_ms)
        return log.append(records, header, now_ms)._replace(append_time_ms=now_ms)
    if header.attributes & TIMESTAMP_TYPE_MASK:
        records, header = with_timestamp_type(records, header, None)
    return log.append(records, header, now_ms)


def _check_size(header: BatchHeader, max_message_bytes: int) -> None:
    if header.length > max_message_bytes:
        raise RefusedError(
            codes.MESSAGE_TOO_LARGE,
            f"a record batch of {header.length} bytes: the limit is {max_message_bytes} (message.max.bytes)",
        )


_UNPACKED_AT_ONCE_BYTES = 4 * 1024 * 1024
_COMPRESSED_AT_ONCE_BYTES = 16 * 1024
"""What is done in one step; more goes to a thread."""


def _check_records(
    records: bytes, header: BatchHeader, values: TopicValues, partition: tuple[str, int], now_ms: int
) -> Generator[Work | None, Any, int]:
    """The bytes that they unpack to. Raises `RefusedError` for records that cannot be read, or that the topic does not
    take."""
    wanted = Wanted(values.is_compacted, _times(header, values, now_ms))
    walk = RecordWalk(records, header, wanted)
    try:
        if walk.largest_block > _UNPACKED_AT_ONCE_BYTES:
            failed = yield lambda: _failure_of(walk)
            if failed is not None:
                raise failed
        else:
            for _ in walk.steps():
                yield None
    except BatchError as error:
        raise RefusedError(codes.INVALID_RECORD, str(error)) from None
    if walk.out_of_time:
        assert wanted.times_ms is not None
        bounds = f"The timestamp should be within [{wanted.times_ms[0]}, {wanted.times_ms[1]}]"
        raise RefusedError(
            codes.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            [
                (number, f"Timestamp {time_ms} of message with offset {number} is out of range. {bounds}")
                for number, time_ms in walk.out_of_time
            ],
        )
    if walk.keyless:
        topic, number = partition
        message = f"Compacted topic cannot accept message without key in topic partition {topic}-{number}."
        raise RefusedError(codes.INVALID_RECORD, message, [(number, message) for number in walk.keyless])
    return walk.size


def _failure_of(walk: RecordWalk) -> BatchError | None:
    """Of a walk to the end."""
    try:
        for _ in walk.steps():
            pass
    except BatchError as error:
        return error
    return None


def _times(header: BatchHeader, values: TopicValues, now_ms: int) -> tuple[int, int] | None:
    """The bounds of the records' times, where one of them may be out of them."""
    if values.has_append_time:
        return None
    earliest, latest = now_ms - values.earliest_ms, now_ms + values.latest_ms
    return (earliest, latest) if header.max_timestamp > latest or earliest > 0 else None


def check_batch(records: bytes, max_message_bytes: int) -> BatchHeader:
    """The header of the one batch that a partition's records must be. Raises `RefusedError`."""
    try:
        header = read_header(records)
    except BatchError as error:
        raise RefusedError(codes.INVALID_RECORD, str(error)) from error
    if header.length > len(records):
        raise RefusedError(
            codes.INVALID_RECORD, f"a record batch of {header.length} bytes in a field of {len(records)}"
        )
    if header.length < len(records):
        raise RefusedError(codes.INVALID_RECORD, "a produce request holds exactly one record batch a partition")
    _check_size(header, max_message_bytes)
    if not check_crc(records, 0, header):
        raise RefusedError(codes.CORRUPT_MESSAGE, "a record batch whose checksum does not hold")
    _check_content(header)
    return header


def _check_content(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise RefusedError(
            codes.INVALID_RECORD, f"a produced record batch starts with offset 0, not {header.base_offset}"
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise RefusedError(
            codes.INVALID_RECORD,
            f"a record batch of {header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.attributes & ~(TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK) not in CODECS:
        _refuse_attributes(header)
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise RefusedError(
            codes.INVALID_RECORD,
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )


_NOT_NOW = {
    # What may be over soon is tried again.
    codes.COORDINATOR_LOAD_IN_PROGRESS: codes.NOT_ENOUGH_REPLICAS,
    codes.COORDINATOR_NOT_AVAILABLE: codes.NOT_ENOUGH_REPLICAS,
    codes.NOT_COORDINATOR: codes.NOT_ENOUGH_REPLICAS,
    # A producer that was fenced aborts and goes on (KIP-588).
    codes.PRODUCER_FENCED: codes.INVALID_PRODUCER_EPOCH,
}
"""What a producer is told of these, as by Apache Kafka."""


def _told(code: int, version: int) -> int:
    """The code that a producer of this version knows."""
    if code == codes.INVALID_TXN_STATE and version >= _ABORTABLE_VERSION:
        return codes.TRANSACTION_ABORTABLE
    if code == codes.CONCURRENT_TRANSACTIONS and version < _ADDING_VERSION:
        return codes.NOT_ENOUGH_REPLICAS
    return _NOT_NOW.get(code, code)


def _check_transaction(
    asked: Asked, header: BatchHeader, partition: tuple[str, int], log: PartitionLog, node: Node
) -> None:
    """Raise `RefusedError` unless the batch belongs to its producer's open transaction."""
    transactional_id = asked.transactional_id
    if transactional_id is None or header.producer_id < 0:
        raise RefusedError(
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional records in a request without transactional id"
        )
    producer = Producer(header.producer_id, header.producer_epoch)
    code = node.coordinator.transactions.check_write(transactional_id, producer, partition)
    if code != codes.NONE:
        code = asked.not_joined or code
        known_epoch = log.epoch_of(header.producer_id)
        if known_epoch is not None and header.producer_epoch < known_epoch:
            code = codes.PRODUCER_FENCED  # its id may have been given up since; the producer goes on with what follows
        raise RefusedError(
            _told(code, asked.version),
            f"producer {producer.producer_id} epoch {producer.epoch} of transactional id {transactional_id} has no "
            f"open transaction with {partition[0]}-{partition[1]}",
        )


def _check_first(header: BatchHeader, log: PartitionLog) -> None:
    """Raise `RefusedError` for a producer that begins in the middle: its epoch is new, and no earlier batch of it can
    have been forgotten."""
    if header.base_sequence != 0 and log.epoch_of(header.producer_id) is None:
        raise RefusedError(
            codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} epoch {header.producer_epoch}: sequence {header.base_sequence}, where 0 is "
            "the first",
        )


def _refuse_attributes(header: BatchHeader) -> None:
    if header.is_control:
        raise RefusedError(codes.INVALID_RECORD, "clients may not write control records")
    if header.codec not in CODECS:
        raise RefusedError(codes.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {header.codec} is not known")
    raise RefusedError(codes.INVALID_RECORD, f"record batch attributes {header.attributes:#06x} are not known")


def _answer(index: int, outcome: Outcome, log: PartitionLog | None) -> ProducedPartition:
    if isinstance(outcome, RefusedError):
        return ProducedPartition(index, outcome.code, error_message=str(outcome), record_errors=outcome.record_errors)
    failure = None if outcome.durable is None else outcome.durable.exception()
    if failure is not None:
        return ProducedPartition(index, codes.KAFKA_STORAGE_ERROR, error_message=str(failure))
    start_offset = -1 if log is None else log.log_start_offset
    return ProducedPartition(index, codes.NONE, outcome.base_offset, start_offset, None, outcome.append_time_ms)


# --- the response ---


class ProducedPartition(NamedTuple):
    """The answer for one partition of a Produce request."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    append_time_ms: int = -1
    """The timestamp that the broker gave the records; -1 where topics keep the producer's (CreateTime)."""
    record_errors: Sequence[tuple[int, str]] = ()
    """Index in the batch, and what is wrong with that record (KIP-467)."""


_PRODUCED = struct.Struct(">ihqq")
_PRODUCED_V5 = struct.Struct(">ihqqq")


def encode(version: int, topics: Sequence[tuple[NamedTopic, Sequence[ProducedPartition]]]) -> list[bytes]:
    """The response's body, in parts: joined only with the frame's head."""
    is_flexible = version >= FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else string
    write_length = compact_array_length if is_flexible else array_length
    tags = EMPTY_TAGS if is_flexible else b""
    no_record_errors = write_length(0)
    parts = [write_length(len(topics))]
    for name, partitions in topics:
        parts += (name.bytes if isinstance(name, UUID) else write_string(name), write_length(len(partitions)))
        for index, error_code, base_offset, log_start_offset, error_message, append_time_ms, errors in partitions:
            if version >= 5:
                parts.append(_PRODUCED_V5.pack(index, error_code, base_offset, append_time_ms, log_start_offset))
            else:
                parts.append(_PRODUCED.pack(index, error_code, base_offset, append_time_ms))
            if version >= 8:
                parts.append(write_length(len(errors)) if errors else no_record_errors)
                for record, message in errors:
                    parts += (int32(record), write_string(error_text(message)), tags)
                parts += (write_string(error_message and error_text(error_message)), tags)
        parts.append(tags)
    parts.append(bytes(4) + tags)
    return parts
