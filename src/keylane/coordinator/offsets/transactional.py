"""Offsets committed inside open transactions: they wait here by producer, until a marker says what becomes of them.

With a COMMIT marker they enter the store, unless a plain commit that stands behind them in `__consumer_offsets` came
first: the higher record offset wins. With an ABORT marker they are dropped. A tombstone clears them.

Sources: Apache Kafka's `OffsetMetadataManager` (pendingTransactionalOffsets), KIP-447 (unstable offsets).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import OffsetKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keylane.coordinator.formats import TopicCommit
    from keylane.coordinator.offsets.store import OffsetStore

Owner = tuple[int, int]
"""Offsets partition and producer id: what a marker ends."""
Value = tuple[int, int, str, int, int]
"""The fields of an `OffsetValue`."""


class Waiting(NamedTuple):
    """An offset of an open transaction."""

    log_offset: int
    """Of its record in `__consumer_offsets`."""
    value: Value


class TransactionalOffsets:
    """Those that are durable; owned by the event loop, like the store."""

    def __init__(self) -> None:
        self._open: dict[Owner, dict[OffsetKey, Waiting]] = {}
        self.groups: dict[str, set[Owner]] = {}
        """Groups with offsets in open transactions, and which these are; to be looked at."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def put(self, owner: Owner, key: OffsetKey, waiting: Waiting) -> None:
        self._open.setdefault(owner, {})[key] = waiting
        self.groups.setdefault(key.group, set()).add(owner)

    def put_commit(
        self, owner: Owner, group: str, topics: Iterable[TopicCommit], log_offset: int, timestamp_ms: int
    ) -> None:
        """A whole TxnOffsetCommit; `log_offset` is the base offset of its batch."""
        for topic, partitions, offsets, epochs, metadata in topics:
            texts = metadata or ("",) * len(partitions)
            for row in zip(partitions, offsets, epochs, texts, strict=True):
                value = (*row[1:], timestamp_ms, -1)
                self.put(owner, OffsetKey(group, topic, row[0]), Waiting(log_offset, value))
                log_offset += 1

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone."""
        for owner in tuple(self.groups.get(group, ())):
            self._open[owner].pop(OffsetKey(group, topic, partition), None)
            if not any(key.group == group for key in self._open[owner]):
                self._forget(owner, group)

    def end(self, owner: Owner, store: OffsetStore, *, committed: bool) -> None:
        """Apply a marker."""
        rows = self._open.get(owner, {})
        for group in {key.group for key in rows}:
            self._forget(owner, group)
        self._open.pop(owner, None)
        if committed:
            for key, (log_offset, value) in rows.items():
                if log_offset > store.log_offset_of(*key):
                    store.put(*key, value, log_offset)

    def is_waiting(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change this offset."""
        key = OffsetKey(group, topic, partition)
        return any(key in self._open[owner] for owner in self.groups.get(group, ()))

    def of(self, owner: Owner) -> Iterator[tuple[OffsetKey, Waiting]]:
        """What waits for this producer's marker in this offsets partition."""
        yield from self._open.get(owner, {}).items()

    def partitions_of(self, group: str) -> Iterator[tuple[str, int]]:
        """Topic and partition of everything that waits for this group."""
        for owner in self.groups.get(group, ()):
            yield from (key[1:] for key in self._open[owner] if key.group == group)

    def __iter__(self) -> Iterator[tuple[Owner, OffsetKey, Waiting]]:
        for owner, rows in self._open.items():
            for key, waiting in rows.items():
                yield owner, key, waiting

    def _forget(self, owner: Owner, group: str) -> None:
        owners = self.groups[group]
        owners.discard(owner)
        if not owners:
            del self.groups[group]
        if not self._open[owner]:
            del self._open[owner]
