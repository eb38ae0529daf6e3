"""Requests that work in slices share the time of one turn, and take turns."""

from __future__ import annotations

import asyncio

import pytest

from keylane.broker import dispatch
from keylane.broker.dispatch import in_slices

REQUESTS, ITEMS = 5, 4


class Clock:
    """Stands still until a test sets it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(dispatch, "time", clock)
    return clock


async def worked(clock: Clock, work_s: float, requests: int = REQUESTS) -> list[list[int]]:
    """Which request handled an item in each turn of the loop, one after the other, when an item takes so long."""
    turns: list[list[int]] = [[]]

    async def handle(number: int) -> None:
        async for _ in in_slices(range(ITEMS)):
            turns[-1].append(number)
            clock.now += work_s

    tasks = [asyncio.ensure_future(handle(number)) for number in range(requests)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns.append([])
    return [turn for turn in turns if turn]


def test_the_time_of_a_turn_is_shared(clock: Clock) -> None:
    first, *rest = asyncio.run(worked(clock, 2 * dispatch.SLICE_S))
    assert sorted(first) == [*range(REQUESTS)], "each begins with one"
    assert [len(turn) for turn in rest] == [1] * REQUESTS * (ITEMS - 1)


def test_each_has_its_turn(clock: Clock) -> None:
    _, *rest = asyncio.run(worked(clock, 2 * dispatch.SLICE_S))
    assert [number for turn in rest for number in turn] == [*range(REQUESTS)] * (ITEMS - 1)


def test_what_takes_little_is_done_at_once(clock: Clock) -> None:
    assert asyncio.run(worked(clock, dispatch.SLICE_S / ITEMS / REQUESTS / 2)) == [
        [number for number in range(REQUESTS) for _ in range(ITEMS)]
    ]


def test_one_that_is_dropped_in_line_holds_up_nobody(clock: Clock) -> None:
    async def whole() -> int:
        done = 0

        async def handle() -> None:
            nonlocal done
            async for _ in in_slices(range(ITEMS)):
                clock.now += 2 * dispatch.SLICE_S
            done += 1

        tasks = [asyncio.ensure_future(handle()) for _ in range(REQUESTS)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return done

    assert asyncio.run(whole()) == REQUESTS // 2
