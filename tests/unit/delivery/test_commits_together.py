"""Who is ready for SQLite's one writer commits together: each has its effects, or its error, as if it was alone."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from keylane.delivery import SqliteStore, sqlite
from keylane.delivery.sqlite import AsyncSqlite
from keylane.delivery.stores import Identity
from keylane.delivery.transactions import Transactions
from keylane.errors import StoreError
from keylane.options import ExactlyOnce
from keylane.pipeline import Pipeline
from keylane.records import Context
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from keylane.delivery.sqlite import OpenSqlite
    from keylane.delivery.stores import Processed

    Step = Callable[[sqlite3.Connection], Any]

BAD = 3


class Effects:
    """A store, with a table of numbers."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(str(folder / "effects.db"))
        with closing(sqlite3.connect(self.store.path)) as connection:
            connection.execute("CREATE TABLE effects (number INTEGER PRIMARY KEY)")
            connection.execute(
                "CREATE TABLE parts (of INTEGER REFERENCES effects (number) DEFERRABLE INITIALLY DEFERRED)"
            )
        self.opened: OpenSqlite = self.store.open()
        self.commits: list[str] = []
        self.opened.connection.set_trace_callback(lambda text: self.commits.append(text) if text == "COMMIT" else None)

    def numbers(self) -> list[int]:
        """As another process sees them."""
        with closing(sqlite3.connect(self.store.path)) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM effects ORDER BY number")]

    def members(self) -> int:
        """How many wait for a commit."""
        together = self.opened._writer.open
        return 0 if together is None else len(together.members)

    def run(self, first: Step, *others: Step) -> list[BaseException | None]:
        """Each step in a transaction of a thread of its own; the first one ends when all others wait for theirs."""

        def whole(step: Step) -> None:
            with self.opened.transaction() as transaction:
                step(transaction.connection)
                if step is first:
                    has_begun.set()
                    until(lambda: len(self.opened._waiting) == len(others), "the others wait")

        has_begun = threading.Event()
        with ThreadPoolExecutor(1 + len(others)) as pool:
            ends = [pool.submit(whole, first)]
            assert has_begun.wait(30)
            ends += [pool.submit(whole, other) for other in others]
        return [end.exception() for end in ends]


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    monkeypatch.setattr(sqlite, "WORTH_S", 0.0)
    monkeypatch.setattr(sqlite, "TOGETHER_S", 30.0)
    made = Effects(tmp_path)
    yield made
    made.opened.close()


def insert(number: int) -> Step:
    return lambda connection: connection.execute("INSERT INTO effects VALUES (?)", (number,))


def fail(connection: sqlite3.Connection) -> None:
    insert(9)(connection)
    raise ValueError("its handler fails")


def test_one_commit_is_of_all_that_wait(effects: Effects) -> None:
    seen: list[list[int]] = []

    def look(connection: sqlite3.Connection) -> None:
        insert(4)(connection)
        seen.append(effects.numbers())

    assert effects.run(insert(1), insert(2), insert(3), look) == [None] * 4
    assert seen == [[]], "none is seen before all are committed"
    assert effects.numbers() == [1, 2, 3, 4]
    assert effects.commits == ["COMMIT"]


def test_one_that_fails_is_rolled_back_alone(effects: Effects) -> None:
    first, *others = effects.run(insert(1), fail, insert(2), fail, insert(3))
    assert first is None
    assert [str(one) for one in others if one] == ["its handler fails"] * 2
    assert effects.numbers() == [1, 2, 3]


def test_the_last_one_that_fails_commits_the_others(effects: Effects) -> None:
    first, second = effects.run(insert(1), fail)
    assert first is None
    assert isinstance(second, ValueError)
    assert effects.numbers() == [1]


def test_one_that_is_slow_is_waited_for_by_nobody_else(effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "TOGETHER_S", 0.0)
    assert effects.run(insert(1), insert(2), insert(3)) == [None] * 3
    assert effects.commits == ["COMMIT"] * 3


