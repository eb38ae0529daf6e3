"""What a transaction of `PostgresStore` begins with: commands of libpq that travel together, and their answers.

The idea: a claim is bytes that go to statements which the connection has prepared, and what comes back is looked at
only where the server did not claim all. Generators wait as psycopg's own do: `connection.wait` runs them, on a thread
or on an asyncio loop.
"""

from __future__ import annotations

import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import DataError, Pipeline
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.waiting import Wait

from keylane.delivery.stores import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence

    Waiting = Generator[Wait, Any, list[Any]]
    """What `connection.wait` runs."""
    Command = tuple[bytes, Sequence[bytes | None]]
    """A statement's name, and what it is given."""

CLAIMED = "ON CONFLICT DO NOTHING RETURNING scope, part, at, key"
CLAIM_ONE = (
    "INSERT INTO keylane_processed (scope, part, at, key, done_ms, checksum) "
    f"VALUES ($1::text, $2::int, $3::bigint, $4::text, $5::bigint, $6::bigint) {CLAIMED}"
)
CLAIM_MANY = (
    "INSERT INTO keylane_processed (scope, part, at, key, done_ms, checksum) "
    "SELECT ($1::text[])[name], ($2::int[])[name], at, key, $3::bigint, checksum "
    "FROM unnest($4::int[], $5::bigint[], $6::text[], $7::bigint[]) AS given (name, at, key, checksum) "
    f"{CLAIMED}"
)
"""Each partition is sent once, with its scope, and `name` counts them from 1."""
PURGED_ONE = "SELECT scope, part, below FROM keylane_purged WHERE scope = $1::text AND part = $2::int"
PURGED_MANY = (
    "SELECT scope, part, below FROM keylane_purged WHERE (scope, part) IN (SELECT * FROM unnest($1::text[], $2::int[]))"
)
LOCKED = " FOR SHARE OF keylane_purged"
"""Of `PURGED_…` where statements of a transaction share one snapshot: a mark that is newer than that is an error."""

FAILED = ExecStatus.FATAL_ERROR
SYNCHRONIZED = ExecStatus.PIPELINE_SYNC


class Server(NamedTuple):
    """What was learnt of the server when the store was opened."""

    settings: dict[str, Any]
    """For each connection."""
    is_pooled: bool
    """Whether connections go through a pooler that keeps no settings of a session (PgBouncer)."""
    shares_snapshot: bool
    """Whether statements of a transaction share one (repeatable read, serializable)."""
    idle_timeout_ms: int

    @property
    def statements(self) -> dict[bytes, bytes]:
        """What transactions begin with, by name."""
        locked = LOCKED if self.shares_snapshot else ""
        texts = {
            "keylane_begin": "BEGIN",
            "keylane_limit": f"SET LOCAL idle_in_transaction_session_timeout = {self.idle_timeout_ms}",
            "keylane_claim_one": CLAIM_ONE,
            "keylane_claim_many": CLAIM_MANY,
            "keylane_purged_one": PURGED_ONE + locked,
            "keylane_purged_many": PURGED_MANY + locked,
        }
        return {name.encode(): text.encode() for name, text in texts.items()}

    @property
    def begin(self) -> list[Command]:
        """What every transaction begins with."""
        return [(b"keylane_begin", ()), (b"keylane_limit", ())] if self.is_pooled else [(b"keylane_begin", ())]

    def prepare(self, connection: Any) -> Waiting:
        """Make the statements known to a connection, where they stay."""
        statements = {} if self.is_pooled else self.statements
        return in_one_trip(connection, [partial(connection.pgconn.send_prepare, *one) for one in statements.items()])


