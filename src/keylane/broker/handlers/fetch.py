"""Fetch (1), versions 4-18: record batches from an offset on, waiting until enough of them are there.

v5: log start offset; v7: sessions (KIP-227, `keylane.broker.fetch_sessions`); v9: leader epochs; v12: flexible;
v13: topics by id (KIP-516); v16: beside FENCED_LEADER_EPOCH the leader and its epoch, and where it is (KIP-951); what
else v14 to v18 have is for followers and tiered storage.
Compressed batches pass through as they are. A consumer of committed records is given what lies below the last stable
offset, and the aborted transactions in it.
"""

from __future__ import annotations

import asyncio
import struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from keylane.broker.dispatch import answer_of, in_slices, slices_begun
from keylane.broker.fetch_sessions import FINAL_EPOCH, NO_SESSION
from keylane.broker.reads import NOBODYS, READ_BYTES, FetchedPartition, LogRead, NoRead, OffsetsRead, Wanted
from keylane.broker.topics import NO_TOPIC_ID
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.wire import codes
from keylane.wire.primitives import (
    EMPTY_TAGS,
    array_length,
    compact_array_length,
    compact_string,
    int16,
    int32,
    int64,
    string,
    tagged,
    unsigned_varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.broker.reads import PartitionRead
    from keylane.broker.topics import NamedPartition, NamedTopic
    from keylane.wire.versions import Entity

API_KEY = 1
MIN_VERSION = 4
MAX_VERSION = 18
MAY_POLL = True
HAS_LARGE_ANSWERS = True
LACKS = "rack awareness; isolation in __consumer_offsets (all of it is given)"

FLEXIBLE_VERSION = 12
_SESSION_VERSION = 7
_EPOCH_VERSION = 9
_LAST_EPOCH_VERSION = 12
NO_EPOCH = -1
_TOPIC_ID_VERSION = 13
_LEADER_VERSION = 16
_READ_COMMITTED = 1


class _Arrival:
    """Counts the bytes that become visible, and wakes the fetch when they suffice; or, with 0, when there is no more to
    wait for: a log is closed or begins elsewhere, or its time is over."""

    def __init__(self, needed: int) -> None:
        self.is_enough: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._needed = needed

    def __call__(self, new_bytes: int) -> None:
        self._needed -= new_bytes
        if (self._needed <= 0 or new_bytes == 0) and not self.is_enough.done():
            self.is_enough.set_result(new_bytes > 0)

    def count(self, available: int) -> None:
        """So many are there already; some of them may have been told as new."""
        if available:
            self(available)


class _Counted(NamedTuple):
    """What there is for a fetch now."""

    available: int
    at_once: int
    """Of them, what one answer takes."""
    existing: int
    """Partitions."""
    has_error: bool
    """Of one that exists."""


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    has_ids = version >= _TOPIC_ID_VERSION
    begun = node.fetch_sessions.begin(
        getattr(request, "session_id", NO_SESSION),
        getattr(request, "session_epoch", FINAL_EPOCH),
        await _wanted(request, version, node),
        _forgotten(request, has_ids=has_ids),
        node.clock(),
        has_ids=has_ids,
    )
    max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
    committed_only = request.isolation_level == _READ_COMMITTED
    needed = min(request.min_bytes, max_bytes)
    deadline = asyncio.get_running_loop().time() + request.max_wait.total_seconds()
    reads: dict[NamedPartition, PartitionRead] = {}
    wanted, goes_on = begun.wanted, True
    slices = slices_begun()
    while True:
        for partition, how in wanted.items():
            if partition not in reads:
                reads[partition] = read = _read_of(node, partition, how, committed_only=committed_only)
                if (located := read.locate()) is not None:
                    await located
                if perf_counter() > slices.until:
                    await slices.next()
        counted = await _count(reads)
        resting = 0 if begun.session is None else len(begun.session.partitions) - len(reads)
        has_enough = counted.available >= needed or counted.has_error
        if has_enough or not goes_on or not (counted.existing or resting > 0):
            break
        logs = [read.log for read in reads.values() if read.log is not None]
        listeners = [log.stable_listeners if committed_only else log.listeners for log in logs]
        if begun.session is not None:
            listeners.append(begun.session.listeners)
        goes_on = await _wait(listeners, reads, needed, deadline)
        wanted = {} if begun.session is None else begun.session.to_read()
    answers, size = await _read_all(reads, await header.room.take(min(counted.at_once, max_bytes)))
    header.room.settle(size)
    code, session_id, told = node.fetch_sessions.finish(begun, answers, node.clock())
    if code == codes.NONE and session_id != NO_SESSION:
        async for partition, answer in in_slices(answers):
            log = reads[partition].log
            if log is not None and answer.error_code == codes.NONE and answer.diverging is None:
                node.fetch_sessions.rest(session_id, partition, log)
    leader = Leader(node.node_id, node.host, node.port)

    def encoded() -> list[bytes]:
        return encode(version, _by_topic(told), error_code=code, session_id=session_id, leader=leader)

    return answer_of(len(told), encoded)


async def _wanted(request: Any, version: int, node: Node) -> dict[NamedPartition, Wanted]:
    """Each partition once; of one that is named twice, the last holds."""
    has_ids = version >= _TOPIC_ID_VERSION
    has_epoch, has_last_epoch = version >= _EPOCH_VERSION, version >= _LAST_EPOCH_VERSION
    wanted = {}
    slices = slices_begun()
    for topic in request.topics:
        named = _named(topic, has_ids=has_ids)
        name = node.topic_name(named) if isinstance(named, UUID) else named
        for one in topic.partitions:
            epoch = one.current_leader_epoch if has_epoch else NO_EPOCH
            last_epoch = one.last_fetched_epoch if has_last_epoch else NO_EPOCH
            wanted[named, one.partition] = Wanted(one.fetch_offset, one.partition_max_bytes, epoch, name, last_epoch)
            if perf_counter() > slices.until:
                await slices.next()
        if perf_counter() > slices.until:
            await slices.next()
    return wanted


def _forgotten(request: Any, *, has_ids: bool) -> list[NamedPartition]:
    topics = getattr(request, "forgotten_topics_data", ())
    return [(_named(topic, has_ids=has_ids), one) for topic in topics for one in topic.partitions]


def _named(topic: Entity, *, has_ids: bool) -> NamedTopic:
    named: NamedTopic = (topic.topic_id or NO_TOPIC_ID) if has_ids else topic.topic
    return named


def _read_of(node: Node, partition: NamedPartition, wanted: Wanted, *, committed_only: bool) -> PartitionRead:
    named, index = partition
    topic = wanted.topic
    if topic is None:
        return NoRead(index, codes.UNKNOWN_TOPIC_ID)
    if topic == OFFSETS_TOPIC:
        return OffsetsRead(node.offsets_topic, index, wanted)
    if isinstance(named, UUID) and node.topics.topic_id(topic) not in (named, None):
        return NoRead(index, codes.INCONSISTENT_TOPIC_ID)  # of a session that knows the topic which had the name before
    return LogRead(node.topics.log(topic, index), index, wanted, committed_only=committed_only)


async def _read_all(
    reads: dict[NamedPartition, PartitionRead], max_bytes: int
) -> tuple[list[tuple[NamedPartition, FetchedPartition]], int]:
    """Records of all partitions, in their order, until `max_bytes`; at least one batch of the first. Partitions that do
    not exist come last, as in Kafka. With it the bytes of all records."""
    answers = []
    size = 0
    slices = slices_begun()
    for partition, read in sorted(reads.items(), key=_is_nobodys):
        answer = read.read(max_bytes - size if size < max_bytes else 0, at_least_one=not size)
        if not isinstance(answer, FetchedPartition):
            answer = await answer
        size += len(answer.records)
        answers.append((partition, answer))
        if perf_counter() > slices.until:
            await slices.next()
    return answers, size


def _is_nobodys(one: tuple[NamedPartition, PartitionRead]) -> bool:
    return one[1].code in NOBODYS


async def _count(reads: dict[NamedPartition, PartitionRead]) -> _Counted:
    available, at_once, existing, has_error = 0, 0, 0, False
    slices = slices_begun()
    for read in reads.values():
        there = read.available
        if there:
            available += there
            at_once += min(there, READ_BYTES)
        # As in Apache Kafka, what does not exist is left out: a consumer waits for the other topics.
        code = read.code
        if code not in NOBODYS:
            existing += 1
            has_error = has_error or code != codes.NONE
        if perf_counter() > slices.until:
            await slices.next()
    return _Counted(available, at_once, existing, has_error)


def _by_topic(
    answers: Sequence[tuple[NamedPartition, FetchedPartition]],
) -> list[tuple[NamedTopic, list[FetchedPartition]]]:
    """Neighbours of one topic together."""
    topics: list[tuple[NamedTopic, list[FetchedPartition]]] = []
    for (topic, _), answer in answers:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(answer)
    return topics


async def _wait(
    listeners: Sequence[set[Callable[[int], None]]],
    reads: dict[NamedPartition, PartitionRead],
    needed: int,
    deadline: float,
) -> bool:
    """Until so many bytes are there, or may be: whether they are."""
    loop = asyncio.get_running_loop()
    if loop.time() >= deadline:
        return False
    arrival = _Arrival(needed)
    timeout = loop.call_at(deadline, arrival, 0)
    for each in listeners:
        each.add(arrival)
    try:
        # Once more, now that it listens: what came while others had their turn would wake nobody.
        arrival.count((await _count(reads)).available)
        return await arrival.is_enough
    finally:
        timeout.cancel()
        for each in listeners:
            each.discard(arrival)


# --- the response ---

_FETCHED = struct.Struct(">ihqq")
_WITHOUT_RECORDS = struct.Struct(">ihqqqbibb")
"""From version 12 on, of a partition with nothing else to tell."""
_ABORTED = struct.Struct(">qq")
_NO_PREFERRED_REPLICA = int32(-1)
_DIVERGING_EPOCH, _CURRENT_LEADER, _NODE_ENDPOINTS = 0, 1, 0
"""Tags: two of a partition, and one of the answer."""


class Leader(NamedTuple):
    """Of every partition."""

    node_id: int
    host: str
    port: int

    def current(self, leader_epoch: int) -> bytes:
        return int32(self.node_id) + int32(leader_epoch) + EMPTY_TAGS

    @property
    def endpoint(self) -> bytes:
        """Without a rack."""
        where = compact_string(self.host) + int32(self.port) + compact_string(None)
        return int32(self.node_id) + where + EMPTY_TAGS


def encode(
    version: int,
    topics: Sequence[tuple[NamedTopic, Sequence[FetchedPartition]]],
    *,
    error_code: int = codes.NONE,
    session_id: int = NO_SESSION,
    leader: Leader,
) -> list[bytes]:
    """The response's body, in parts: record bytes are not copied before the frame is joined."""
    is_flexible = version >= FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else string
    write_length = compact_array_length if is_flexible else array_length
    tags = EMPTY_TAGS if is_flexible else b""
    null_array = b"\0" if is_flexible else b"\xff\xff\xff\xff"
    tells_leader = False
    parts = [int32(0)]
    if version >= _SESSION_VERSION:
        parts += (int16(error_code), int32(session_id))
    parts.append(write_length(len(topics)))
    for name, partitions in topics:
        parts += (name.bytes if isinstance(name, UUID) else write_string(name), write_length(len(partitions)))
        for partition in partitions:
            index, error, watermark, start, records, stable, aborted, leader_epoch, diverging = partition
            if is_flexible and not records and aborted is None and diverging is None and error == codes.NONE:
                parts.append(_WITHOUT_RECORDS.pack(index, error, watermark, stable, start, 0, -1, 1, 0))
                continue
            parts.append(_FETCHED.pack(index, error, watermark, stable))
            if version >= 5:
                parts.append(int64(start))
            if aborted is None:
                parts.append(null_array)
            else:
                parts.append(write_length(len(aborted)))
                parts += [_ABORTED.pack(*one) + tags for one in aborted]
            if version >= 11:
                parts.append(_NO_PREFERRED_REPLICA)
            size = len(records)
            parts += (unsigned_varint(size + 1) if is_flexible else int32(size), records)
            is_told = error == codes.FENCED_LEADER_EPOCH and version >= _LEADER_VERSION
            if is_told:
                parts.append(tagged({_CURRENT_LEADER: leader.current(leader_epoch)}))
            elif diverging is not None and is_flexible:
                parts.append(tagged({_DIVERGING_EPOCH: int32(diverging[0]) + int64(diverging[1]) + EMPTY_TAGS}))
            else:
                parts.append(tags)
            tells_leader = tells_leader or is_told
        parts.append(tags)
    parts.append(tagged({_NODE_ENDPOINTS: compact_array_length(1) + leader.endpoint}) if tells_leader else tags)
    return parts