def test_commits_that_take_no_time_are_not_waited_for(effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "WORTH_S", 30.0)
    with effects.opened.transaction() as transaction:
        insert(4)(transaction.connection)
    effects.commits.clear()
    assert effects.run(insert(1), insert(2), insert(3)) == [None] * 3
    assert effects.commits == ["COMMIT"] * 3


def test_a_commit_of_nothing_says_nothing_of_those_that_write(
    effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Housekeeping mostly reads."""
    monkeypatch.setattr(sqlite, "WORTH_S", 30.0)
    with effects.opened.transaction():
        pass
    effects.commits.clear()
    assert effects.run(insert(1), insert(2), insert(3)) == [None] * 3
    assert effects.commits == ["COMMIT"]


def test_who_waited_for_one_that_never_came_commits_by_itself(
    effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "TOGETHER_S", 0.01)
    monkeypatch.setattr(sqlite.Together, "ends_at", property(lambda _: float("inf"), lambda *_: None), raising=False)
    effects.opened._waiting.append(None)
    with effects.opened.transaction() as transaction:
        insert(1)(transaction.connection)
    assert effects.numbers() == [1]


def test_another_connection_of_the_process_commits_what_is_open(effects: Effects) -> None:
    other = effects.store.open()
    effects.opened._waiting.append(None)

    def whole() -> None:
        with effects.opened.transaction() as transaction:
            insert(1)(transaction.connection)

    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(whole)
        until(lambda: effects.members() == 1, "it is open")
        with other.transaction() as transaction:
            assert transaction.run("SELECT number FROM effects").fetchall() == [(1,)]
        end.result(30)
    other.close()


@pytest.mark.parametrize("how", [["ROLLBACK"], ["COMMIT"], ["ROLLBACK", "BEGIN"], ["COMMIT", "BEGIN"]], ids=" ".join)
def test_one_that_ends_the_transaction_has_those_before_it_run_again(effects: Effects, how: list[str]) -> None:
    def end(connection: sqlite3.Connection) -> None:
        for statement in how:
            connection.execute(statement)

    first, _ = effects.run(insert(1), end)
    assert isinstance(first, sqlite.UndoneError)
    assert effects.numbers() == ([1] if how[0] == "COMMIT" else [])


def test_a_file_that_is_replaced_meanwhile_is_believed_by_none(effects: Effects, tmp_path: Path) -> None:
    def replace(connection: sqlite3.Connection) -> None:
        insert(2)(connection)
        for file in tmp_path.glob("effects.db*"):
            file.unlink()

    assert [type(one) for one in effects.run(insert(1), replace)] == [sqlite.UndoneError] * 2
    with pytest.raises(StoreError, match=r"effects\.db was replaced"), effects.opened.transaction():
        pass


# --- coroutines ---


def run_coroutines(effects: Effects, *steps: Step) -> list[BaseException | None]:
    """All of them are ready at once."""

    async def whole(opened: AsyncSqlite, step: Step) -> None:
        async with opened.begin_now() as transaction:
            step(transaction.connection)

    async def all_of_them() -> list[BaseException | None]:
        opened = AsyncSqlite(effects.opened)
        try:
            return await asyncio.gather(*(whole(opened, step) for step in steps), return_exceptions=True)
        finally:
            effects.opened = effects.store.open()  # that one is closed with its loop
            await opened.close()

    return asyncio.run(all_of_them())


def test_one_commit_is_of_all_coroutines_that_are_ready(effects: Effects) -> None:
    assert run_coroutines(effects, *map(insert, range(5))) == [None] * 5
    assert effects.numbers() == list(range(5))
    assert effects.commits == ["COMMIT"]


def test_a_coroutine_that_fails_is_rolled_back_alone(effects: Effects) -> None:
    first, second, third = run_coroutines(effects, insert(1), fail, insert(2))
    assert (first, third) == (None, None)
    assert isinstance(second, ValueError)
    assert effects.numbers() == [1, 2]


@pytest.mark.parametrize("how", [["ROLLBACK"], ["ROLLBACK", "BEGIN"]], ids=" ".join)
def test_a_coroutine_that_ends_the_transaction_has_those_before_it_run_again(effects: Effects, how: list[str]) -> None:
    def end(connection: sqlite3.Connection) -> None:
        for statement in how:
            connection.execute(statement)

    first, _, third = run_coroutines(effects, insert(1), end, insert(2))
    assert isinstance(first, sqlite.UndoneError)
    assert third is None
    assert effects.numbers() == [2]


def test_a_coroutine_that_is_cancelled_waits_for_the_commit_all_the_same(effects: Effects) -> None:
    async def whole(opened: AsyncSqlite) -> None:
        async with opened.begin_now() as transaction:
            insert(1)(transaction.connection)

    async def cancelling() -> None:
        opened = AsyncSqlite(effects.store.open())
        task = asyncio.create_task(whole(opened))
        await asyncio.sleep(0)  # it has ended its transaction, and waits
        assert effects.members() == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert effects.numbers() == [1]
        await opened.close()

    asyncio.run(cancelling())


# --- handlers ---


class Numbers:
    """What numbers are known by, for `Transactions`."""

    def identity_of(self, item: int) -> Identity:
        return Identity("numbers", 0, item)

    def checksum_of(self, item: int) -> int:
        return item

    def is_known(self, _: Identity) -> bool:
        return False

    def processed(self, identities: Collection[Identity]) -> None: ...

    def outcome(self, result: Any) -> tuple[Any, bytes]:
        return result, b""

    def outcomes(self, result: Any, count: int) -> list[tuple[Any, bytes]]:
        raise NotImplementedError

    def again(self, processed: Processed) -> Any:
        return None


def run_handler(effects: Effects, handler: Callable[[int, Context], Any]) -> list[BaseException | None]:
    """Have it run for some numbers, that of `BAD` as the last one of those that would commit together."""
    pipeline = Pipeline(
        kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"},
        topics=["t"],
        handler=handler,
        delivery=ExactlyOnce(effects.store),
    )
    transactions = Transactions(pipeline, Numbers())
    transactions.opened = effects.opened
    effects.opened._waiting.append(None)
    with ThreadPoolExecutor(1 + BAD) as pool:
        ends = [pool.submit(transactions.handler, number, Context()) for number in range(BAD)]
        until(lambda: effects.members() == BAD, "the others wait for their commit")
        effects.opened._waiting.pop()
        ends.append(pool.submit(transactions.handler, BAD, Context()))
    return [end.exception() for end in ends]


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_handlers_run_again_whose_transaction_another_one_has_ended(effects: Effects, how: str) -> None:
    def handler(number: int, context: Context) -> None:
        insert(number)(context.transaction)
        if number == BAD:
            getattr(context.transaction, how)()

    failures = run_handler(effects, handler)
    assert [failure is None for failure in failures] == [True, True, True, False]
    assert "the handler ended context.transaction" in str(failures[BAD])
    assert effects.numbers() == ([0, 1, 2, BAD] if how == "commit" else [0, 1, 2])


def test_a_commit_that_fails_is_the_failure_of_whom_it_is_due_to(effects: Effects) -> None:
    """Of a constraint that is looked at when all are committed."""
    effects.opened.connection.execute("PRAGMA foreign_keys = ON")

    def handler(number: int, context: Context) -> None:
        insert(number)(context.transaction)
        if number == BAD:
            context.transaction.execute("INSERT INTO parts VALUES (77)")

    failures = run_handler(effects, handler)
    assert [failure is None for failure in failures] == [True, True, True, False]
    assert "FOREIGN KEY constraint failed" in str(failures[BAD])
    assert effects.numbers() == [0, 1, 2]
