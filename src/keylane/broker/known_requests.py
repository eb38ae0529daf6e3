"""Requests that are like one that was decoded before: `KnownRequests`.

Clients commit and fetch the same partitions again and again; then all of a frame but its correlation id, and an offset,
was decoded before, and most of its answer is known. What is here is the short way for OffsetCommit and OffsetFetch;
what takes none of it is decoded, and goes to its handler (`keylane.broker.handlers`).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker.dispatch import Later
from keylane.broker.handlers import offset_commit, offset_fetch
from keylane.wire import codes
from keylane.wire.encoders_groups import (
    COMMIT_FLEXIBLE_VERSION,
    FETCH_FLEXIBLE_VERSION,
    FETCH_MANY_GROUPS_VERSION,
    CommittedTopic,
    FetchedGroup,
    FetchedOffsets,
    encode_offset_commit,
    encode_offset_fetch,
    encode_one_commit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.broker.dispatch import Api
    from keylane.broker.node import Node
    from keylane.coordinator.formats.commit_batch import KnownCommit
    from keylane.storage.shared_sync import Round
    from keylane.wire.requests import OffsetCommit, OffsetFetch

MAX_BYTES = 32 * 1024 * 1024
ENTRY_BYTES = 500
"""What an entry takes beside its key, about."""
MAX_FETCH_BYTES = 8_192
"""A request for 2,000 partitions."""

_OFFSET_AND_EPOCH = struct.Struct(">qi")


class _Tail(NamedTuple):
    """How a commit of one partition without metadata ends, counted from its end: offset, leader epoch, then only
    lengths that are null or zero, and no tagged fields."""

    start: int
    end: int
    ends: frozenset[bytes]


_COMMIT_TAILS = {
    7: _Tail(-14, -2, frozenset({b"\0\0", b"\xff\xff"})),
    8: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
    9: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
}
_FETCH_TAIL = 9
"""Of an answer for one partition, from version 8 on: no metadata, error, and the group's error and tagged fields."""


class _Commit(NamedTuple):
    """A commit that comes again, and its answer but for the correlation id."""

    commit: KnownCommit
    answer_head: bytes
    answer_rest: bytes


class _Fetch(NamedTuple):
    version: int
    groups: Sequence[OffsetFetch]
    one: _FetchOne | None


class _FetchOne(NamedTuple):
    """A fetch of one partition, and its answer up to the offset and from behind the leader epoch on."""

    group: str
    topic: str
    partition: int
    answer_size: bytes
    answer_head: bytes
    answer_tail: bytes


