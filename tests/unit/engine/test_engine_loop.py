"""The whole engine on fakes: loop, intake thread, workers and core together, without a broker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from contextlib import contextmanager
from queue import Empty
from typing import TYPE_CHECKING, Any

import pytest

from keylane import DeadLetter, HandlerError, Output, PeerError, Pipeline, Record, Retries, Skip
from keylane.consumer.commits import CommitProblem
from keylane.consumer.intake import Intake
from keylane.consumer.loop import Loop
from keylane.offsets import OffsetMap, decode
from keylane.options import Batch, Threads
from keylane.pipeline import Commit
from kit.fakes import FakeBroker, FakeConsumer, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 20.0
T0, T1 = ("t", 0), ("t", 1)


def pipeline(handler: Callable[..., Any], **options: Any) -> Pipeline:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    return Pipeline(**{"kafka": kafka, "topics": ["t"], "offset_reset": "earliest", "handler": handler, **options})


def broker(*counts: int, keys: int = 5) -> FakeBroker:
    made = FakeBroker([("t", partition) for partition in range(len(counts))])
    for partition, count in enumerate(counts):
        made.append(("t", partition), [(b"%d" % (i % keys), b"%d" % i) for i in range(count)])
    return made


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.002)


def ended(engine: FakeEngine) -> BaseException | None:
    assert engine.loop.ended.wait(WAIT_S), "the engine did not end"
    return engine.loop.failure


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


class Seen:
    """A handler that notes what it got, and whether two records of a key were ever in it at once."""

    def __init__(self, work: Callable[[Record], Any] = lambda _: None) -> None:
        self.records: list[tuple[int, int]] = []
        self.overlaps = 0
        self._work = work
        self._inside: set[Any] = set()
        self._lock = threading.Lock()

    def __call__(self, record: Record) -> Any:
        shard = (record.partition, record.key)
        with self._lock:
            self.overlaps += shard in self._inside
            self._inside.add(shard)
            self.records.append((record.partition, record.offset))
        try:
            return self._work(record)
        finally:
            with self._lock:
                self._inside.discard(shard)


@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
@pytest.mark.parametrize("is_async", [False, True])
def test_everything_is_run_once_in_order_and_committed(ordering: Any, is_async: bool) -> None:
    seen = Seen()

    async def coroutine(record: Record) -> None:
        seen(record)
        await asyncio.sleep(0)

    log = broker(3_000, 0, 1_000, 7)
    ends = {("t", p): n for p, n in enumerate((3_000, 0, 1_000, 7))}
    with FakeEngine(pipeline(coroutine if is_async else seen, ordering=ordering), log, ending_offsets=ends) as engine:
        assert ended(engine) is None
    assert sorted(seen.records) == [(p, o) for (_, p), n in ends.items() for o in range(n)]
    assert {name: log.committed[name] for name in ends} == {name: (n, "") for name, n in ends.items()}
    if ordering != "unordered":
        assert seen.overlaps == 0
        for partition, count in ((0, 3_000), (2, 1_000)):
            offsets = [o for p, o in seen.records if p == partition]
            groups = [offsets] if ordering == "partition" else [[o for o in offsets if o % 5 == k] for k in range(5)]
            assert all(group == sorted(group) for group in groups)
            assert len(offsets) == count
    snapshot = engine.loop.snapshot()
    assert (snapshot.processed, snapshot.in_flight, snapshot.buffered) == (4_007, 0, 0)
    assert engine.consumer.closed


def test_an_end_that_fails_is_told_and_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = RuntimeError("a defect")

    def end_of_failures(_: object, now: float) -> None:
        raise defect

    with FakeEngine(pipeline(Seen()), broker(10), ending_offsets={T0: 10}) as engine:
        monkeypatch.setattr("keylane.flow.failures.Failures.end", end_of_failures)
        assert ended(engine) is defect


def test_retries_outputs_and_dead_letters_end_to_end() -> None:
    def work(record: Record) -> Any:
        if record.offset % 10 == 3:
            raise ValueError("never")
        return [Output("out", key=record.key, value=record.value)] * 2

    log = broker(100)
    options = {"retries": Retries(max_attempts=2, delay_ms=1), "on_exhausted": DeadLetter("dead")}
    with FakeEngine(pipeline(Seen(work), **options), log, ending_offsets={T0: 100}) as engine:
        assert ended(engine) is None
    letters = [one for one in engine.producer.sent if one.topic == "dead"]
    assert sorted(int(one.value or b"") for one in letters) == list(range(3, 100, 10))
    assert len(engine.producer.sent) == 190
    snapshot = engine.loop.snapshot()
    assert (snapshot.processed, snapshot.dead_lettered, snapshot.failed, snapshot.produced) == (90, 10, 20, 190)
    assert engine.producer.closed


@pytest.mark.parametrize("option", ["drain_timeout_ms", "revoke_timeout_ms", "stall_timeout_ms", "handler_timeout_ms"])
def test_a_limit_of_centuries_is_none(option: str) -> None:
    with FakeEngine(pipeline(Seen(), **{option: 10**18}), broker(3)) as engine:
        until(lambda: engine.loop.snapshot().processed == 3, "all are processed")
    assert ended(engine) is None


@pytest.mark.parametrize("question", [Loop.snapshot, Loop.work, lambda loop: loop.answers(WAIT_S)])
def test_a_function_that_the_loop_calls_may_ask_it(question: Callable[[Loop], Any]) -> None:
    answers: list[Any] = []
    entered = threading.Event()

    def delay_ms(*_: Any) -> int:
        entered.wait(WAIT_S)
        answers.append(question(engine.loop))
        return 0

    def work(_: Record) -> None:
        raise ValueError("never")

    options = {"retries": Retries(max_attempts=2, delay_ms=delay_ms), "on_exhausted": Skip()}
    with FakeEngine(pipeline(Seen(work), **options), broker(1), ending_offsets={T0: 1}) as engine:
        rescue = threading.Timer(WAIT_S / 2, engine.loop.ended.set)  # a loop that waits for itself waits for ever
        rescue.start()
        entered.set()
        assert ended(engine) is None
        waited = not rescue.is_alive()
        rescue.cancel()
        rescue.join()
    assert not waited
    assert len(answers) == 1
    assert answers[0]


def test_a_record_is_not_committed_before_its_output_is_acknowledged() -> None:
    log = broker(1)
    handled = threading.Event()

    def work(record: Record) -> Output:
        handled.set()
        return Output("out")

    engine = FakeEngine(pipeline(work, commit=Commit(interval_ms=10)), log, ending_offsets={T0: 1})
    engine.producer.held = []
    with engine:
        until(lambda: bool(engine.producer.held), "the output is sent")
        snapshot = engine.loop.snapshot()
        assert (snapshot.handed_over, snapshot.in_flight) == (1, 0), "its handler is through"
        assert engine.loop.snapshot().partitions[0].base == 0
        engine.producer.release()
        assert ended(engine) is None
    assert log.committed[T0] == (1, "")


def test_halt_commits_what_is_complete_and_names_the_record() -> None:
    def work(record: Record) -> None:
        if record.offset == 3:
            raise ValueError("bad")

    log = broker(10, keys=10)
    with FakeEngine(pipeline(work, retries=Retries(max_attempts=1)), log) as engine:
        failure = ended(engine)
    assert isinstance(failure, HandlerError)
    assert str(failure).startswith("t-0@3: ValueError: bad; failed 1 attempt;")
    offset, metadata = log.committed[T0]
    said = decode(metadata, offset)
    assert offset == 3
    assert said.is_complete(9) or said == OffsetMap(3), "what ran beside it is in the map"


def test_stop_drains_handlers_and_what_was_not_begun_stays_for_the_next_run() -> None:
    entered: list[int] = []
    gate = threading.Event()

    def work(record: Record) -> None:
        entered.append(record.offset)
        gate.wait(WAIT_S)

    log = broker(50, keys=50)
    with FakeEngine(pipeline(work, workers=Threads(2)), log) as engine:
        until(lambda: len(entered) == 2, "both threads are busy")
        engine.loop.stop()
        assert not engine.loop.ended.wait(0.05)
        gate.set()
        assert ended(engine) is None
    assert log.committed[T0] == (2, "")
    assert engine.loop.snapshot().processed == 2
    ran: list[int] = []
    ends = {T0: 50}
    with FakeEngine(pipeline(lambda record: ran.append(record.offset)), log, ending_offsets=ends) as engine:
        assert ended(engine) is None
    assert sorted(ran) == list(range(2, 50))


def test_a_restart_runs_only_what_the_map_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.consumer.loop.WORKERS_CLOSE_S", 0.05)
    log = broker(100, keys=100)
    block = threading.Event()

    def first(record: Record) -> None:
        if record.offset in (5, 50):
            block.wait(WAIT_S)

    with FakeEngine(pipeline(first, drain_timeout_ms=0), log) as engine:
        until(lambda: engine.loop.snapshot().processed == 98, "all but two are through")
        engine.loop.stop()
        assert ended(engine) is None
        assert decode(log.committed[T0][1], log.committed[T0][0]) == OffsetMap(5, [5, 50], 99)
        block.set()
    until(lambda: not [one for one in threading.enumerate() if "fake-worker" in one.name], "the old handlers end")
    ran: list[int] = []
    with FakeEngine(pipeline(lambda record: ran.append(record.offset)), log, ending_offsets={T0: 100}) as engine:
        assert ended(engine) is None
    assert sorted(ran) == [5, 50]
    assert engine.loop.snapshot().already_complete == 93, "6 to 99 but 50; what is below the base is not read again"


def test_a_revoke_commits_what_ran_and_the_kept_partition_goes_on() -> None:
    entered, gate = threading.Event(), threading.Event()

    def work(record: Record) -> None:
        ran[record.partition] += 1
        if (record.partition, record.offset) == (0, 1):
            entered.set()
            gate.wait(WAIT_S)

    ran = [0, 0]
    log = broker(10, 10)
    with FakeEngine(pipeline(work, ordering="partition"), log) as engine:
        assert entered.wait(WAIT_S)
        until(lambda: engine.loop.snapshot().processed == 11, "partition 1 is through, and record 0 of partition 0")
        engine.consumer.revoke([T0])
        log.append(T1, [(b"k", b"v")])
        gate.set()
        until(lambda: T0 not in engine.consumer.positions, "revoked")
        assert log.committed[T0] == (ran[0], "")
        assert ran[0] >= 2, "it waited for the handler"
        until(lambda: ran[1] == 11, "the kept partition goes on")
        engine.consumer.assign([T0])
        until(lambda: engine.loop.snapshot().processed == 21, "and this one, where it was left, once it is back")
        engine.loop.stop()
        assert ended(engine) is None
    assert log.committed == {T0: (10, ""), T1: (11, "")}


def test_lost_partitions_are_not_committed_and_their_handlers_are_told() -> None:
    entered, told = threading.Event(), threading.Event()

    async def handler(record: Record) -> None:
        entered.set()
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            told.set()
            raise

    log = broker(1)
    with FakeEngine(pipeline(handler), log) as engine:
        assert entered.wait(WAIT_S)
        before = len(log.commits)
        engine.consumer.lose([T0])
        assert told.wait(WAIT_S)
        assert len(log.commits) == before
        assert engine.loop.snapshot().partitions == ()


def test_failing_commits_are_repeated_until_they_are_taken() -> None:
    log = broker(10)
    log.fail_commits.extend([CommitProblem("_TRANSPORT: gone")] * 2)
    with FakeEngine(pipeline(Seen()), log, ending_offsets={T0: 10}) as engine:
        assert ended(engine) is None
    assert log.committed[T0] == (10, "")
    assert engine.loop.snapshot().commit_failures == 2


def test_a_map_that_a_broker_refuses_at_a_revoke_is_left_out() -> None:
    log = broker(10, keys=10)
    block = threading.Event()

    def work(record: Record) -> None:
        if record.offset == 0:
            block.wait(WAIT_S)

    with FakeEngine(pipeline(work, revoke_timeout_ms=10), log) as engine:
        until(lambda: engine.loop.snapshot().processed == 9, "all but one are through")
        log.fail_commits.append(CommitProblem("OFFSET_METADATA_TOO_LARGE", metadata_too_large=True))
        engine.consumer.revoke([T0])
        until(lambda: bool(log.commits), "committed")
        block.set()
    assert log.commits[0] == {T0: (0, "")}


def test_a_slow_handler_bounds_what_is_polled_and_pauses_in_the_end() -> None:
    gate = threading.Event()

    def wait(record: Record) -> None:
        gate.wait(WAIT_S)

    log = broker(5_000)
    with FakeEngine(pipeline(wait, max_buffered_records=200), log, ending_offsets={T0: 5_000}) as engine:
        until(lambda: engine.consumer.paused == {T0}, "paused")
        assert engine.consumer.positions[T0] == engine.loop.snapshot().buffered <= 200
        gate.set()
        assert ended(engine) is None
    assert engine.loop.snapshot().processed == 5_000


def test_a_pause_comes_before_the_record_that_is_allowed_with_it() -> None:
    """A paused poll may bring a record of others; the intake, which looks for requests first, must not take it of the
    partition whose pause was asked for in between."""
    log = broker(5)
    consumer = FakeConsumer(log)
    reports: list[Any] = []
    intake = Intake(consumer, reports.append, revoke_timeout_s=1, name="test")

    class Requests:
        """Empty, and the moment after that full."""

        asked = False

        def get(self, *_: object) -> Any:
            if not self.asked:
                self.asked = True
                intake.allow(1)  # of the time before
                return (lambda _: None), None
            if not waiting:
                intake.pause({T0: 1})
                intake.allow(2)
                raise Empty
            return waiting.popleft()

        def put(self, request: Any) -> None:
            waiting.append(request)

    waiting: deque[Any] = deque()
    intake._requests = Requests()  # type: ignore[assignment]
    consumer.subscribe(intake)
    intake._obey()
    intake._poll()
    assert consumer.positions[T0] == 1, "what was allowed before the pause"


def test_a_stuck_partition_never_stops_another() -> None:
    gate = threading.Event()
    count = 200  # ten times what is buffered, one after another: each waits for a turn of two threads

    def work(record: Record) -> None:
        if record.partition == 0:
            gate.wait(WAIT_S)

    log = broker(count, count)
    with FakeEngine(
        pipeline(work, max_buffered_records=20, ordering="partition", commit=Commit(interval_ms=100)),
        log,
        ending_offsets={T0: count, T1: count},
    ) as engine:
        until(lambda: log.committed.get(T1) == (count, ""), "the other is through")
        assert engine.loop.snapshot().processed == count
        gate.set()
        assert ended(engine) is None


def test_a_resource_that_cannot_be_made_ends_the_run_with_its_error() -> None:
    def resource() -> None:
        raise ConnectionRefusedError("no database")

    with FakeEngine(pipeline(Seen(), resource=resource), broker(3)) as engine:
        failure = ended(engine)
    assert isinstance(failure, HandlerError)
    assert str(failure) == "the pipeline's resource could not be made: ConnectionRefusedError: no database"


def test_a_resource_that_cannot_be_closed_ends_the_run_with_its_error() -> None:
    @contextmanager
    def resource() -> Iterator[None]:
        yield
        raise OSError("stuck")

    with FakeEngine(pipeline(Seen(), resource=resource), broker(3), ending_offsets={T0: 3}) as engine:
        failure = ended(engine)
    assert str(failure) == "the pipeline's resource could not be closed: OSError: stuck"


def test_a_consumer_that_cannot_go_on_still_commits_what_is_complete() -> None:
    log = broker(10)
    with FakeEngine(pipeline(Seen(), commit=Commit(interval_ms=100_000)), log) as engine:
        until(lambda: engine.loop.snapshot().processed == 10, "all are through")
        engine.consumer.poll_error = PeerError("the Kafka client cannot go on")
        failure = ended(engine)
    assert str(failure) == "the Kafka client cannot go on"
    assert log.committed[T0] == (10, "")
    assert engine.consumer.closed


def test_a_client_that_breaks_ends_the_run_with_its_error() -> None:
    with FakeEngine(pipeline(Seen()), broker(10)) as engine:
        engine.consumer.poll_error = RuntimeError("broken")
        failure = ended(engine)
    assert str(failure) == "broken"
    assert engine.consumer.closed


def test_a_defect_of_the_loop_ends_the_run_and_leaves_the_group(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("keylane.consumer.core.Core.polled", broken)
    with caplog.at_level(logging.ERROR, "keylane"), FakeEngine(pipeline(Seen()), broker(10)) as engine:
        failure = ended(engine)
    assert isinstance(failure, ZeroDivisionError)
    assert "the engine's loop failed" in caplog.text
    assert engine.consumer.closed


def test_a_handler_that_outlives_the_close_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keylane.consumer.loop.WORKERS_CLOSE_S", 0.05)
    gate, entered = threading.Event(), threading.Event()

    def work(record: Record) -> None:
        entered.set()
        gate.wait(WAIT_S)

    with caplog.at_level(logging.ERROR, "keylane"):
        with FakeEngine(pipeline(work, drain_timeout_ms=10, revoke_timeout_ms=10), broker(1)) as engine:
            assert entered.wait(WAIT_S)
            engine.loop.stop()
            assert ended(engine) is None
        gate.set()
    assert "closed while the handler still ran on t-0@0; its thread is left behind" in caplog.text
    until(lambda: not [one for one in threading.enumerate() if "fake-worker" in one.name], "the thread ends after all")


def test_snapshots_come_from_any_thread_while_it_runs_and_after() -> None:
    log = broker(2_000)
    found: list[int] = []
    with FakeEngine(pipeline(Seen(), on_exhausted=Skip()), log, ending_offsets={T0: 2_000}) as engine:

        def watch() -> None:
            while not engine.loop.ended.is_set():
                found.append(engine.loop.snapshot().processed)

        threads = [threading.Thread(target=watch) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert ended(engine) is None
        for thread in threads:
            thread.join()
    assert engine.loop.snapshot().processed == 2_000
    assert engine.loop.snapshot().partitions == ()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch_size", [1, 10])
def test_snapshots_know_how_long_handlers_and_commits_took(is_async: bool, batch_size: int) -> None:
    def work(_: Any) -> None:
        time.sleep(0.002)

    async def coroutine(_: Any) -> None:
        time.sleep(0.002)  # noqa: ASYNC251 - so that it takes that long, and no task waits for another

    def outcomes(records: Any) -> Any:
        work(records)
        return [None] * len(records)

    async def outcomes_async(records: Any) -> Any:
        await coroutine(records)
        return [None] * len(records)

    handlers = {(False, 1): work, (True, 1): coroutine, (False, 10): outcomes, (True, 10): outcomes_async}
    options = {"batch": Batch(batch_size) if batch_size > 1 else None, "ordering": "unordered"}
    engine = FakeEngine(pipeline(handlers[is_async, batch_size], **options), broker(50), ending_offsets={T0: 50})
    with engine:
        assert ended(engine) is None
    latency = engine.loop.snapshot().handler_latency
    assert latency.count == 50 / batch_size
    assert latency.sum_s >= latency.count * 0.002
    assert (latency.quantile_s(0) or 0) > 0.002
    assert engine.loop.snapshot().commit_latency.count == engine.loop.snapshot().commits > 0


def test_snapshots_know_size_and_encoding_of_what_was_committed() -> None:
    gate = threading.Event()
    log = broker(100)
    handler = Seen(lambda record: gate.wait(WAIT_S) and None if record.offset == 0 else None)
    with FakeEngine(pipeline(handler, commit=Commit(interval_ms=1)), log) as engine:
        until(lambda: engine.loop.snapshot().partitions != () and T0 in log.committed, "it is assigned")
        until(lambda: engine.loop.snapshot().partitions[0].metadata_characters > 0, "a commit with a map")
        [part] = engine.loop.snapshot().partitions
        assert part.metadata_encoding is not None
        assert part.metadata_encoding.startswith(("RunLength", "BitSet"))
        assert not part.paused
        until(lambda: engine.loop.snapshot().partitions[0].shards == 1, "the others of its records are through")
        gate.set()
        until(lambda: log.committed[T0] == (100, ""), "all is committed")
        until(lambda: engine.loop.snapshot().partitions[0].metadata_encoding is None, "and acknowledged")
        assert engine.loop.snapshot().partitions[0].metadata_characters == 0


def test_the_first_poll_waits_for_nothing() -> None:
    """Without a first credit the intake would never join the group, and nothing would ever happen."""
    joined = threading.Event()

    class Joining(FakeConsumer):
        def poll(self, max_records: int, timeout_s: float) -> Any:
            joined.set()
            return super().poll(max_records, timeout_s)

    with FakeEngine(pipeline(Seen()), broker(0)) as engine:
        engine.consumer.__class__ = Joining
        assert joined.wait(WAIT_S)


def test_the_parts_have_the_names_of_their_threads() -> None:
    with FakeEngine(pipeline(Seen(), workers=Threads(2)), broker(1)):
        until(
            lambda: (
                {one.name for one in threading.enumerate()}
                >= {"fake-loop", "fake-intake", "fake-worker-0", "fake-worker-1"}
            ),
            "all threads run",
        )
    assert Loop.__doc__
    assert Intake.__doc__
