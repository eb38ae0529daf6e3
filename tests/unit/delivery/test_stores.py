"""Every store keeps the contract: SQLite, and PostgreSQL where it is installed."""

from __future__ import annotations

import runpy
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