class KnownRequests:
    """What is remembered of requests, by the bytes that stay the same. Bounded: when it is full, all is forgotten and
    learned anew."""

    def __init__(self, node: Node, apis: dict[int, Api]) -> None:
        """An API is served here only if it has its own handler: another one in its place gets every request."""
        self._node = node
        self._coordinator = node.coordinator
        self._known: dict[bytes, Any] = {}
        self._size = 0
        self._recognise: dict[int, Callable[[bytes], Later | bytes | None]] = {}
        self._remember: dict[int, Callable[[bytes, Any], None]] = {}
        for handler, recognise, remember in (
            (offset_commit, self._recognise_commit, self._remember_commit),
            (offset_fetch, self._recognise_fetch, self._remember_fetch),
        ):
            if apis[handler.API_KEY].begin is handler.begin:
                self._recognise[handler.API_KEY] = recognise
                self._remember[handler.API_KEY] = remember

    def recognise(self, frame: bytes) -> Later | bytes | None:
        """The whole frame of the answer, or `Later` with it; None: the request has to be decoded."""
        recognise = None if frame[0] else self._recognise.get(frame[1])
        return None if recognise is None else recognise(frame)

    def remember(self, frame: bytes, request: Any) -> None:
        """It was decoded, and another one of its form may follow."""
        remember = None if frame[0] else self._remember.get(frame[1])
        if remember is not None:
            remember(frame, request)

    def _keep(self, key: bytes, value: object) -> None:
        if key not in self._known:
            self._size += len(key) + ENTRY_BYTES
        if self._size > MAX_BYTES:
            self._known.clear()
            self._size = len(key) + ENTRY_BYTES
        self._known[key] = value

    # --- OffsetCommit ---

    def _recognise_commit(self, frame: bytes) -> Later | None:
        """A commit of one partition without metadata, of which all but offset and leader epoch came before."""
        tail = _COMMIT_TAILS.get(frame[3])
        if tail is None or frame[tail.end :] not in tail.ends:
            return None
        known: _Commit | None = self._known.get(frame[:4] + frame[8 : tail.start])
        if known is None:
            return None
        offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(frame, len(frame) + tail.start)
        durable = self._coordinator.commit_known(known.commit, offset, leader_epoch)
        return None if durable is None else Later(durable, functools.partial(_committed, known, frame[4:8], durable))

    def _remember_commit(self, frame: bytes, request: OffsetCommit) -> None:
        tail = _COMMIT_TAILS.get(frame[3])
        if tail is None or frame[tail.end :] not in tail.ends or len(request.topics) != 1:
            return
        if len(request.topics[0].partitions) != 1:
            return
        commit = self._coordinator.know(offset_commit.commit_request(request, frame[3]))
        if commit is not None:
            rest = _behind_correlation_id(commit, encode_one_commit(frame[3], commit.topic, commit.partition))
            self._keep(frame[:4] + frame[8 : tail.start], _Commit(commit, (len(rest) + 4).to_bytes(4, "big"), rest))

    # --- OffsetFetch ---

    def _recognise_fetch(self, frame: bytes) -> bytes | None:
        """A request of which every byte but the correlation id came before."""
        if len(frame) > MAX_FETCH_BYTES:
            return None
        known: _Fetch | None = self._known.get(frame[:4] + frame[8:])
        if known is None:
            return None
        if known.one is not None:
            group, topic, partition, size, head, tail = known.one
            found = self._coordinator.fetch_known(group, topic, partition)
            if found is not None:
                return b"".join((size, frame[4:8], head, _OFFSET_AND_EPOCH.pack(*found), tail))
        parts = offset_fetch.answer(known.groups, known.version, self._node)
        if known.version >= FETCH_FLEXIBLE_VERSION:
            parts.insert(0, b"\0")
        body = b"".join(parts)
        return b"".join(((len(body) + 4).to_bytes(4, "big"), frame[4:8], body))

    def _remember_fetch(self, frame: bytes, request: Sequence[OffsetFetch]) -> None:
        if len(frame) <= MAX_FETCH_BYTES:
            self._keep(frame[:4] + frame[8:], _Fetch(frame[3], request, _fetch_one(frame[3], request)))


def _committed(known: _Commit, correlation_id: bytes, durable: Round) -> bytes:
    """The answer, when the commit is durable or has failed."""
    if durable.exception() is None:
        return known.answer_head + correlation_id + known.answer_rest
    commit = known.commit
    row = CommittedTopic(commit.topic, [commit.partition], [codes.KAFKA_STORAGE_ERROR])
    rest = _behind_correlation_id(commit, b"".join(encode_offset_commit(commit.api_version, [row])))
    return (len(rest) + 4).to_bytes(4, "big") + correlation_id + rest


def _behind_correlation_id(commit: KnownCommit, body: bytes) -> bytes:
    return b"\0" + body if commit.api_version >= COMMIT_FLEXIBLE_VERSION else body


def _fetch_one(version: int, request: Sequence[OffsetFetch]) -> _FetchOne | None:
    if version < FETCH_MANY_GROUPS_VERSION or len(request) != 1:
        return None
    group, topics, _ = request[0]
    if topics is None or len(topics) != 1 or len(topics[0][1]) != 1:
        return None
    topic, partitions = topics[0]
    row = FetchedOffsets(topic, partitions, [0], [0], None, None)
    answer = b"\0" + b"".join(encode_offset_fetch(version, [FetchedGroup(group, codes.NONE, [row])]))
    start = len(answer) - _OFFSET_AND_EPOCH.size - _FETCH_TAIL
    size = (len(answer) + 4).to_bytes(4, "big")
    return _FetchOne(group, topic, partitions[0], size, answer[:start], answer[-_FETCH_TAIL:])
