"""Commits and fetches: from a request's columns to the journal and the store.

A commit is checked, becomes one batch, and enters the store in the moment in which that batch is durable; the answer
leaves after that. So commits of a group take effect in the order in which they came, readers see each whole or not at
all, and what was answered is on disk. Offsets of a transaction wait beside the store until its marker is durable.
"""

from __future__ import annotations

import functools
from array import array
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import (
    MAX_STRING_BYTES,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    OffsetKey,
    Records,
    TopicCommit,
    encode_commit,
    encode_known,
    encode_record,
    encode_records,
)
from keylane.coordinator.journal.journal import BatchTooLargeError
from keylane.coordinator.offsets.store import NO_OFFSET, FetchedColumns, nothing_committed
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.batches import CONTROL_MASK, TRANSACTIONAL_MASK
from keylane.wire.columns import is_run
from keylane.wire.conditional_commit import CONDITION_FAILED
from keylane.wire.control import marker_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keylane.coordinator.journal.journal import Done, Journal
    from keylane.coordinator.offsets.store import OffsetStore
    from keylane.coordinator.offsets.transactional import Owner, TransactionalOffsets
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.coordinator.transactions.transactional_ids import Producer
    from keylane.storage.shared_sync import Round

MIN_RECORD_BYTES = 40
"""Of an offset's record: its key has two lengths and a partition, its value 24 bytes."""
ALL_ACCEPTED: Sequence[Sequence[int] | None] = (None,)
"""The errors of a commit of one topic that has none."""


class CommitRequest(NamedTuple):
    group: str
    topics: Sequence[TopicCommit]
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    retention_ms: int = -1
    """How long the offsets are to be kept (OffsetCommit 2 to 4); -1 for the broker's own rule."""
    has_member_epochs: bool = True
    """Whether the request's version knows member epochs (OffsetCommit 9, KIP-848)."""


class KnownCommit(NamedTuple):
    """What stays the same when a member commits one partition, without metadata, again and again."""

    request: CommitRequest
    """One of them."""
    topic: str
    partition: int
    offsets_partition: int
    record_head: bytes
    """The record up to its offset."""


class CommitResult(NamedTuple):
    """`errors` has, for each topic of the request, one code a partition, or None when all are accepted."""

    errors: Sequence[Sequence[int] | None]
    durable: Round | None
    """Await it before answering; raises `StorageError`. None when nothing was accepted."""


class ConditionalResult(NamedTuple):
    """What became of a conditional commit."""

    error: int
    """NONE: all is committed once `durable` is over well. Else nothing is: CONDITION_FAILED, or a partition's error."""
    errors: Sequence[Sequence[int]]
    """For each topic of the request, one code a partition."""
    current: Sequence[Sequence[int]]
    """The offsets when the condition was looked at; -1 for none."""
    durable: Round | None
    """Wait for it before answering, whatever the answer: it rests on what becomes durable with this round."""


class FetchedTopic(NamedTuple):
    topic: str
    columns: FetchedColumns
    errors: Sequence[int] | None
    """One code a partition; None when there is none."""


def nothing_fetched(topic: str, partitions: Sequence[int], error: int = codes.NONE) -> FetchedTopic:
    """No offset of any of them; with an error, for each."""
    errors = None if error == codes.NONE else [error] * len(partitions)
    return FetchedTopic(topic, nothing_committed(partitions), errors)


