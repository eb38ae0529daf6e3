"""Committed offsets with their metadata byte for byte, by the C API of the librdkafka that confluent-kafka brings.

The idea: confluent-kafka takes metadata for a C string. Its `commit` sends the terminating NUL along, so that the JVM
cannot read what was committed and only 4,095 of 4,096 characters are left; its `committed` reads past the end of what
was committed without one, and returns garbage or another commit's characters. librdkafka itself keeps the length. So
these two calls go to it directly, for the same client (docs/adr/0007). So does the deletion of single offsets, which
confluent-kafka does not have.

Everything declared here is in librdkafka's public header, but for where confluent-kafka keeps its client; that is
checked before it is used.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, cimpl
from confluent_kafka import __version__ as client_version

from keylane.errors import InternalError
from keylane.kafka.faults import commit_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from confluent_kafka import Consumer, Producer

    from keylane.consumer.commits import CommitProblem
    from keylane.consumer.ports import Offset

_NAME_BYTES = 64
"""How much of a client's name is compared."""
_DELETE_OFFSETS = 8
"""`RD_KAFKA_ADMIN_OP_DELETECONSUMERGROUPOFFSETS`."""
_ADMIN_GRACE_MS = 1_000
"""librdkafka itself ends a request that gets no answer in time; so much later there is surely an event."""

_OnCommit = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_on_commit = _OnCommit(lambda *_: None)
"""Never called, as the answer is taken as an event; but without it, the answer goes to the client's `on_commit` too."""


class _TopicPartition(ctypes.Structure):
    """`rd_kafka_topic_partition_t`."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _List(ctypes.Structure):
    """`rd_kafka_topic_partition_list_t`."""

    _fields_ = (("cnt", ctypes.c_int), ("size", ctypes.c_int), ("elems", ctypes.POINTER(_TopicPartition)))


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """What a group has committed for a partition, or the answer to a commit of it."""

    topic: str
    partition: int
    offset: int
    """Negative when nothing is committed."""
    metadata: str
    """Exactly the committed characters, without the NUL that confluent-kafka's own commits end with."""
    error: KafkaError | None
    leader_epoch: int = -1
    """Of the newest record that whoever committed had read; -1 when the commit has none."""


Answer: TypeAlias = "tuple[KafkaError | None, list[GroupOffset]]"
"""What became of a commit: an error of the whole, and each partition with or without one of its own."""


def committed(client: Consumer, names: Iterable[tuple[str, int]], timeout_s: float) -> list[GroupOffset]:
    """What the client's group has committed. Raises `KafkaException` when the whole question failed."""
    with _partitions(names) as partitions:
        _raise(_library.rd_kafka_committed(_handle(client), partitions, int(timeout_s * 1000)))
        return _read(partitions)


class CommitQueue:
    """Commits as the group's member, one after the other.

    The idea: librdkafka itself sends a commit again that a coordinator refused while it loads, and a commit that was
    made meanwhile would be undone by it. So the next one waits until the one before has its answer.

    Thread safety: `send` and `answer` are one thread's; `commit_now` and `settle` are for any other, one at a time.
    Close it before its client.
    """

    def __init__(self, client: Consumer) -> None:
        self._sent = _Commit(client)
        self._now = _Commit(client)

    def send(self, offsets: Sequence[Offset]) -> None:
        """Start a commit. Raises `KafkaException`."""
        self._sent.send(offsets)

    def answer(self, timeout_s: float = 0) -> Answer | None:
        """The answer to what was sent, if it is there within `timeout_s`."""
        return self._sent.answer(timeout_s)

    def settle(self) -> None:
        """Wait until what was sent has its answer."""
        self._sent.is_settled.wait()

    def forget(self) -> None:
        """Nobody asks for answers to what was sent any more, so nothing waits for them. Any thread."""
        self._sent.is_settled.set()

    def commit_now(self, offsets: Sequence[Offset], timeout_s: float | None = None) -> list[GroupOffset]:
        """Commit and wait for the answer (None: however long it takes), which may name errors of single partitions.

        Raises `KafkaException`; after `timeout_s` without an answer, one of a timeout: the commit may still be made.
        """
        until = None if timeout_s is None else monotonic() + timeout_s

        def left_s() -> float | None:
            return None if until is None else max(0.0, until - monotonic())

        if not self._sent.is_settled.wait(left_s()) or not self._now.settle(left_s()):
            raise _timed_out("the answer to the commit before")
        self._now.send(offsets)
        answer = self._now.answer(left_s())
        if answer is None:
            raise _timed_out("an answer")
        error, answered = answer
        if error is not None and not any(one.error for one in answered):  # else the error of the whole is a partition's
            raise KafkaException(error)
        return answered

    def close(self) -> None:
        self._sent.close()
        self._now.close()


