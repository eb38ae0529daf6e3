"""Every store keeps the contract: SQLite, and PostgreSQL where it is installed."""

from __future__ import annotations

import runpy
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from peers.postgres import PostgresServer, find_postgres

from keylane import UsageError
from keylane.delivery import PostgresStore, SqliteStore
from keylane.delivery.transactions import store_of
from keylane.testing.stores import StoreContract

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


class TestSqlite(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> SqliteStore:
        return SqliteStore(str(tmp_path / "effects.db"))


def test_a_sqlite_file_that_another_program_writes_to_is_waited_for(tmp_path: Path) -> None:
    """One in SQLite's own journal mode, which refuses at once who would change that."""
    path = str(tmp_path / "effects.db")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE effects (number INTEGER)")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO effects VALUES (1)")
        end = threading.Timer(0.3, other.execute, ["COMMIT"])
        end.start()
        opened = SqliteStore(path).open()
        end.join()
        with opened.transaction() as transaction:
            assert transaction.connection.execute("SELECT number FROM effects").fetchall() == [(1,)]
        opened.close()


def test_a_sqlite_file_that_stays_busy_is_given_up(tmp_path: Path) -> None:
    path = str(tmp_path / "effects.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE effects (number INTEGER)")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            SqliteStore(path, timeout_ms=50).open()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed (/usr/lib/postgresql)")
class TestPostgres(StoreContract):
    @pytest.fixture
    def store(self, server: PostgresServer) -> PostgresStore:
        return PostgresStore(server.conninfo)


class TestTheStoreOfTheExample(StoreContract):
    """The one that docs/delivery.md shows."""

    test_it_can_be_pickled = test_keys_are_purged_by_their_age = None  # type: ignore[assignment]
    test_places_are_purged_by_their_age_and_nothing_is_remembered = None  # type: ignore[assignment]

    @pytest.fixture
    def store(self) -> Any:
        return runpy.run_path(str(ROOT / "examples" / "own_store.py"))["MemoryStore"]()

    def prepare(self, connection: Any) -> None:
        """There is no table."""

    def execute(self, connection: Any, scope: str, number: int) -> None:
        connection.append((scope, number))

    def noted(self, store: Any, scope: str) -> list[int]:
        return [number for of, number in store.rows if of == scope]

    def test_it_is_on_the_page(self) -> None:
        assert (ROOT / "examples" / "own_store.py").read_text() in (ROOT / "docs" / "delivery.md").read_text()


def test_a_store_by_its_address(tmp_path: Path) -> None:
    for address in ("postgresql://localhost/orders", "postgres://localhost/orders"):
        assert store_of(address) == PostgresStore(address)
    assert store_of(str(tmp_path / "x.db")) == SqliteStore(str(tmp_path / "x.db"))
    assert "secret" not in repr(PostgresStore("postgresql://me:secret@localhost/orders"))
    with pytest.raises(UsageError, match="give the path of a file, which outlives the process"):
        SqliteStore(":memory:")
