"""What a store of processing details is: the protocol behind `delivery=ExactlyOnce(...)`, for stores of one's own.

The idea: the handler's effects and the record's identity are in one database transaction, so that both are there or
neither. A store only keeps what it is given; when to ask, to skip and to purge is decided by
`keylane.delivery.exactly_once`. `keylane.testing.StoreContract` has the tests that every store must pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager


class Identity(NamedTuple):
    """What a record is known by: its place, or a key that the user's function took from it."""

    scope: str
    """Cluster and group; of a place, the topic and its id as well."""
    partition: int
    """-1 with a key."""
    offset: int
    """-1 with a key."""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Processed:
    """A record that was processed before."""

    outputs: bytes = b""
    """What was kept with it; empty when there was nothing, or it is purged."""
    checksum: int | None = None
    """Of the record that was processed there; None where none was kept, or it is purged."""


class Position(NamedTuple):
    """How far the group was with a partition, by the last commit that the store was told of before it was sent."""

    base: int
    offset_map: str = ""
    """As in the metadata of the commit."""
    leader_epoch: int = -1
    """Of the log that it was true of: the commit's, or a later one; -1 where nobody knows."""


class Transaction(Protocol):
    """An open transaction. Its owner is one thread."""

    @property
    def connection(self) -> Any:
        """What the handler gets as `context.transaction`."""

    def is_open(self) -> bool:
        """False when the handler has committed or rolled back by itself."""

    def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        """Note that these records are processed by this transaction, each with its checksum. Returns what is known of
        those that were processed before, or whose offset is below what was purged; of them nothing is noted. Records
        come in one order, so that two transactions that claim the same ones do not wait for each other.

        While another transaction that has claimed one of them is open, this waits for its end, or raises.
        """

    def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        """Keep these, of any length, with identities that were claimed in this transaction: whoever claims one later
        gets the same bytes."""

    def purged_below(self, scope: str, partition: int) -> int:
        """The offset below which identities were purged; 0 when none was."""

    def purge(self, scope: str, partition: int, below: int, samples: int = 0) -> None:
        """Forget the places below this offset, and remember that. Up to so many of them may stay without their
        outputs, by which `keylane store check` knows the log again."""

    def purge_before(self, scope: str, before_ms: int) -> None:
        """Forget what was processed before this time, in milliseconds since the epoch: keys and places. Nothing is
        remembered of it."""

    def position(self, scope: str, partition: int) -> Position | None:
        """What `note_position` has noted last. Nobody else changes it before this transaction has ended."""

    def note_position(self, scope: str, partition: int, position: Position) -> None: ...

    def places(self, scope: str, partition: int, begin: int = 0) -> Mapping[int, int | None]:
        """The offsets, from `begin` on, of the places that are kept, with their checksums."""

    def count_places(self, scope: str, partition: int, runs: Sequence[tuple[int, int]]) -> int:
        """How many places are kept in these runs (begin, end), which do not overlap."""

    def count_keys(self, scope: str, keys: Collection[str]) -> int:
        """How many of these keys, each of which is given once, are kept."""

    def has_unchecked(self, scope: str) -> bool:
        """Whether anything is kept under this scope without a checksum."""

    def scopes(self) -> Collection[str]:
        """All that a position, or a purge, was noted under."""


class OpenStore(Protocol):
    """Connections to a store. Thread safety: any thread."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begins a transaction, which commits when the block ends, and rolls back when it raises."""

    def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        """Those of them that were processed, as far as committed transactions say. Waits for nobody."""

    def close(self) -> None: ...


class AsyncTransaction(Protocol):
    """The same for coroutines; keeping house is left to `Transaction`."""

    @property
    def connection(self) -> Any:
        """Asked for once `claim_all` has returned."""

    def is_open(self) -> bool: ...
    async def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]: ...
    async def keep_all(self, outputs: Mapping[Identity, bytes]) -> None: ...


class OpenAsyncStore(Protocol):
    """Connections of one asyncio loop."""

    def transaction(self) -> AbstractAsyncContextManager[AsyncTransaction]: ...
    async def find(self, identities: Collection[Identity]) -> Collection[Identity]: ...
    async def close(self) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Where processing details are kept: a value that can be pickled, and connects when it is opened.

    `open` and `open_async` make what is missing (tables). Handlers that are coroutine functions need `open_async`; a
    store without it is refused for them.
    """

    def open(self) -> OpenStore: ...


@runtime_checkable
class AsyncStore(Store, Protocol):
    """A store for coroutine functions as well."""

    async def open_async(self) -> OpenAsyncStore: ...