class _Commit:
    """One commit at a time, and its answer. Thread safety: one thread; any may wait for `is_settled`."""

    def __init__(self, client: Consumer) -> None:
        self._handle = _handle(client)
        self._queue = _library.rd_kafka_queue_new(self._handle)
        self.is_settled = Event()
        """Whether no answer is due."""
        self.is_settled.set()

    def send(self, offsets: Sequence[Offset]) -> None:
        with _offsets(offsets) as partitions:
            _raise(_library.rd_kafka_commit_queue(self._handle, partitions, self._queue, _on_commit, None))
        self.is_settled.clear()

    def answer(self, timeout_s: float | None) -> Answer | None:
        wait_ms = -1 if timeout_s is None else int(timeout_s * 1000)
        event = _library.rd_kafka_queue_poll(self._queue, wait_ms)
        if not event:
            return None
        try:
            answered = _library.rd_kafka_event_topic_partition_list(event)
            code = _library.rd_kafka_event_error(event)
            return KafkaError(code) if code else None, _read(answered) if answered else []
        finally:
            _library.rd_kafka_event_destroy(event)
            self.is_settled.set()

    def settle(self, timeout_s: float | None) -> bool:
        """Take an answer that was not waited for, if one is due; whether none is any more."""
        return self.is_settled.is_set() or self.answer(timeout_s) is not None

    def close(self) -> None:
        _library.rd_kafka_queue_destroy(self._queue)


def _timed_out(what: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer in time: {what}"))  # noqa: SLF001 - its name


def commit_now(client: Consumer, offsets: Sequence[Offset], timeout_s: float | None = None) -> list[GroupOffset]:
    """`CommitQueue.commit_now` of a client that commits only so."""
    with closing(CommitQueue(client)) as queue:
        return queue.commit_now(offsets, timeout_s)


def problems_of(error: KafkaError | None, partitions: Sequence[GroupOffset]) -> dict[tuple[str, int], CommitProblem]:
    """Partitions that were not committed. An error of the request, and of no partition, is every partition's."""
    each: dict[tuple[str, int], KafkaError | None] = {(one.topic, one.partition): one.error for one in partitions}
    if error is not None and not any(each.values()):
        each = dict.fromkeys(each, error)
    return {name: commit_problem(one) for name, one in each.items() if one is not None}


def delete(client: Consumer, group: str, names: Iterable[tuple[str, int]], timeout_s: float) -> list[GroupOffset]:
    """Delete a group's offsets of these partitions (OffsetDelete); each answer may have an error of its own.

    Raises `KafkaException` when all is refused, or when no answer comes: then they may still be deleted.
    """
    handle = _handle(client)
    queue = _library.rd_kafka_queue_new(handle)
    options = _library.rd_kafka_AdminOptions_new(handle, _DELETE_OFFSETS)
    try:
        timeout_ms = int(timeout_s * 1000)
        _raise(_library.rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, None, 0))
        with _partitions(names) as partitions:
            wanted = ctypes.c_void_p(_library.rd_kafka_DeleteConsumerGroupOffsets_new(group.encode(), partitions))
        try:
            _library.rd_kafka_DeleteConsumerGroupOffsets(handle, ctypes.byref(wanted), 1, options, queue)
        finally:
            _library.rd_kafka_DeleteConsumerGroupOffsets_destroy(wanted)
        event = _library.rd_kafka_queue_poll(queue, timeout_ms + _ADMIN_GRACE_MS)
        if not event:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))  # noqa: SLF001 - the client's name
        try:
            return _deleted(event)
        finally:
            _library.rd_kafka_event_destroy(event)
    finally:
        _library.rd_kafka_AdminOptions_destroy(options)
        _library.rd_kafka_queue_destroy(queue)


def _deleted(event: int) -> list[GroupOffset]:
    _raise(_library.rd_kafka_event_error(event))
    count = ctypes.c_size_t()
    result = _library.rd_kafka_event_DeleteConsumerGroupOffsets_result(event)
    groups = _library.rd_kafka_DeleteConsumerGroupOffsets_result_groups(result, ctypes.byref(count))
    if count.value != 1:
        raise InternalError(f"one group was asked for, and librdkafka answers for {count.value}")
    _raise(_library.rd_kafka_error_code(_library.rd_kafka_group_result_error(groups[0])))
    return _read(_library.rd_kafka_group_result_partitions(groups[0]))


def fatal_code(client: Consumer) -> int:
    """Kafka's code for why librdkafka gave this client up; 0 while it has not."""
    text = ctypes.create_string_buffer(1)
    return int(_library.rd_kafka_fatal_error(_handle(client), text, len(text)))


def check(client: Consumer, client_id: str) -> None:
    """Make sure that the client is where it is looked for. Raises `InternalError` when this confluent-kafka keeps it
    elsewhere; call it once for a new client."""
    if not sys.platform.startswith("linux"):  # elsewhere memory cannot be looked at without the risk of a crash
        return
    expected = f"{client_id}#consumer-".encode()[:_NAME_BYTES]
    name = _library.rd_kafka_name(_handle(client))  # an address inside the client: nothing is followed yet
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            found = os.pread(memory.fileno(), len(expected), name)
    except (OSError, OverflowError):
        found = b""
    if found != expected:
        raise InternalError(
            f"confluent-kafka {client_version} keeps its client where keylane does not find it: "
            "install a version that keylane's release notes name"
        )


