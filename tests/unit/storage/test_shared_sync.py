from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from keylane.storage import shared_sync
from keylane.storage.filesystem import StorageError
from keylane.storage.shared_sync import (
    INLINE_APPENDS,
    INLINE_LIMIT_S,
    JOIN_LIMIT_BYTES,
    SHARED_INLINE_LIMIT_S,
    Round,
    SharedSync,
)
from kit.executor import InlineExecutor

SHORT_S = 600.0
"""A limit below which every sync of a test stays, however busy the machine is."""


class Recorder:
    """A file that writes down what is done to it, and may hold a sync up or fail it."""

    path = "/recorder"

    def __init__(self) -> None:
        self.done: list[bytes | str] = []
        self.has_written = threading.Event()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))
        self.has_written.set()

    def cut(self) -> None:
        self.done.append("cut")

    def sync(self) -> None:
        assert self.may_sync.wait(10)
        if self.error is not None:
            raise self.error
        self.done.append("sync")


def test_appends_of_one_turn_share_one_write_and_one_sync() -> None:
    async def scenario() -> None:
        file = Recorder()
        marks: list[int] = []
        group = SharedSync(file, InlineExecutor(), on_synced=marks.append)
        rounds = [group.append(b"%d" % number, number) for number in range(3)]
        assert file.done == []
        assert not group.is_idle
        await asyncio.gather(*rounds)
        assert file.done == [b"012", "sync"]
        assert marks == [2]
        assert group.is_idle

    asyncio.run(scenario())


def test_what_is_appended_during_a_sync_goes_into_the_next_round() -> None:
    async def scenario() -> None:
        file = Recorder()
        marks: list[int] = []
        with ThreadPoolExecutor(1) as executor:
            group = SharedSync(file, executor, on_synced=marks.append)
            file.may_sync.clear()
            first = group.append(b"a", 1)
            await asyncio.to_thread(file.has_written.wait, 10)
            second = [group.append(b"b", 2), group.append(b"c", 3)]
            assert second[0] is not first
            await asyncio.sleep(0)
            assert not first.done()
            file.may_sync.set()
            await first
            assert marks[0] == 1
            await asyncio.gather(*second)
        assert file.done == [b"a", "sync", b"bc", "sync"]
        assert marks == [1, 3]

    asyncio.run(scenario())


def test_steps_run_in_order_with_writes_and_large_pieces_are_not_joined() -> None:
    async def scenario() -> None:
        file = Recorder()
        group = SharedSync(file, InlineExecutor())
        large = b"x" * (JOIN_LIMIT_BYTES + 1)
        group.append(b"a")
        group.append(b"b")
        group.run(lambda: file.done.append("step"))
        group.append(b"c")
        group.append(large)
        await group.append(b"d")
        assert file.done == [b"ab", "step", b"c", large, b"d", "sync"]

    asyncio.run(scenario())


def test_a_failure_is_for_good_and_reaches_every_waiter() -> None:
    async def scenario() -> None:
        file = Recorder()
        marks: list[int] = []
        with ThreadPoolExecutor(1) as executor:
            group = SharedSync(file, executor, on_synced=marks.append)
            file.may_sync.clear()
            file.error = OSError(5, "broken")
            first = group.append(b"a", 1)
            await asyncio.to_thread(file.has_written.wait, 10)
            second = group.append(b"b", 2)
            file.may_sync.set()
            for waiting in (first, second):
                with pytest.raises(StorageError, match=r"/recorder: .*broken; nothing more is written"):
                    await waiting
            file.error = None
            with pytest.raises(StorageError):
                group.append(b"c")
            with pytest.raises(StorageError):
                group.run(lambda: None)
            with pytest.raises(StorageError):
                await group.flush()
            await group.close()
        assert file.done == [b"a"], "the second round is not even written"
        assert marks == []

    asyncio.run(scenario())


def test_a_waiter_that_is_cancelled_takes_nobody_with_it() -> None:
    async def scenario() -> None:
        file = Recorder()
        with ThreadPoolExecutor(1) as executor:
            group = SharedSync(file, executor)
            file.may_sync.clear()

            async def wait() -> str:
                await group.append(b"a")
                return "durable"

            tasks = [asyncio.create_task(wait()) for _ in range(2)]
            await asyncio.to_thread(file.has_written.wait, 10)
            tasks[0].cancel()
            await asyncio.sleep(0)
            file.may_sync.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1] == "durable"

    asyncio.run(scenario())