class PendingChanges:
    """What is appended and not durable yet, in order: the state that the next decision has to reckon with.

    Fetches see what is durable (`OffsetStore`). Whether a conditional commit holds, and whether an offset is stale, is
    decided on what will be there once everything before it is durable: the store, and over it these changes.

    One entry an append, first in first out, as the journal reports them. An offset of -1 is a tombstone.
    """

    def __init__(self) -> None:
        self._changes: deque[tuple[str, Sequence[TopicCommit], Round]] = deque()

    def add(self, group: str, topics: Sequence[TopicCommit], durable: Round) -> None:
        """This was appended, and becomes durable with this round."""
        self._changes.append((group, topics, durable))

    def settle(self) -> None:
        """The oldest one is durable, or never will be."""
        self._changes.popleft()

    def groups(self) -> set[str]:
        """Groups that something waits for."""
        return {group for group, _, _ in self._changes}

    def round_of(self, group: str) -> Round | None:
        """With which all that waits for this group becomes durable; None when nothing does."""
        return next((durable for owner, _, durable in reversed(self._changes) if owner == group), None)

    def commits_of(self, group: str) -> Iterator[TopicCommit]:
        """What waits for this group, the oldest first."""
        for owner, topics, _ in self._changes:
            if owner == group:
                yield from topics

    def offset_of(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that this partition will have; None when nothing of it waits."""
        for owner, topics, _ in reversed(self._changes):
            if owner != group:
                continue
            for commit in reversed(topics):
                if commit.topic == topic and partition in commit.partitions:
                    last = len(commit.partitions) - 1 - list(reversed(commit.partitions)).index(partition)
                    return commit.offsets[last]
        return None


def removal(topic: str, partitions: Sequence[int]) -> TopicCommit:
    """Tombstones as a change."""
    none = [NO_OFFSET] * len(partitions)
    return TopicCommit(topic, partitions, none, none, None)


class OffsetService:
    """Commits and fetches over one store and one journal."""

    def __init__(
        self,
        store: OffsetStore,
        transactional: TransactionalOffsets,
        journal: Journal,
        options: CoordinatorOptions,
        partition_count: Callable[[str], int | None],
        clock: Callable[[], int],
    ) -> None:
        self.store = store
        self.transactional = transactional
        self.pending = PendingChanges()
        self._journal = journal
        self._options = options
        self._partition_count = partition_count
        self._clock = clock

    def commit(self, partition: int, request: CommitRequest, producer: Producer | None = None) -> int | CommitResult:
        """Append one commit of a member that may commit; with `producer`, as a part of its transaction. An error code,
        when the whole request is refused."""
        topics = request.topics
        if self._is_too_large(topics):
            return codes.INVALID_COMMIT_OFFSET_SIZE
        if len(topics) == 1 and self._check(topics[0]) is None:
            accepted, errors = topics, ALL_ACCEPTED
        else:
            accepted, errors = self._split(topics)
            if not accepted:
                return CommitResult(errors, None)
        durable = self._append(partition, request.group, accepted, request.retention_ms, producer)
        return durable if isinstance(durable, int) else CommitResult(errors, durable)

    def _is_too_large(self, topics: Sequence[TopicCommit]) -> bool:
        """Whether so many offsets are too large for a batch, whatever they are: found before anything is made."""
        most = self._options.message_max_bytes // MIN_RECORD_BYTES
        return len(topics) > most or sum(len(topic.partitions) for topic in topics) > most

    def commit_if(
        self, partition: int, request: CommitRequest, expected: Sequence[Sequence[int]]
    ) -> int | ConditionalResult:
        """Commit all, if every partition's offset is the expected one (-1: none), else nothing. An error code, when the
        whole request is refused.

        The condition is held against what will be there once all that came before is durable; so is the answer.
        """
        group, topics = request.group, request.topics
        names = [(topic.topic, one) for topic in topics for one in topic.partitions]
        if len(set(names)) < len(names):
            return codes.INVALID_REQUEST
        current = [[self._current(group, topic.topic, one) for one in topic.partitions] for topic in topics]
        _, errors = self._split(topics)
        refused = next((code for row in errors for code in row or () if code != codes.NONE), codes.NONE)
        if refused == codes.NONE and all(map(_are_equal, current, expected)):
            durable = self._append(partition, group, topics, request.retention_ms)
            if isinstance(durable, int):
                return durable
            return ConditionalResult(codes.NONE, [[codes.NONE] * len(row) for row in current], current, durable)
        rows = [
            [
                error or (codes.NONE if now == then else CONDITION_FAILED)
                for error, now, then in zip(row or [codes.NONE] * len(have), have, want, strict=True)
            ]
            for row, have, want in zip(errors, current, expected, strict=True)
        ]
        try:
            durable = self._journal.confirm() or self.pending.round_of(group)
        except StorageError as error:
            return error.code
        return ConditionalResult(refused or CONDITION_FAILED, rows, current, durable)

    def _current(self, group: str, topic: str, partition: int) -> int:
        """The offset that this partition has once everything so far is durable; -1 for none."""
        waiting = self.pending.offset_of(group, topic, partition)
        if waiting is not None:
            return waiting
        found = self.store.get(group, topic, partition)
        return NO_OFFSET if found is None else found.offset

    def _append(
        self,
        partition: int,
        group: str,
        accepted: Sequence[TopicCommit],
        retention_ms: int,
        producer: Producer | None = None,
    ) -> int | Round | None:
        """One batch, or an error code; None for topics without a partition."""
        now = self._clock()
        expires = now + retention_ms if retention_ms >= 0 else NO_TIMESTAMP
        records = encode_commit(group, accepted, now, expires)
        if records.record_count == 0:
            return None
        if producer is None:
            done: Done = functools.partial(self._committed, group, accepted, now, expires)
            return self._append_records(partition, group, accepted, records, done)
        records = records._replace(
            attributes=TRANSACTIONAL_MASK, producer_id=producer.producer_id, producer_epoch=producer.epoch
        )
        owner = partition, producer.producer_id
        done = functools.partial(self._committed_in_transaction, owner, group, accepted, now)
        return self._append_batch(partition, records, done)

    def commit_known(self, known: KnownCommit, offset: int, leader_epoch: int) -> Round | None:
        """Append a commit like one before, of a member that may commit; None when something is in its way."""
        request, topic, partition, offsets_partition, head = known
        if partition >= (self._partition_count(topic) or 0):
            return None
        now = self._clock()
        records = encode_known(head, offset, leader_epoch, now)
        accepted = (TopicCommit(topic, (partition,), (offset,), (leader_epoch,), None),)
        done = functools.partial(self._committed_one, request.group, topic, partition, offset, leader_epoch, now)
        durable = self._append_records(offsets_partition, request.group, accepted, records, done)
        return None if isinstance(durable, int) else durable

    def _append_records(
        self, partition: int, group: str, accepted: Sequence[TopicCommit], records: Records, done: Done
    ) -> int | Round:
        """What counts as pending until it is durable; `done` settles it."""
        durable = self._append_batch(partition, records, done)
        if not isinstance(durable, int):
            self.pending.add(group, accepted, durable)
        return durable

    def _append_batch(self, partition: int, records: Records, done: Done) -> int | Round:
        try:
            return self._journal.append(partition, records, done)
        except BatchTooLargeError:
            return codes.INVALID_COMMIT_OFFSET_SIZE
        except StorageError as error:
            return error.code

    def _committed_one(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        leader_epoch: int,
        now: int,
        failure: StorageError | None,
        base_offset: int,
    ) -> None:
        self.pending.settle()
        if failure is None:
            self.store.put_plain(group, topic, partition, offset, leader_epoch, now, base_offset)

    def _committed(
        self,
        group: str,
        accepted: Sequence[TopicCommit],
        now: int,
        expires: int,
        failure: StorageError | None,
        base_offset: int,
    ) -> None:
        self.pending.settle()
        if failure is None:
            self.store.apply(group, accepted, base_offset, now, expires)

    def _committed_in_transaction(
        self,
        owner: Owner,
        group: str,
        accepted: Sequence[TopicCommit],
        now: int,
        failure: StorageError | None,
        base_offset: int,
    ) -> None:
        if failure is None:
            self.transactional.put_commit(owner, group, accepted, base_offset, now)

    def end_transaction(self, partition: int, producer: Producer, *, committed: bool) -> Round:
        """Append the marker that ends a producer's transaction in this offsets partition. Raises `StorageError`."""
        owner = (partition, producer.producer_id)
        rows = list(self.transactional.of(owner)) if committed else []
        record = encode_record(0, *marker_record(committed=committed))
        records = Records(record, 1, self._clock(), (), TRANSACTIONAL_MASK | CONTROL_MASK, *producer)

        def done(failure: StorageError | None, _base_offset: int) -> None:
            for _ in rows:
                self.pending.settle()
            if failure is None:
                self.transactional.end(owner, self.store, committed=committed)

        durable = self._journal.append(partition, records, done)
        for (group, topic, index), (_, value) in rows:
            self.pending.add(group, [TopicCommit(topic, [index], [value[0]], [value[1]], None)], durable)
        return durable

    def has(self, group: str) -> bool:
        """Whether the group has offsets, or will have once everything so far is durable."""
        return group in self.store or group in self.pending.groups()

    def partitions_of(self, group: str) -> dict[str, set[int]]:
        """What the group has, or will have once everything so far is durable, by topic."""
        known: dict[str, set[int]] = {topic: set(found) for topic, found in self.store.partitions_of(group)}
        for topic, partition in self.transactional.partitions_of(group):
            known.setdefault(topic, set()).add(partition)
        for commit in self.pending.commits_of(group):
            known.setdefault(commit.topic, set()).update(commit.partitions)
        return known

    def remove(self, partition: int, names: Sequence[OffsetKey], keys: Sequence[bytes], done: Done) -> Round:
        """Append one batch of tombstones with these keys, which end these offsets and whatever else `done` sees to.
        Raises `StorageError`."""
        removed = [
            (group, removal(topic, [one.partition for one in rows]))
            for (group, topic), rows in groupby(names, key=lambda one: one[:2])
        ]

        def over(failure: StorageError | None, base_offset: int) -> None:
            for _ in removed:
                self.pending.settle()
            if failure is None:
                for name in names:
                    self.store.remove(*name)
                    self.transactional.remove(*name)
            done(failure, base_offset)

        durable = self._journal.append(partition, encode_records([(key, None) for key in keys], self._clock()), over)
        for group, change in removed:
            self.pending.add(group, [change], durable)
        return durable

    def fetch(
        self, group: str, topics: Sequence[tuple[str, Sequence[int]]] | None, *, require_stable: bool = False
    ) -> Sequence[FetchedTopic]:
        """What is committed and durable: of these partitions, or (None) of all that the group has. With
        `require_stable`, an offset that an open transaction may change is refused (KIP-447)."""
        if topics is None:
            found = [FetchedTopic(topic, columns, None) for topic, columns in self.store.fetch_all(group)]
        else:
            found = [self._fetch_topic(group, topic, partitions) for topic, partitions in topics]
        if require_stable and self.transactional:
            return [self._stable(group, one) for one in found]
        return found

    def _stable(self, group: str, found: FetchedTopic) -> FetchedTopic:
        topic, (partitions, offsets, epochs, metadata), errors = found
        waiting = [self.transactional.is_waiting(group, topic, one) for one in partitions]
        if not any(waiting):
            return found
        columns = FetchedColumns(
            partitions,
            [NO_OFFSET if waits else one for one, waits in zip(offsets, waiting, strict=True)],
            [NO_LEADER_EPOCH if waits else one for one, waits in zip(epochs, waiting, strict=True)],
            metadata and ["" if waits else one for one, waits in zip(metadata, waiting, strict=True)],
        )
        before = errors or [codes.NONE] * len(partitions)
        after = [codes.UNSTABLE_OFFSET_COMMIT if waits else one for one, waits in zip(before, waiting, strict=True)]
        return FetchedTopic(topic, columns, after)

    def _split(self, topics: Sequence[TopicCommit]) -> tuple[Sequence[TopicCommit], Sequence[Sequence[int] | None]]:
        """What may be committed, and for each topic what may not."""
        accepted: list[TopicCommit] = []
        errors: list[Sequence[int] | None] = []
        for commit in topics:
            refused = self._check(commit)
            errors.append(refused)
            if refused is None:
                accepted.append(commit)
            elif codes.NONE in refused:
                accepted.append(_without(commit, refused))
        return accepted, errors

    def _check(self, commit: TopicCommit) -> list[int] | None:
        count = self._partition_count(commit.topic) or 0
        partitions = commit.partitions
        if commit.metadata is None and _are_within(count, partitions):
            return None
        limit = self._options.offset_metadata_max_bytes
        metadata = commit.metadata or ("",) * len(partitions)
        refused = [
            codes.UNKNOWN_TOPIC_OR_PARTITION
            if not 0 <= partition < count
            else codes.OFFSET_METADATA_TOO_LARGE
            if _is_too_large(text, limit)
            else codes.NONE
            for partition, text in zip(partitions, metadata, strict=True)
        ]
        return refused if any(refused) else None

    def _fetch_topic(self, group: str, topic: str, partitions: Sequence[int]) -> FetchedTopic:
        columns = self.store.fetch(group, topic, partitions)
        count = self._partition_count(topic) or 0
        if _are_within(count, partitions):
            return FetchedTopic(topic, columns, None)
        # What does not exist has offset -1 and its error (S1), where Apache Kafka today has none: "not committed yet"
        # and "no such partition" are told apart. librdkafka hands it on at once, for that partition alone.
        errors = [codes.NONE if 0 <= p < count else codes.UNKNOWN_TOPIC_OR_PARTITION for p in partitions]
        return FetchedTopic(topic, columns, errors)


def _are_within(count: int, partitions: Sequence[int]) -> bool:
    """Whether a topic of `count` partitions has all of these."""
    if not partitions:
        return True
    if len(partitions) == 1 or (isinstance(partitions, array) and is_run(partitions)):
        return partitions[0] >= 0 and partitions[-1] < count
    return min(partitions) >= 0 and max(partitions) < count


def _are_equal(current: Sequence[int], expected: Sequence[int]) -> bool:
    return list(current) == list(expected)


def _without(commit: TopicCommit, errors: Sequence[int]) -> TopicCommit:
    """The rows of `commit` that have no error."""
    rows = [row for row, error in enumerate(errors) if error == codes.NONE]
    return TopicCommit(
        commit.topic,
        [commit.partitions[row] for row in rows],
        [commit.offsets[row] for row in rows],
        [commit.leader_epochs[row] for row in rows],
        None if commit.metadata is None else [commit.metadata[row] for row in rows],
    )


def _is_too_large(metadata: str, limit: int) -> bool:
    """Kafka counts UTF-16 units; and no record holds a string of more than 32,767 bytes."""
    if metadata.isascii():
        return len(metadata) > min(limit, MAX_STRING_BYTES)
    return len(metadata.encode("utf-16-le")) // 2 > limit or len(metadata.encode()) > MAX_STRING_BYTES
