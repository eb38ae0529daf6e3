"""One processor for all threads of a consumer (`one_processor`).

The idea: the interpreter runs one thread at a time. Spread over processors, its threads wake each other from one to
another, and waking a processor that has nothing to do takes longer than what a thread then does; on one they take
turns. The loop's thread is kept on the processor where the kernel started it, and whatever it starts inherits that
(sched_setaffinity(2)): the workers, the group's client and its threads, and what handlers start.

Others may want that processor, too. So while there is work it is compared with the rest from time to time, and where
another one has clearly more to give, all the threads move there.
"""

from __future__ import annotations

import logging
import os
from math import inf
from pathlib import Path
from time import monotonic, process_time
from typing import TYPE_CHECKING, NamedTuple

from keylane.flow.host.linux import current_processor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

logger = logging.getLogger("keylane.consumer")

CHECK_S = 2.0
"""Between two looks, on average; by chance half or one and a half of it, so that two consumers that meet on a processor
do not go on together."""

WORTH = 0.25
"""The share of a processor by which another one has to have more to give."""

GAP_S = 0.000_05
"""On one processor nobody else works while a turn of the loop does: between its steps it lets those go on that woke
meanwhile, as long as the workers have enough to do. One wait of a third of a millisecond for all of them costs more
than it takes: each one wakes, finds the interpreter's lock taken, and sleeps again."""

TASKS = Path("/proc/self/task")
STAT = Path("/proc/stat")
IDLE, WAITING_FOR_DISK = 4, 5
"""Fields of a processor's line (proc(5)), in clock ticks; its name is field 0."""


class Times(NamedTuple):
    """In seconds, each since a moment of its own."""

    elapsed: float
    own: float
    """Processor time of this process."""
    idle: Mapping[int, float]
    """Of each processor, for how long it has had nothing to do."""


def read_times() -> Times:
    lines = (line.split() for line in STAT.read_text().splitlines())
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return Times(
        monotonic(),
        process_time(),
        {
            int(fields[0][3:]): (int(fields[IDLE]) + int(fields[WAITING_FOR_DISK])) * tick_s
            for fields in lines
            if fields[0].startswith("cpu") and fields[0] != "cpu"
        },
    )


def better_one(mine: int, allowed: Set[int], before: Times, after: Times) -> int | None:
    """The processor that the threads on `mine` should move to, of those `allowed`; None: none has clearly more to give.

    Here there is what we used and what nobody used; there, what nobody used. Pure.
    """
    elapsed = after.elapsed - before.elapsed
    idle = {one: after.idle[one] - before.idle[one] for one in after.idle.keys() & before.idle.keys() & allowed}
    here = idle.pop(mine, 0.0) + after.own - before.own
    most = max(idle, key=lambda one: idle[one], default=None)
    return most if most is not None and idle[most] > here + WORTH * elapsed else None


class OneProcessor:
    """Keeps the thread that calls `take`, and what it starts, on one processor.

    Thread safety: the loop's alone.
    """

    gap_s = GAP_S

    def __init__(self, random: Callable[[], float], read: Callable[[], Times] = read_times) -> None:
        self._random = random
        self._read = read
        self._allowed: frozenset[int] = frozenset()
        self._before: Times | None = None
        self.next_check = inf

    def keep(self, now: float) -> None:
        """Stay where the calling thread is. Where the system has no such call, or refuses, that is logged and the
        threads run everywhere."""
        try:
            self._allowed = frozenset(os.sched_getaffinity(0))
            if len(self._allowed) > 1:
                self._look(now)  # first: threads that could never move are better kept nowhere
            os.sched_setaffinity(0, {current_processor()})
        except (OSError, AttributeError) as error:
            self._give_up("has no effect on this system", error)

    def check(self, now: float) -> None:
        """Move all threads that are where the loop's is, if another processor has clearly more to give."""
        assert self._before is not None, "keep() comes first"
        try:
            before, after, (mine, *others) = self._before, self._look(now), os.sched_getaffinity(0)
            if others:  # somebody else decided
                self.next_check = inf
            elif (there := better_one(mine, self._allowed, before, after)) is not None:
                move(mine, there)
                logger.info("one_processor: moved from processor %d to %d, which has more to give", mine, there)
        except OSError as error:
            self._give_up("leaves the threads where they are from now on", error)

    def _look(self, now: float) -> Times:
        self.next_check = now + CHECK_S * (0.5 + self._random())
        self._before = self._read()
        return self._before

    def _give_up(self, what: str, error: OSError | AttributeError) -> None:
        self.next_check = inf
        logger.warning("one_processor=True %s: %s", what, error)


def move(mine: int, there: int) -> None:
    """Move the process's threads that may run on `mine` alone to `there`; twice, for those that started meanwhile."""
    for _ in range(2):
        for thread in [int(task.name) for task in TASKS.iterdir()]:
            try:
                if os.sched_getaffinity(thread) == {mine}:
                    os.sched_setaffinity(thread, {there})
            except ProcessLookupError:  # it has ended
                continue
