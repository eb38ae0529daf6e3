from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from keylane.errors import UsageError
from keylane.storage import filesystem
from keylane.testing.clock import FARTHEST, MovableClock

HOUR = timedelta(hours=1)


def test_both_times_are_moved_by_the_same() -> None:
    clock = MovableClock()
    loop = clock.new_loop()
    before_ms, before_s = filesystem.now_ms(), loop.time()
    clock.move(HOUR)
    assert 3_600_000 <= clock.now_ms() - before_ms < 3_660_000
    assert 3_600 <= loop.time() - before_s < 3_660
    loop.close()


def test_timers_that_are_due_wake_in_their_order_and_others_wait() -> None:
    clock = MovableClock()
    woken: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for minutes, name in ((90, "later"), (50, "second"), (40, "first")):
            loop.call_later(minutes * 60, woken.append, name)
        sleeping = loop.create_task(asyncio.sleep(3_000))
        await asyncio.sleep(0)
        clock.move(HOUR)
        await sleeping
        assert woken == ["first", "second"]

    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        runner.run(asyncio.wait_for(main(), 7_200))


def test_it_goes_forward_by_a_hundred_years_in_all() -> None:
    clock = MovableClock()
    clock.move(FARTHEST)
    for by in (timedelta(milliseconds=1), timedelta(0), -HOUR):
        with pytest.raises(UsageError, match=r"36,500 days in all; it is 36500 days, 0:00:00 ahead"):
            clock.move(by)
