"""`one_processor`: where a consumer's threads run, and when they move."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from time import clock_gettime, monotonic, process_time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane import Pipeline, UsageError
from keylane.flow.host import one_processor
from keylane.flow.host.one_processor import CHECK_S, WORTH, OneProcessor, Times, better_one, read_times
from keylane.options import Processes
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keylane.records import Record

WAIT_S = 20.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
T0 = ("t", 0)
HERE, THERE, ELSEWHERE = 3, 5, 7


def after(seconds: float, *, own: float = 0.0, **idle: float) -> Times:
    """What the clocks say after so long, when at the start all said 0; `idle` of processors by their names above."""
    numbers = {"here": HERE, "there": THERE, "elsewhere": ELSEWHERE}
    return Times(seconds, own, {numbers[name]: idle.get(name, 0.0) for name in numbers})


BEFORE = after(0)
ALL = {HERE, THERE, ELSEWHERE}


def test_threads_move_where_others_leave_more() -> None:
    assert better_one(HERE, ALL, BEFORE, after(2, own=1.0, there=1.6, elsewhere=1.7)) == ELSEWHERE


def test_threads_stay_where_what_they_do_not_use_is_free() -> None:
    """However much they use themselves: another processor would have no more for them."""
    for own in (0.0, 0.1, 1.0, 1.9, 2.0):
        assert better_one(HERE, ALL, BEFORE, after(2, own=own, here=2 - own, there=2.0, elsewhere=2.0)) is None


def test_threads_stay_for_little() -> None:
    least = 1.0 + WORTH * 2
    assert better_one(HERE, ALL, BEFORE, after(2, own=1.0, there=least)) is None
    assert better_one(HERE, ALL, BEFORE, after(2, own=1.0, there=least + 0.01)) == THERE


def test_processors_that_are_not_allowed_or_went_away_are_left_out() -> None:
    now = after(2, own=0.5, there=1.9, elsewhere=2.0)
    assert better_one(HERE, {HERE, THERE}, BEFORE, now) == THERE
    gone = Times(now.elapsed, now.own, {HERE: 0.0, ELSEWHERE: 2.0})
    assert better_one(HERE, {HERE, THERE}, BEFORE, gone) is None
    assert better_one(HERE, {HERE}, BEFORE, now) is None


shares = st.floats(0, 1)


@given(shares, shares, shares, st.floats(0.1, 100))
def test_a_move_is_worth_it_and_not_undone(own: float, others: float, there: float, seconds: float) -> None:
    """With what it finds there, the same consumer would not come back."""
    own = min(own, 1 - others)
    here = 1 - own - others
    now = after(seconds, own=own * seconds, here=here * seconds, there=there * seconds)
    if better_one(HERE, {HERE, THERE}, BEFORE, now) is None:
        return
    assert there > here + own
    then = after(seconds, own=own * seconds, here=(here + own) * seconds, there=(there - own) * seconds)
    assert better_one(THERE, {HERE, THERE}, BEFORE, then) is None


def test_the_clocks_of_this_machine() -> None:
    one = read_times()
    two = read_times()
    assert set(one.idle) >= os.sched_getaffinity(0)
    assert one.elapsed <= two.elapsed
    assert one.own <= two.own
    for processor, idle in one.idle.items():
        assert 0 <= idle <= two.idle[processor]


def test_a_processor_that_waits_for_a_disk_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 2 3 4 5 6\ncpu0 10 20 30 400 50 6 7 0 0 0\ncpu12 1 1 1 700 0 1 1 0 0 0\nintr 8 0 9\n")
    monkeypatch.setattr(one_processor, "STAT", stat)
    assert read_times().idle == {0: pytest.approx(450 / TICKS_A_SECOND), 12: pytest.approx(700 / TICKS_A_SECOND)}


def in_a_thread(work: Callable[[], Any]) -> Any:
    """On a thread of its own, whose place nobody else keeps."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(WAIT_S)


def pipeline(handler: Callable[..., Any], **options: Any) -> Pipeline:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    return Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=handler, **options)


def places_of_handlers(*, asyncio: bool = False, **options: Any) -> list[set[int]]:
    """On which processors the threads of handlers may run."""
    seen: list[set[int]] = []

    def handler(_: Record) -> None:
        seen.append(os.sched_getaffinity(0))

    async def handler_of_asyncio(_: Record) -> None:
        seen.append(os.sched_getaffinity(0))

    broker = FakeBroker([T0])
    broker.append(T0, [(b"%d" % number, b"") for number in range(20)])
    engine = FakeEngine(
        pipeline(handler_of_asyncio if asyncio else handler, **options), broker, ending_offsets={T0: 20}
    )
    engine.loop.start()
    assert engine.loop.ended.wait(WAIT_S)
    engine.loop.raise_failure()
    assert len(seen) == 20
    return seen


@pytest.mark.parametrize("asyncio", [False, True])
def test_handlers_are_on_one_processor_and_the_program_where_it_was(asyncio: bool) -> None:
    before = os.sched_getaffinity(0)
    seen = places_of_handlers(asyncio=asyncio, one_processor=True)
    assert len(seen[0]) == 1
    assert seen[0] <= before
    assert seen == [seen[0]] * 20
    assert os.sched_getaffinity(0) == before


def test_without_the_option_handlers_may_run_everywhere() -> None:
    assert places_of_handlers() == [os.sched_getaffinity(0)] * 20


