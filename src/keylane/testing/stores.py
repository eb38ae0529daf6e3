"""`StoreContract`: what every store of processing details must do; derive a pytest class from it for one's own.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self): return MyStore(...)      # empty, or with scopes of its own

What a handler does is left to three methods: `prepare` makes a table, `execute` notes a number in it, `noted` reads the
numbers. As they are they do for connections that take SQL. A test that does not apply is set to None in the class (ages
in a store that keeps all for ever, pickling in one that is for one process). Rows of DataFrames need all of them: what
is kept of a row stands for the call that is not made again.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import uuid
from typing import Any

from keylane.delivery.stores import AsyncStore, Identity, Position, Processed, Store, Transaction
from keylane.delivery.transactions import check_transaction

TABLE = "CREATE TABLE IF NOT EXISTS keylane_contract (scope text, number integer)"


def claim(transaction: Transaction, identity: Identity, checksum: int | None = None) -> Processed | None:
    """Of a single one."""
    return transaction.claim_all({identity: checksum}).get(identity)


class Stop(Exception):  # noqa: N818 - what a block is left with
    pass


class StoreContract:
    """The tests. Each has a scope of its own, so that they may share a database."""

    def scope(self) -> str:
        return f"cluster/group/{uuid.uuid4()}"

    def prepare(self, connection: Any) -> None:
        connection.execute(TABLE)

    def execute(self, connection: Any, scope: str, number: int) -> Any:
        """The effect of a handler; for an asynchronous connection, what is to be awaited."""
        return connection.execute(f"INSERT INTO keylane_contract VALUES ('{scope}', {number})")

    def noted(self, store: Store, scope: str) -> list[int]:
        opened = store.open()
        with opened.transaction() as transaction:
            self.prepare(transaction.connection)
            select = f"SELECT number FROM keylane_contract WHERE scope = '{scope}' ORDER BY number"
            rows = transaction.connection.execute(select).fetchall()
        opened.close()
        return [row[0] for row in rows]

    # --- the tests ---

    def test_effect_and_identity_are_there_together(self, store: Store) -> None:
        scope, opened = self._ready(store)
        one = Identity(scope, 0, 7)
        with opened.transaction() as transaction:
            check_transaction(store, transaction)
            assert claim(transaction, one) is None
            self.execute(transaction.connection, scope, 7)
            assert transaction.is_open()
            transaction.keep_all({one: b"outputs"})
        with opened.transaction() as transaction:
            assert claim(transaction, one) == Processed(b"outputs")
            assert claim(transaction, Identity(scope, 1, 7)) is None
            assert claim(transaction, Identity(scope, 0, 8)) is None
        opened.close()
        assert self.noted(store, scope) == [7]

    def test_what_raises_leaves_neither(self, store: Store) -> None:
        scope, opened = self._ready(store)
        one = Identity(scope, 0, 7)
        try:
            with opened.transaction() as transaction:
                claim(transaction, one)
                self.execute(transaction.connection, scope, 7)
                raise Stop
        except Stop:
            pass
        with opened.transaction() as transaction:
            assert claim(transaction, one) is None
        opened.close()
        assert self.noted(store, scope) == []

    def test_two_that_claim_the_same_meet(self, store: Store) -> None:
        scope, opened = self._ready(store)
        one, answers, begun = Identity(scope, 0, 7), [], threading.Event()

        def other() -> None:
            begun.wait()
            with opened.transaction() as transaction:
                answers.append(claim(transaction, one))

        thread = threading.Thread(target=other)
        thread.start()
        with opened.transaction() as transaction:
            assert claim(transaction, one) is None
            begun.set()
            thread.join(0.2)
            assert not answers, "it waits for the end of the first"
        thread.join()
        opened.close()
        assert answers == [Processed()]

    def test_what_is_purged_counts_as_processed(self, store: Store) -> None:
        scope, opened = self._ready(store)
        with opened.transaction() as transaction:
            assert transaction.purged_below(scope, 0) == 0
            for offset in range(5):
                claim(transaction, Identity(scope, 0, offset))
        with opened.transaction() as transaction:
            transaction.purge(scope, 0, 3)
            transaction.purge(scope, 0, 2)
        with opened.transaction() as transaction:
            assert transaction.purged_below(scope, 0) == 3
            claims = [claim(transaction, Identity(scope, 0, offset)) for offset in range(6)]
            assert [claim is None for claim in claims] == [False, False, False, False, False, True]
            assert claim(transaction, Identity(scope, 1, 0)) is None, "another partition"
        opened.close()

    def test_what_stays_of_a_purge_counts_as_processed(self, store: Store) -> None:
        """A store may keep samples, or none."""
        scope, opened = self._ready(store)
        for begin in range(0, 40, 4):
            with opened.transaction() as transaction:
                places = [Identity(scope, 0, begin + one) for one in range(4)]
                assert transaction.claim_all(dict.fromkeys(places, 5)) == {}
                transaction.keep_all(dict.fromkeys(places, b"outputs"))
            with opened.transaction() as transaction:
                transaction.purge(scope, 0, begin + 4, 5)
        with opened.transaction() as transaction:
            stays = transaction.places(scope, 0)
            assert len(stays) <= 5
            assert set(stays.values()) <= {5}
            found = transaction.claim_all({Identity(scope, 0, offset): 6 for offset in range(41)})
            assert {one.offset for one in found} == set(range(40))
            assert all(one.outputs == b"" for one in found.values())
        opened.close()

    def test_outputs_are_kept_as_they_are_each_with_its_identity(self, store: Store) -> None:
        """Of a row of a DataFrame they are all that stands for the call that is not made again."""
        scope, opened = self._ready(store)
        outputs = {Identity(scope, 0, 1): bytes(range(256)), Identity(scope, 0, 2): b"\x00", Identity(scope, 0, 3): b""}
        outputs[Identity(scope, -1, -1, "order 7")] = bytes(range(256)) * 8_192
        with opened.transaction() as transaction:
            for one, data in outputs.items():
                assert claim(transaction, one) is None
                if data:
                    transaction.keep_all({one: data})
        try:
            with opened.transaction() as transaction:
                claim(transaction, Identity(scope, 0, 4))
                transaction.keep_all({Identity(scope, 0, 4): b"rolled back"})
                raise Stop
        except Stop:
            pass
        opened.close()
        opened = store.open()
        with opened.transaction() as transaction:
            assert {one: claim(transaction, one) for one in outputs} == {
                one: Processed(data) for one, data in outputs.items()
            }
            assert claim(transaction, Identity(scope, 0, 4)) is None
        opened.close()

    def test_places_are_purged_by_their_age_and_nothing_is_remembered(self, store: Store) -> None:
        scope, opened = self._ready(store)
        one = Identity(scope, 3, 7)
        now_ms = time.time_ns() // 1_000_000
        with opened.transaction() as transaction:
            claim(transaction, one)
            transaction.purge_before(scope, now_ms - 60_000)
            assert claim(transaction, one) == Processed()
            transaction.purge_before(f"{scope}/another", now_ms + 60_000)
            assert claim(transaction, one) == Processed()
        with opened.transaction() as transaction:
            transaction.purge_before(scope, now_ms + 60_000)
            assert transaction.purged_below(scope, 3) == 0
            assert claim(transaction, one) is None
        opened.close()

    def test_a_checksum_is_kept_with_its_place(self, store: Store) -> None:
        """By which another record at the same place is told from the one that was processed."""
        scope, opened = self._ready(store)
        one, other, key = Identity(scope, 0, 7), Identity(scope, 0, 8), Identity(scope, -1, -1, "order 7")
        with opened.transaction() as transaction:
            assert transaction.claim_all({one: 2**63 - 1, other: 0, key: None}) == {}
        with opened.transaction() as transaction:
            found = transaction.claim_all({one: 1, other: 1, key: None, Identity(scope, 1, 7): 1})
            assert {of: found[of].checksum for of in found} == {one: 2**63 - 1, other: 0, key: None}
            assert transaction.places(scope, 0, 8) == {8: 0}
            assert transaction.count_places(scope, 0, [(0, 8), (8, 20)]) == 2
            assert transaction.count_keys(scope, {"order 7", "order 8"}) == 1
            assert transaction.has_unchecked(scope)
            assert transaction.claim_all({Identity(f"{scope}/another", 0, 7): 0}) == {}
            assert not transaction.has_unchecked(f"{scope}/another")
        assert sorted(opened.find([one, key, Identity(scope, 3, 3)])) == sorted([one, key])
        opened.close()

    def test_a_key_is_any_text(self, store: Store) -> None:
        scope, opened = self._ready(store)
        texts = ["it's", '"', "50 %s of {key}", "back\\slash\\'", "; --", "$1", "ключ 鍵 🔑", " ", "\n\t", "k" * 1_000]
        keys = dict.fromkeys([Identity(scope, -1, -1, text) for text in texts])
        for some in ([*keys][:1], [*keys]):  # a single one, and many
            with opened.transaction() as transaction:
                assert set(transaction.claim_all(dict.fromkeys(some))) == set(some[:1] if len(some) > 1 else [])
        with opened.transaction() as transaction:
            assert set(transaction.claim_all(keys)) == set(keys)
            assert transaction.claim_all({Identity(f"{scope}'s", -1, -1, texts[0]): None}) == {}
        assert set(opened.find(keys)) == set(keys)
        opened.close()

    def test_some_of_many_were_processed_before(self, store: Store) -> None:
        scope, opened = self._ready(store)
        with opened.transaction() as transaction:
            transaction.claim_all({Identity(scope, 0, offset): offset for offset in range(0, 100, 3)})
        with opened.transaction() as transaction:
            found = transaction.claim_all({Identity(scope, offset % 2, offset): offset for offset in range(100)})
            assert {of.offset for of in found} == set(range(0, 100, 6)), "of partition 0 the even ones"
        opened.close()

    def test_a_position_is_what_was_noted_last(self, store: Store) -> None:
        scope, opened = self._ready(store)
        with opened.transaction() as transaction:
            assert transaction.position(scope, 0) is None
            transaction.note_position(scope, 0, Position(7, "map"))
            transaction.note_position(scope, 0, Position(9))
            transaction.note_position(scope, 1, Position(3, "map"))
        with opened.transaction() as transaction:
            assert transaction.position(scope, 0) == Position(9)
            assert transaction.position(scope, 1) == Position(3, "map")
            assert scope in transaction.scopes()
        opened.close()

    def test_keys_are_purged_by_their_age(self, store: Store) -> None:
        scope, opened = self._ready(store)
        key = Identity(scope, -1, -1, "order 7")
        with opened.transaction() as transaction:
            assert claim(transaction, key) is None
        now_ms = time.time_ns() // 1_000_000
        with opened.transaction() as transaction:
            transaction.purge_before(scope, now_ms - 60_000)
            assert claim(transaction, key) is not None
        with opened.transaction() as transaction:
            transaction.purge_before(scope, now_ms + 60_000)
            assert claim(transaction, key) is None
        opened.close()

    def test_a_transaction_that_the_handler_ended_is_noticed(self, store: Store) -> None:
        scope, opened = self._ready(store)
        with opened.transaction() as transaction:
            claim(transaction, Identity(scope, 0, 7))
            transaction.connection.rollback()
            assert not transaction.is_open()
        opened.close()

    def test_it_can_be_pickled(self, store: Store) -> None:
        import pickle

        assert pickle.loads(pickle.dumps(store)) == store

    def test_the_same_for_coroutines(self, store: Store) -> None:
        scope, opened = self._ready(store)
        opened.close()
        if not isinstance(store, AsyncStore):  # for functions alone
            return
        asyncio.run(self._same_for_coroutines(store, scope))
        assert self.noted(store, scope) == [7]

    async def _same_for_coroutines(self, store: AsyncStore, scope: str) -> None:
        opened = await store.open_async()
        one = Identity(scope, 0, 7)

        async def claims(how: str) -> Processed | None:
            async with opened.transaction() as transaction:
                found = (await transaction.claim_all({one: 5})).get(one)
                if found is None:
                    done = self.execute(transaction.connection, scope, 7)
                    if inspect.isawaitable(done):
                        await done
                    await transaction.keep_all({one: b"outputs"})
                    await asyncio.sleep(0.02)
                    if how == "raises":
                        raise Stop
                return found

        waiting = asyncio.create_task(claims("cancelled"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        first = await asyncio.gather(waiting, claims("raises"), return_exceptions=True)
        assert [type(one) for one in first] == [asyncio.CancelledError, Stop]
        done = await asyncio.gather(*(claims("commits") for _ in range(5)))
        assert sorted(done, key=str) == [None, *[Processed(b"outputs", 5)] * 4]
        await opened.close()

    def _ready(self, store: Store) -> tuple[str, Any]:
        opened = store.open()
        with opened.transaction() as transaction:
            self.prepare(transaction.connection)
        return self.scope(), opened
