"""A store of one's own: in memory, for tests of handlers. It forgets when the process ends."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from keylane.delivery import Identity, Position, Processed


class Rows(list[object]):
    """What handlers get as `context.transaction`, and append their effects to."""

    is_open = True

    def rollback(self) -> None:
        self.is_open = False


class MemoryStore:
    def __init__(self) -> None:
        self.rows, self.done = Rows(), dict[Identity, Processed]()
        self.below, self.positions = dict[tuple[str, int], int](), dict[tuple[str, int], Position]()
        self._lock = threading.Lock()

    def open(self) -> "MemoryStore":
        return self

    def close(self) -> None:
        """Nothing is open."""

    def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        return [one for one in identities if one in self.done]

    @contextmanager
    def transaction(self) -> Iterator["MemoryTransaction"]:
        with self._lock:
            begun = MemoryTransaction(self)
            yield begun  # what raises here leaves everything as it was
            self.rows, self.done, self.below = begun.connection, begun.done, begun.below
            self.positions = begun.positions


class MemoryTransaction:
    def __init__(self, store: MemoryStore) -> None:
        self.connection, self.done, self.below = Rows(store.rows), dict(store.done), dict(store.below)
        self.positions = dict(store.positions)

    def is_open(self) -> bool:
        return self.connection.is_open

    def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        processed = {one: self.done.get(one, Processed()) for one in checksums if self._is_processed(one)}
        self.done |= {one: Processed(b"", checksum) for one, checksum in checksums.items() if one not in processed}
        return processed

    def _is_processed(self, one: Identity) -> bool:
        return one in self.done or 0 <= one.offset < self.purged_below(one.scope, one.partition)

    def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        self.done |= {one: Processed(kept, self.done[one].checksum) for one, kept in outputs.items()}

    def purged_below(self, scope: str, partition: int) -> int:
        return self.below.get((scope, partition), 0)

    def purge(self, scope: str, partition: int, below: int, samples: int = 0) -> None:
        del samples  # none stays
        self.below[scope, partition] = max(below, self.purged_below(scope, partition))
        for one in [one for one in self.done if one[:2] == (scope, partition) and one.offset < below]:
            del self.done[one]

    def purge_before(self, scope: str, before_ms: int) -> None:
        """Keys stay as long as the process."""

    def position(self, scope: str, partition: int) -> Position | None:
        return self.positions.get((scope, partition))

    def note_position(self, scope: str, partition: int, position: Position) -> None:
        self.positions[scope, partition] = position

    def places(self, scope: str, partition: int, begin: int = 0) -> Mapping[int, int | None]:
        found = {one.offset: self.done[one].checksum for one in self.done if one[:2] == (scope, partition)}
        return {offset: checksum for offset, checksum in found.items() if offset >= begin}

    def count_places(self, scope: str, partition: int, runs: Sequence[tuple[int, int]]) -> int:
        return sum(begin <= offset < end for offset in self.places(scope, partition) for begin, end in runs)

    def count_keys(self, scope: str, keys: Collection[str]) -> int:
        return sum(Identity(scope, -1, -1, key) in self.done for key in keys)

    def has_unchecked(self, scope: str) -> bool:
        return any(one.scope == scope and found.checksum is None for one, found in self.done.items())

    def scopes(self) -> Collection[str]:
        return {scope for scope, _ in (*self.positions, *self.below)}