class Others:
    """Times as they are when somebody else uses the processor of the calling thread, and nobody another one."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> Times:
        self.reads += 1
        mine = min(os.sched_getaffinity(0))
        idle = {one: 0.0 if one == mine else 1.9 * self.reads for one in range(os.cpu_count() or 1)}
        return Times(2.0 * self.reads, 0.1 * self.reads, idle)


two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


@two_processors
def test_all_that_were_kept_together_move_together() -> None:
    """What the thread started, too; the rest of the program stays."""
    end = threading.Event()
    started: list[threading.Thread] = []
    places: dict[str, set[int]] = {}

    def run() -> None:
        keeper = OneProcessor(lambda: 0.5, Others())
        keeper.keep(100.0)
        assert keeper.next_check == 100.0 + CHECK_S
        first = os.sched_getaffinity(0)
        inherits = threading.Thread(target=end.wait)
        inherits.start()
        started.append(inherits)
        keeper.check(102.0)
        assert keeper.next_check == 102.0 + CHECK_S
        assert inherits.native_id is not None
        places.update(first=first, mine=os.sched_getaffinity(0), started=os.sched_getaffinity(inherits.native_id))

    before = os.sched_getaffinity(0)
    try:
        in_a_thread(run)
    finally:
        end.set()
        for thread in started:
            thread.join(WAIT_S)
    assert len(places["mine"]) == 1
    assert places["mine"] != places["first"]
    assert places["started"] == places["mine"]
    assert os.sched_getaffinity(0) == before


@two_processors
def test_a_place_that_somebody_else_chose_is_left() -> None:
    allowed = os.sched_getaffinity(0)

    def run() -> tuple[set[int], float]:
        keeper = OneProcessor(lambda: 0.5, Others())
        keeper.keep(0.0)
        os.sched_setaffinity(0, allowed)
        keeper.check(2.0)
        return os.sched_getaffinity(0), keeper.next_check

    assert in_a_thread(run) == (allowed, float("inf"))


def test_one_processor_alone_is_never_compared() -> None:
    def run() -> float:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        keeper = OneProcessor(lambda: 0.5)
        keeper.keep(0.0)
        return keeper.next_check

    assert in_a_thread(run) == float("inf")


@pytest.mark.parametrize("error", [OSError(1, "Operation not permitted"), AttributeError("no sched_setaffinity")])
def test_a_system_that_refuses_is_named_and_the_consumer_runs(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with caplog.at_level(logging.WARNING, "keylane.consumer"):
        assert places_of_handlers(one_processor=True) == [os.sched_getaffinity(0)] * 20
    assert [record.message for record in caplog.records] == [
        f"one_processor=True has no effect on this system: {error}"
    ]


@two_processors
def test_a_move_that_is_refused_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    def run() -> float:
        keeper = OneProcessor(lambda: 0.5, Others())
        keeper.keep(0.0)
        monkeypatch.setattr(one_processor, "move", refuse)
        keeper.check(2.0)
        return keeper.next_check

    with caplog.at_level(logging.WARNING, "keylane.consumer"):
        assert in_a_thread(run) == float("inf")
    [record] = caplog.records
    assert (
        record.message
        == "one_processor=True leaves the threads where they are from now on: [Errno 22] Invalid argument"
    )


class TwoAlone:
    """/proc/stat as it would be with this process and a real neighbour alone on the machine, both on one processor.

    What else runs here is left out: a processor that others fill has no more to give, and nobody moves there.
    """

    TICKS_A_SECOND = 1_000_000
    """Not the 100 of this machine: here they tell how little of a full machine the two got."""

    def __init__(self, processor: int, neighbour: int) -> None:
        self._processor = processor
        self._clock = (~neighbour << 3) | 2  # clock_getcpuclockid(3), which Python does not wrap
        self._began = monotonic() - process_time()

    def read_text(self) -> str:
        elapsed = monotonic() - self._began
        here = elapsed - process_time() - clock_gettime(self._clock)
        idle = {one: here if one == self._processor else elapsed for one in range(os.cpu_count() or 1)}
        return "".join(f"cpu{one} 7 7 7 {int(some * self.TICKS_A_SECOND)} 0 7\n" for one, some in idle.items())


@two_processors
def test_a_consumer_leaves_a_processor_that_another_process_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real neighbour, kept on the consumer's processor, and its real processor time."""
    monkeypatch.setattr(one_processor, "WORTH", 0.01)

    def run() -> tuple[set[int], set[int]]:
        keeper = OneProcessor(lambda: 0.5)
        keeper.keep(monotonic())
        first = os.sched_getaffinity(0)
        burn = "import sys\nprint(flush=True)\nwhile True: pass"
        neighbour = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE)  # inherits our processor
        try:
            assert neighbour.stdout is not None
            neighbour.stdout.read(1)
            assert os.sched_getaffinity(neighbour.pid) == first
            monkeypatch.setattr(one_processor, "STAT", TwoAlone(min(first), neighbour.pid))
            monkeypatch.setattr(os, "sysconf", lambda _: TwoAlone.TICKS_A_SECOND)
            deadline = monotonic() + WAIT_S
            keeper._look(monotonic())  # so that figures of the two are compared with such
            while os.sched_getaffinity(0) == first:
                assert monotonic() < deadline, "never moved"
                end = monotonic() + 0.2
                while monotonic() < end:
                    pass
                keeper.check(monotonic())
            return first, os.sched_getaffinity(0)
        finally:
            neighbour.kill()
            neighbour.communicate()

    first, then = in_a_thread(run)
    assert len(then) == 1
    assert then != first


@pytest.mark.parametrize("value", [1, "yes", None])
def test_the_option_is_true_or_false(value: object) -> None:
    with pytest.raises(UsageError, match=f"one_processor={value!r}: give True or False"):
        pipeline(print, one_processor=value)


def test_worker_processes_are_not_kept_on_one() -> None:
    with pytest.raises(UsageError, match="worker processes want processors"):
        pipeline(print, one_processor=True, workers=Processes())