def test_flush_and_close_wait_for_what_was_appended() -> None:
    async def scenario() -> None:
        file = Recorder()
        group = SharedSync(file, InlineExecutor())
        await group.flush()
        group.append(b"a")
        await group.flush()
        assert file.done == [b"a", "sync"]
        group.append(b"b")
        await group.close()
        assert file.done[2:] == [b"b", "sync"]
        assert group.pending is None

    asyncio.run(scenario())


def test_few_appends_are_synced_on_the_loop_while_syncs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a sync that was long they go to the executor, several sooner than one, until one was short again; many
    always do."""
    threads: list[str] = []
    now = [0.0]
    monkeypatch.setattr(shared_sync, "time", SimpleNamespace(perf_counter=now.pop))

    class Disk:
        path = "/disk"
        took_s = 0.0

        def write(self, data: object) -> None:
            pass

        def cut(self) -> None:
            pass

        def sync(self) -> None:
            threads.append(threading.current_thread().name)
            now.extend([0.0, self.took_s])  # the next sync begins, and this one is over

    async def scenario() -> None:
        with ThreadPoolExecutor(1, "executor") as executor:
            disk = Disk()
            group = SharedSync(disk, executor, may_sync_inline=True)
            disk.took_s = SHARED_INLINE_LIMIT_S
            first, second = group.append(b"a"), group.append(b"b")
            assert first is second
            await first
            group.append(b"a")
            await group.append(b"b")
            disk.took_s = INLINE_LIMIT_S
            await group.append(b"c")
            disk.took_s = 0
            await group.append(b"d")
            await group.append(b"e")
            await group.append_all([b"f"] * (INLINE_APPENDS + 1))

    asyncio.run(scenario())
    here = threading.current_thread().name
    assert [name == here for name in threads] == [True, False, True, False, True, False]


def test_answers_come_before_other_calls() -> None:
    async def scenario() -> None:
        order: list[str] = []
        group = SharedSync(Recorder(), InlineExecutor())
        round_ = group.append(b"a")
        round_.when_over(lambda _: order.append("store"))
        round_.when_over(lambda _: order.append("answer"), first=True)
        await round_
        assert order == ["answer", "store"]

    asyncio.run(scenario())


def test_calls_come_in_order_at_the_end_of_a_round_and_before_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next round is short and done on the loop, and when a call fails."""
    monkeypatch.setattr(shared_sync, "INLINE_LIMIT_S", SHORT_S)

    async def scenario() -> None:
        order: list[str] = []
        failures: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))

        def fail(_: Round) -> None:
            raise ValueError("a call's own failure")

        async def wait(round_: Round) -> None:
            await round_
            order.append("waiter")

        file = Recorder()
        with ThreadPoolExecutor(1) as executor:
            group = SharedSync(file, executor, may_sync_inline=True)
            file.may_sync.clear()
            first = group.append_all([b"a"] * (INLINE_APPENDS + 1))  # on the executor
            waiter = asyncio.create_task(wait(first))
            first.when_over(fail)
            first.when_over(lambda _: order.append("first"))
            await asyncio.to_thread(file.has_written.wait, 10)
            second = group.append(b"b")
            second.when_over(lambda _: order.append(f"second {len(file.done)}"))
            file.may_sync.set()
            await second
            await waiter
        assert order == ["first", "second 4", "waiter"]
        assert failures == ["a call's own failure"]
        late: list[Round] = []
        second.when_over(late.append)
        assert not late
        await asyncio.sleep(0)
        assert late == [second]

    asyncio.run(scenario())


def test_calls_are_told_of_a_failure() -> None:
    async def scenario() -> None:
        file = Recorder()
        file.error = OSError(5, "broken")
        group = SharedSync(file, InlineExecutor(), may_sync_inline=True)
        told: list[str] = []
        round_ = group.append(b"a")
        round_.when_over(lambda over: told.append(str(over.exception())))
        with pytest.raises(StorageError):
            await round_
        assert len(told) == 1
        assert "broken; nothing more is written" in told[0]

    asyncio.run(scenario())
