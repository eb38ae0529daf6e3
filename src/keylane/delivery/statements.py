"""The tables of a store in SQL, and what keeping house does with them: the same for SQLite and PostgreSQL.

The idea: both read one dialect, but for types, placeholders and how a claim is made. So housekeeping, which nobody
waits for, is here, once; what a record waits for is in each store's own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from keylane.delivery.stores import Identity, Position

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

TABLES = (
    """CREATE TABLE IF NOT EXISTS keylane_processed (
  scope text NOT NULL, part integer NOT NULL, at {bigint} NOT NULL, key text NOT NULL, done_ms {bigint} NOT NULL,
  outputs {bytes}, checksum {bigint}, PRIMARY KEY (scope, part, at, key)){table_option}""",
    """CREATE TABLE IF NOT EXISTS keylane_purged (
  scope text NOT NULL, part integer NOT NULL, below {bigint} NOT NULL, PRIMARY KEY (scope, part)){table_option}""",
    """CREATE TABLE IF NOT EXISTS keylane_positions (
  scope text NOT NULL, part integer NOT NULL, base {bigint} NOT NULL, offset_map text NOT NULL,
  leader_epoch integer NOT NULL DEFAULT -1, PRIMARY KEY (scope, part)){table_option}""",
)
ADDED = {
    "SELECT checksum FROM keylane_processed LIMIT 0": "ALTER TABLE keylane_processed ADD COLUMN checksum {bigint}",
    "SELECT leader_epoch FROM keylane_positions LIMIT 0": "ALTER TABLE keylane_positions ADD COLUMN leader_epoch "
    "integer NOT NULL DEFAULT -1",
}
"""Columns that tables of before lack, by what fails there: their rows are compared with nothing."""

PROBES = (*ADDED, "SELECT below FROM keylane_purged LIMIT 0")
"""Each fails where its table, or a column of it, is missing."""


def schema_of(dialect: Literal["postgresql", "sqlite"]) -> list[str]:
    """What makes the tables, and brings those of before up to date."""
    if dialect == "sqlite":
        types = {"bigint": "integer", "bytes": "blob", "table_option": " WITHOUT ROWID"}
        return [one.format(**types) for one in TABLES]
    types = {"bigint": "bigint", "bytes": "bytea", "table_option": ""}
    added = [one.replace("COLUMN", "COLUMN IF NOT EXISTS") for one in ADDED.values()]
    return [one.format(**types) for one in (*TABLES, *added)]


OF_ONE = "WHERE scope = %s AND part = %s AND at = %s AND key = %s"
OF_PARTITION = "WHERE scope = %s AND part = %s"


class Rows(Protocol):
    """What a statement returns."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Housekeeping:
    """The statements of `Transaction` that no record waits for; `run` executes one."""

    lock = ""
    """What keeps a row that is read from changing before the transaction ends, in the store's words."""

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        raise NotImplementedError

    def purged_below(self, scope: str, partition: int) -> int:
        found = self.run(f"SELECT below FROM keylane_purged {OF_PARTITION}", (scope, partition)).fetchone()
        return int(found[0]) if found else 0

    def purge(self, scope: str, partition: int, below: int, samples: int = 0) -> None:
        """The last place of each purge stays as a sample."""
        before = self.purged_below(scope, partition)
        if before >= below:
            return
        self.run(
            "INSERT INTO keylane_purged VALUES (%s, %s, %s) ON CONFLICT (scope, part) DO UPDATE SET "
            "below = CASE WHEN excluded.below > keylane_purged.below THEN excluded.below ELSE keylane_purged.below END",
            (scope, partition, below),
        )
        span = f"{OF_PARTITION} AND at >= %s AND at < %s"
        parameters = (scope, partition, before, below)
        if not samples:
            self.run(f"DELETE FROM keylane_processed {span}", parameters)
            return
        last = f"(SELECT max(at) FROM keylane_processed {span})"
        self.run(f"DELETE FROM keylane_processed {span} AND at < {last}", (*parameters, *parameters))
        self.run(f"UPDATE keylane_processed SET outputs = NULL {span} AND outputs IS NOT NULL", parameters)
        found = self.run(
            f"SELECT at FROM keylane_processed {OF_PARTITION} AND at >= 0 AND at < %s ORDER BY at",
            (scope, partition, below),
        ).fetchall()
        if len(found) > samples:  # what is long ago is told less exactly
            self.forget_places(scope, partition, [at for (at,) in found[1 : len(found) // 2 : 2]])

    def purge_before(self, scope: str, before_ms: int) -> None:
        self.run("DELETE FROM keylane_processed WHERE scope = %s AND done_ms < %s", (scope, before_ms))

    def position(self, scope: str, partition: int) -> Position | None:
        found = self.run(
            f"SELECT base, offset_map, leader_epoch FROM keylane_positions {OF_PARTITION}{self.lock}",
            (scope, partition),
        ).fetchone()
        return Position(int(found[0]), found[1], int(found[2])) if found else None

    def note_position(self, scope: str, partition: int, position: Position) -> None:
        self.run(
            "INSERT INTO keylane_positions (scope, part, base, offset_map, leader_epoch) VALUES (%s, %s, %s, %s, %s) "
            "ON CONFLICT (scope, part) DO UPDATE SET "
            "base = excluded.base, offset_map = excluded.offset_map, leader_epoch = excluded.leader_epoch",
            (scope, partition, *position),
        )
        # The mark is there from now on: claims may have to lock what they read of it.
        self.run("INSERT INTO keylane_purged VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (scope, partition))

    def places(self, scope: str, partition: int, begin: int = 0) -> Mapping[int, int | None]:
        found = self.run(
            f"SELECT at, checksum FROM keylane_processed {OF_PARTITION} AND at >= %s", (scope, partition, begin)
        ).fetchall()
        return dict(found)

    def count_places(self, scope: str, partition: int, runs: Sequence[tuple[int, int]]) -> int:
        counted = 0
        for begin, end in runs:
            found = self.run(
                f"SELECT count(*) FROM keylane_processed {OF_PARTITION} AND at >= %s AND at < %s",
                (scope, partition, begin, end),
            ).fetchone()
            counted += int(found[0])
        return counted

    def count_keys(self, scope: str, keys: Collection[str]) -> int:
        select = f"SELECT 1 FROM keylane_processed {OF_ONE}"
        return sum(self.run(select, (scope, -1, -1, key)).fetchone() is not None for key in keys)

    def has_unchecked(self, scope: str) -> bool:
        select = "SELECT 1 FROM keylane_processed WHERE scope = %s AND checksum IS NULL LIMIT 1"
        return self.run(select, (scope,)).fetchone() is not None

    def scopes(self) -> Collection[str]:
        found = self.run("SELECT scope FROM keylane_positions UNION SELECT scope FROM keylane_purged").fetchall()
        return [scope for (scope,) in found]

    # --- for `keylane store` ---

    def partitions(self, scope: str) -> list[int]:
        """Of this scope, those that anything is noted of."""
        found = self.run(
            "SELECT part FROM keylane_positions WHERE scope = %s UNION "
            "SELECT part FROM keylane_purged WHERE scope = %s ORDER BY part",
            (scope, scope),
        ).fetchall()
        return [int(part) for (part,) in found]

    def forget_places(self, scope: str, partition: int, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.run(f"DELETE FROM keylane_processed {OF_ONE}", Identity(scope, partition, offset))

    def lower_purged(self, scope: str, partition: int, below: int) -> None:
        """Nothing counts as purged from here on."""
        self.run(
            f"UPDATE keylane_purged SET below = %s {OF_PARTITION} AND below > %s", (below, scope, partition, below)
        )