def _handle(client: Consumer | Producer) -> int:
    """The client's `rd_kafka_t *`: the first field of confluent-kafka's clients after what every object has."""
    pointer = ctypes.c_void_p.from_address(id(client) + object.__basicsize__).value
    if pointer is None:
        raise RuntimeError("the Kafka client is closed")
    return pointer


def _declared() -> ctypes.CDLL:
    """librdkafka, as linked to confluent-kafka's extension, with the types of what is called."""
    library = ctypes.CDLL(cimpl.__file__)
    pointer, list_pointer = ctypes.c_void_p, ctypes.POINTER(_List)
    declarations: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_name": (pointer, [pointer]),
        "rd_kafka_fatal_error": (ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_size_t]),
        "rd_kafka_topic_partition_list_new": (list_pointer, [ctypes.c_int]),
        "rd_kafka_topic_partition_list_add": (
            ctypes.POINTER(_TopicPartition),
            [list_pointer, ctypes.c_char_p, ctypes.c_int32],
        ),
        "rd_kafka_topic_partition_list_destroy": (None, [list_pointer]),
        "rd_kafka_topic_partition_set_leader_epoch": (None, [ctypes.POINTER(_TopicPartition), ctypes.c_int32]),
        "rd_kafka_topic_partition_get_leader_epoch": (ctypes.c_int32, [ctypes.POINTER(_TopicPartition)]),
        "rd_kafka_committed": (ctypes.c_int, [pointer, list_pointer, ctypes.c_int]),
        "rd_kafka_commit_queue": (ctypes.c_int, [pointer, list_pointer, pointer, _OnCommit, pointer]),
        "rd_kafka_queue_new": (pointer, [pointer]),
        "rd_kafka_queue_poll": (pointer, [pointer, ctypes.c_int]),
        "rd_kafka_queue_destroy": (None, [pointer]),
        "rd_kafka_event_topic_partition_list": (list_pointer, [pointer]),
        "rd_kafka_event_error": (ctypes.c_int, [pointer]),
        "rd_kafka_event_destroy": (None, [pointer]),
        "rd_kafka_error_code": (ctypes.c_int, [pointer]),
        "rd_kafka_AdminOptions_new": (pointer, [pointer, ctypes.c_int]),
        "rd_kafka_AdminOptions_set_request_timeout": (
            ctypes.c_int,
            [pointer, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t],
        ),
        "rd_kafka_AdminOptions_destroy": (None, [pointer]),
        "rd_kafka_DeleteConsumerGroupOffsets_new": (pointer, [ctypes.c_char_p, list_pointer]),
        "rd_kafka_DeleteConsumerGroupOffsets_destroy": (None, [pointer]),
        "rd_kafka_DeleteConsumerGroupOffsets": (None, [pointer, pointer, ctypes.c_size_t, pointer, pointer]),
        "rd_kafka_event_DeleteConsumerGroupOffsets_result": (pointer, [pointer]),
        "rd_kafka_DeleteConsumerGroupOffsets_result_groups": (
            ctypes.POINTER(pointer),
            [pointer, ctypes.POINTER(ctypes.c_size_t)],
        ),
        "rd_kafka_group_result_error": (pointer, [pointer]),
        "rd_kafka_group_result_partitions": (list_pointer, [pointer]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@contextmanager
def _partitions(names: Iterable[tuple[str, int]]) -> Iterator[Any]:
    """A partition list of librdkafka's, freed in the end."""
    made = _library.rd_kafka_topic_partition_list_new(0)
    try:
        for topic, partition in names:
            _library.rd_kafka_topic_partition_list_add(made, topic.encode(), partition)
        yield made
    finally:
        _library.rd_kafka_topic_partition_list_destroy(made)


@contextmanager
def _offsets(offsets: Sequence[Offset]) -> Iterator[Any]:
    """A partition list with offsets and metadata; the metadata stays ours, librdkafka copies it."""
    with _partitions(one.name for one in offsets) as made:
        kept = [one.metadata.encode() for one in offsets]
        elements = made.contents.elems
        try:
            for index, (one, metadata) in enumerate(zip(offsets, kept, strict=True)):
                elements[index].offset = one.offset
                _library.rd_kafka_topic_partition_set_leader_epoch(ctypes.byref(elements[index]), one.leader_epoch)
                if metadata:
                    elements[index].metadata = ctypes.cast(ctypes.c_char_p(metadata), ctypes.c_void_p).value
                    elements[index].metadata_size = len(metadata)
            yield made
        finally:
            for index in range(len(kept)):  # or it would be freed
                elements[index].metadata, elements[index].metadata_size = None, 0


def _read(partitions: Any) -> list[GroupOffset]:
    read = []
    for index in range(partitions.contents.cnt):
        one = partitions.contents.elems[index]
        metadata = ctypes.string_at(one.metadata, one.metadata_size) if one.metadata else b""
        error = KafkaError(one.err) if one.err else None
        text = metadata.removesuffix(b"\0").decode(errors="replace")
        epoch = _library.rd_kafka_topic_partition_get_leader_epoch(ctypes.byref(one))
        read.append(GroupOffset(one.topic.decode(), one.partition, one.offset, text, error, epoch))
    return read


def _raise(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))


_library = _declared()