class Claim:
    """Identities, as they are claimed, with the answers to it."""

    def __init__(self, checksums: Mapping[Identity, int | None], encoding: str) -> None:
        """In the client encoding of the connection. Raises `DataError` for a text that PostgreSQL cannot hold."""
        self._encoding = encoding
        self._identities: Collection[Identity] = checksums
        """Those that were inserted, once the answer is known."""
        now_ms = b"%d" % (time.time_ns() // 1_000_000)
        self.commands = self._one(checksums, now_ms) if len(checksums) == 1 else self._many(checksums, now_ms)

    def _one(self, checksums: Mapping[Identity, int | None], now_ms: bytes) -> list[Command]:
        ((one, checksum),) = checksums.items()
        scope, partition, offset = self._bytes(one.scope), b"%d" % one.partition, b"%d" % one.offset
        kept = None if checksum is None else b"%d" % checksum
        claim = b"keylane_claim_one", (scope, partition, offset, self._bytes(one.key), now_ms, kept)
        return [claim, (b"keylane_purged_one", (scope, partition))] if one.offset >= 0 else [claim]

    def _many(self, checksums: Mapping[Identity, int | None], now_ms: bytes) -> list[Command]:
        names: dict[tuple[str, int], bytes] = {}
        has_places = False
        given: list[bytes] = []
        offsets: list[bytes] = []
        for one in checksums:
            name = one[:2]
            if name not in names:
                names[name] = b"%d" % (len(names) + 1)
                has_places |= one.offset >= 0
            given.append(names[name])
            offsets.append(b"%d" % one.offset)
        scopes = _array([self._quoted(scope) for scope, _ in names])
        partitions = _array([b"%d" % partition for _, partition in names])
        keys = _array([self._quoted(one.key) for one in checksums])
        kept = _array([b"NULL" if one is None else b"%d" % one for one in checksums.values()])
        claim = b"keylane_claim_many", (scopes, partitions, now_ms, _array(given), _array(offsets), keys, kept)
        return [claim, (b"keylane_purged_many", (scopes, partitions))] if has_places else [claim]

    def _bytes(self, text: str) -> bytes:
        data = text.encode(self._encoding)
        if b"\0" in data:  # libpq ends it there
            raise DataError(f"PostgreSQL text fields cannot contain NUL (0x00) bytes: {text!r}")
        return data

    def _quoted(self, text: str) -> bytes:
        """As an element of an array."""
        if not text:
            return b'""'
        return b'"%s"' % self._bytes(text).replace(b"\\", b"\\\\").replace(b'"', b'\\"')

    def others(self, claimed: Any) -> list[Identity]:
        """Those that were processed before, by the answer to the claim."""
        if claimed.ntuples == len(self._identities):
            return []
        fresh = {Identity(row[0], int(row[1]), int(row[2]), row[3]) for row in self._rows(claimed)}
        others = [one for one in self._identities if one not in fresh]
        self._identities = fresh
        return others

    def late(self, marks: Any) -> list[Identity]:
        """Of the fresh ones, those that others have processed so long ago that it is purged, by the answer to the look
        at the marks."""
        below = {(row[0], int(row[1])): int(row[2]) for row in self._rows(marks) if row[2] != "0"}
        return [one for one in self._identities if 0 <= one.offset < below.get(one[:2], 0)] if below else []

    def _rows(self, result: Any) -> Iterator[list[str]]:
        """No column of theirs is null."""
        for row in range(result.ntuples):
            yield [result.get_value(row, column).decode(self._encoding) for column in range(result.nfields)]


def _array(elements: Iterable[bytes]) -> bytes:
    return b"{%s}" % b",".join(elements)


def answers(connection: Any, server: Server, commands: Iterable[Command]) -> Waiting:
    """Run statements of `Server.statements`, and return their results."""
    libpq = connection.pgconn
    if server.is_pooled:
        texts = server.statements
        sends = [partial(libpq.send_query_params, texts[name], given) for name, given in commands]
    else:
        sends = [partial(libpq.send_query_prepared, name, given) for name, given in commands]
    try:
        return (yield from in_one_trip(connection, sends))
    except InvalidSqlStatementName:  # a handler has said DEALLOCATE ALL
        yield from server.prepare(connection)
        return (yield from in_one_trip(connection, sends))
    except FeatureNotSupported:  # a table was altered since they were prepared: the pool opens another connection
        libpq.finish()
        raise


def in_one_trip(connection: Any, sends: Sequence[Callable[[], None]]) -> Waiting:
    """Send all of them before the first answer is there. Returns one result for each. Raises what the server says of
    the first that fails; none after that is run."""
    libpq = connection.pgconn
    results: list[Any] = []
    if not has_pipeline():
        for send in sends:
            send()
            results += yield from execute(libpq)
            _check(connection, results[-1])
        return results
    libpq.enter_pipeline_mode()
    for send in sends:
        send()
    libpq.pipeline_sync()
    is_sending = True
    while True:
        is_sending = is_sending and libpq.flush() == 1
        while not libpq.is_busy():
            result = libpq.get_result()  # None between those of two statements
            if result is None:
                continue
            if result.status == SYNCHRONIZED:
                libpq.exit_pipeline_mode()
                for one in results:
                    _check(connection, one)
                return results
            results.append(result)
        yield Wait.RW if is_sending else Wait.R
        libpq.consume_input()


def _check(connection: Any, result: Any) -> None:
    if result.status == FAILED:
        raise error_from_result(result, connection.info.encoding)


@cache
def has_pipeline() -> bool:
    """Whether libpq is of PostgreSQL 14 or later."""
    return bool(Pipeline.is_supported())
