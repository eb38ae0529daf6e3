"""Memory that connections share: who is given some, who waits, and who comes next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.broker.memory import LARGE_BYTES, LEAST_ANSWER_BYTES, AnswerRoom, Share, SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1024 * 1024


def share(called: Callable[[], None] = lambda: None, moved: Callable[[], int] = lambda: 0) -> Share:
    return Share(called, moved, lambda: None)


def take(memory: SharedMemory, one: Share, size: int) -> bool:
    """As a request does, whose size is known."""
    given = memory.ask(one, size, size)
    if given:
        memory.settle(one, given)
    return bool(given)


def test_who_finds_no_room_waits_and_is_called_in_turn() -> None:
    called: list[str] = []
    memory = SharedMemory(10)
    first, second, third = share(), share(lambda: called.append("second")), share(lambda: called.append("third"))
    assert take(memory, first, 8)
    assert not take(memory, second, 5)
    assert not take(memory, third, 1), "it fits, and waits behind the one before it"
    memory.settle(first, 0)
    assert called == ["second"]
    assert take(memory, second, 5)
    assert called == ["second", "third"]
    assert take(memory, third, 1)
    assert memory.held == 6


def test_one_always_goes_on_however_much_it_needs() -> None:
    memory = SharedMemory(10)
    first, second = share(), share()
    assert take(memory, first, 100)
    assert not take(memory, second, 100)
    memory.leave(first)
    assert take(memory, second, 100)


def test_an_answer_is_given_what_is_left() -> None:
    memory = SharedMemory(10 * MB)
    first, second, third = share(), share(), share()
    assert memory.ask(first, LEAST_ANSWER_BYTES, 8 * MB) == 8 * MB
    memory.settle(first, 8 * MB)
    assert memory.ask(second, LEAST_ANSWER_BYTES, 8 * MB) == 2 * MB
    memory.settle(second, 2 * MB)
    assert memory.ask(third, LEAST_ANSWER_BYTES, 8 * MB) == 0
    assert memory.held == 10 * MB


def test_large_ones_are_taken_one_after_the_other() -> None:
    called: list[str] = []
    memory = SharedMemory(-1)
    first, second, small = share(), share(lambda: called.append("second")), share()
    assert memory.ask(first, 1, LARGE_BYTES + 1)
    assert not memory.ask(second, 1, LARGE_BYTES + 1), "the first has not said yet how much it takes"
    memory.settle(first, MB)
    assert called == ["second"]
    assert memory.ask(second, 1, LARGE_BYTES + 1)
    assert memory.ask(small, 1, LARGE_BYTES)


def test_a_client_that_does_not_move_is_stopped_when_others_wait() -> None:
    stopped: list[str] = []
    sent = {"moving": 0, "still": 0}
    memory = SharedMemory(10)
    holders = [
        Share(lambda: None, lambda name=name: sent[name], lambda name=name: stopped.append(name))  # type: ignore[misc]
        for name in sent
    ]
    for one in holders:
        assert take(memory, one, 5)
    for _ in range(3):
        memory.stop_idle()
    assert stopped == [], "nobody waits"
    assert not take(memory, share(), 5)
    memory.stop_idle()
    sent["moving"] += 1
    memory.stop_idle()
    assert stopped == ["still"]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 60)), max_size=60))
def test_whoever_waits_is_served_in_the_end_and_the_limit_is_passed_by_one(steps: list[tuple[int, int, int]]) -> None:
    limit = 50
    memory = SharedMemory(limit)
    line: list[int] = []
    shares = [share(lambda one=one: line.append(one)) for one in range(5)]  # type: ignore[misc]
    sizes: dict[int, int] = {}

    def serve() -> None:
        while line:
            one = line.pop(0)
            if one in sizes and not shares[one].size:
                take(memory, shares[one], sizes[one])

    for one, what, size in steps:
        if what == 0 and one not in sizes:
            sizes[one] = size
            take(memory, shares[one], size)
        elif what == 1 and shares[one].size:
            del sizes[one]
            memory.settle(shares[one], 0)
        elif what == 2:
            sizes.pop(one, None)
            memory.leave(shares[one])
        serve()
        assert memory.held == sum(each.size for each in shares)
        assert memory.held <= limit or sum(each.size > 0 for each in shares) == 1
    while holders := [one for one in range(5) if shares[one].size]:
        for one in holders:
            del sizes[one]
            memory.settle(shares[one], 0)
            serve()
    assert not sizes
    assert memory.held == 0


def test_a_room_waits_for_its_turn_and_gives_back_what_it_did_not_need() -> None:
    async def whole() -> None:
        memory = SharedMemory(4 * MB)
        rooms = [AnswerRoom(memory, lambda: 0, lambda: None) for _ in range(3)]
        assert await rooms[0].take(4 * MB) == 4 * MB
        second, third = (asyncio.create_task(room.take(4 * MB)) for room in rooms[1:])
        await asyncio.sleep(0)
        rooms[0].settle(3 * MB)
        assert await second == MB
        rooms[1].settle(MB)
        await asyncio.sleep(0)
        assert not third.done()
        rooms[0].settle(0)
        assert await third == 3 * MB
        for room in rooms:
            room.leave()
        assert memory.held == 0

    asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.mark.parametrize("most", [0, 5, 100 * MB])
def test_without_a_memory_everything_is_given(most: int) -> None:
    async def whole() -> int:
        room = AnswerRoom(None, lambda: 0, lambda: None)
        given = await room.take(most)
        room.settle(0)
        room.leave()
        return given

    assert asyncio.run(whole()) == most
