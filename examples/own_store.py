"""A store of one's own: in memory, for tests of handlers. It forgets when the process ends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from keylane.delivery import Identity, Processed


class Rows(list[object]):
    """What handlers get as `context.transaction`, and append their effects to."""

    is_open = True

    def rollback(self) -> None:
        self.is_open = False


class MemoryStore:
    def __init__(self) -> None:
        self.rows, self.done, self.below = Rows(), dict[Identity, bytes](), dict[tuple[str, int], int]()
        self._lock = threading.Lock()

    def open(self) -> "MemoryStore":
        return self

    def close(self) -> None:
        """Nothing is open."""

    @contextmanager
    def transaction(self) -> Iterator["MemoryTransaction"]:
        with self._lock:
            begun = MemoryTransaction(self)
            yield begun  # what raises here leaves everything as it was
            self.rows, self.done, self.below = begun.connection, begun.done, begun.below


class MemoryTransaction:
    def __init__(self, store: MemoryStore) -> None:
        self.connection, self.done, self.below = Rows(store.rows), dict(store.done), dict(store.below)

    def is_open(self) -> bool:
        return self.connection.is_open

    def claim(self, identity: Identity) -> Processed | None:
        if identity in self.done or 0 <= identity.offset < self.purged_below(identity.scope, identity.partition):
            return Processed(self.done.get(identity, b""))
        self.done[identity] = b""
        return None

    def keep(self, identity: Identity, outputs: bytes) -> None:
        self.done[identity] = outputs

    def purged_below(self, scope: str, partition: int) -> int:
        return self.below.get((scope, partition), 0)

    def purge(self, scope: str, partition: int, below: int) -> None:
        self.below[scope, partition] = max(below, self.purged_below(scope, partition))
        for one in [one for one in self.done if one[:2] == (scope, partition) and one.offset < below]:
            del self.done[one]

    def purge_before(self, scope: str, before_ms: int) -> None:
        """Keys stay as long as the process."""
