"""Where consumers start, where they go on, what they say of it: offsets kept elsewhere, seeks, starts by time."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.membership import Target
from keylane.offsets import OffsetMap
from kit.filling import filling
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DAY_MS = 24 * 3_600_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("positions") / "data") as broker:
        yield broker.bootstrap


@pytest.fixture
def stage(servers: str, request: pytest.FixtureRequest) -> Stage:
    """A topic with 10 records in each of two partitions; their timestamps are an hour apart, the last an hour ago."""
    made = Stage(servers, request.node.name.replace("[", "-").replace("]", "")[:100])
    made.create(2)
    now_ms = time.time_ns() // 1_000_000
    with filling(servers) as producer:
        for offset in range(10):
            for partition in (0, 1):
                at_ms = now_ms - (10 - offset) * 3_600_000
                producer.produce(kl.Output(made.topic, value=b"v", partition=partition, timestamp_ms=at_ms))
    return made


class Running:
    """A consumer on a thread, and what it ran."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self.stage = stage
        self.ran: list[tuple[int, int]] = []
        self.consumer = kl.ParallelConsumer(stage.pipeline(self.handler, **options))
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.run)

    def handler(self, record: kl.Record) -> None:
        self.ran.append((record.partition, record.offset))

    def run(self) -> None:
        try:
            self.consumer.run()
        except kl.KeylaneError as error:
            self.failure = error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self.thread.join()

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, f"{sorted(self.ran)}, {self.consumer.snapshot()}, {self.failure}")


def every(first: int = 0) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in (0, 1) for offset in range(first, 10)}


def test_offsets_are_kept_elsewhere_and_keylane_commits_nothing(stage: Stage) -> None:
    kept: dict[tuple[str, int], int] = {(stage.topic, 0): 7}
    asked = []

    def start(names: list[tuple[str, int]]) -> dict[tuple[str, int], Any]:
        asked.extend(names)
        return {name: kept.get(name) for name in names}

    options: dict[str, Any] = {"commit": kl.External(start, interval_ms=50)}
    with Running(stage, on_commit=lambda offsets, _: kept.update(offsets), **options) as running:
        running.until(lambda: set(running.ran) == {(0, 7), (0, 8), (0, 9)} | {(1, offset) for offset in range(10)})
        running.until(lambda: kept == {(stage.topic, 0): 10, (stage.topic, 1): 10})
    assert sorted(asked) == [(stage.topic, 0), (stage.topic, 1)]
    assert stage.committed() == {}
    kept[stage.topic, 1] = 9
    with Running(stage, **options) as running:
        running.until(lambda: running.ran == [(1, 9)])
    assert stage.committed() == {}


def test_an_external_start_may_have_a_map(stage: Stage) -> None:
    def start(names: list[tuple[str, int]]) -> dict[tuple[str, int], OffsetMap]:
        return {name: OffsetMap(3, [3, 5], 8) for name in names}

    with Running(stage, commit=kl.External(start)) as running:
        running.until(lambda: set(running.ran) == {(p, o) for p in (0, 1) for o in (3, 5, 9)})


@pytest.mark.parametrize("given", [{}, "raises", -5])
def test_external_starts_that_are_none(stage: Stage, given: Any) -> None:
    def start(names: list[tuple[str, int]]) -> Any:
        if given == "raises":
            raise OSError("no database")
        return given and dict.fromkeys(names, given)

    with Running(stage, commit=kl.External(start)) as running:
        if given == {}:
            running.until(lambda: set(running.ran) == every())
        else:
            running.until(lambda: running.failure is not None)
            assert isinstance(running.failure, kl.HandlerError)
            assert "start_offsets" in str(running.failure)


@pytest.mark.parametrize(("duration", "first"), [("PT3H30M", 7), ("P2D", 0), ("PT1M", 10)])
def test_a_start_by_duration_is_committed(stage: Stage, duration: str, first: int) -> None:
    with Running(stage, offset_reset=f"by_duration:{duration}") as running:
        running.until(lambda: set(running.ran) == every(first))
        running.until(lambda: {one.base for one in stage.committed().values()} == {10})


class Came(kl.RebalanceListener):
    """The partitions that came, with their starts settled."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []

    def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
        self.names.extend(partitions)


def test_seek_back_forwards_and_by_time(stage: Stage) -> None:
    came = Came()
    with Running(stage, rebalance_listener=came) as running:
        running.until(lambda: set(running.ran) == every())
        running.ran.clear()
        running.consumer.seek({(stage.topic, 0): 6, ("not ours", 3): 5})
        running.until(lambda: set(running.ran) == {(0, 6), (0, 7), (0, 8), (0, 9)})
        running.ran.clear()
        running.consumer.seek_to_time(time.time_ns() // 1_000_000 - 2 * 3_600_000 - 60_000)
        running.until(lambda: set(running.ran) == every(8))
        running.ran.clear()
        came.names.clear()
        running.consumer.seek({(stage.topic, 1): 1_000})
        running.until(lambda: came.names == [(stage.topic, 1)])  # at the end that the log has now
        stage.fill([(None, 1)])
        running.until(lambda: running.ran == [(1, 10)])
        running.until(lambda: {name[1]: one.base for name, one in stage.committed().items()} == {0: 10, 1: 11})
    assert running.failure is None
    with pytest.raises(kl.UsageError, match="give an offset of at least 0"):
        running.consumer.seek({(stage.topic, 0): -1})
    with pytest.raises(kl.UsageError, match="the consumer does not run yet"):
        kl.ParallelConsumer(stage.pipeline(print)).seek({(stage.topic, 0): 1})


def test_a_seek_tells_where_it_was_done_once_it_is_committed(stage: Stage) -> None:
    told: SimpleQueue[tuple[list[tuple[str, int]], dict[int, int]]] = SimpleQueue()

    def moved(names: Iterable[tuple[str, int]]) -> None:
        told.put((sorted(names), {name[1]: one.base for name, one in stage.committed().items()}))

    with Running(stage) as running:
        running.until(lambda: set(running.ran) == every() and stage.all_is_committed())
        running.consumer.pause()
        running.consumer.move({(stage.topic, 0): Target(offset=6), ("not ours", 3): Target(offset=5)}, moved)
        running.consumer.move({("not ours", 3): Target(offset=5)}, moved)
        assert told.get(timeout=60) == ([(stage.topic, 0)], {0: 6, 1: 10})
        assert told.get(timeout=60)[0] == []
        running.consumer.resume()
        running.until(lambda: running.ran.count((0, 6)) == 2)


def test_a_seek_waits_for_handlers_and_repeats_no_other_partition(stage: Stage) -> None:
    release, entered = threading.Event(), threading.Event()
    ended: list[tuple[int, int]] = []

    class Slow(Running):
        def handler(self, record: kl.Record) -> None:
            self.ran.append((record.partition, record.offset))
            if record.partition == 0 and len(self.ran) < 20 and record.offset == 0:
                entered.set()
                release.wait(30)
            ended.append((record.partition, record.offset))

    with Slow(stage, ordering="partition", workers=kl.Threads(4)) as running:
        running.until(lambda: entered.is_set() and sum(p == 1 for p, _ in running.ran) == 10)
        running.consumer.seek({(stage.topic, 0): 5})
        release.set()
        running.until(lambda: set(ended) >= {(0, 0)} | {(0, offset) for offset in range(5, 10)})
        assert sum(p == 1 for p, _ in running.ran) == 10
        assert ended.index((0, 0)) < ended.index((0, 5))


def test_a_seek_below_what_exactly_once_has_purged_is_refused(stage: Stage, tmp_path: Any) -> None:
    def handler(_record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("SELECT 1")

    options: dict[str, Any] = {"delivery": kl.ExactlyOnce(str(tmp_path / "effects.db"))}
    stage.run(handler, **options)  # it purges at its end
    with Running(stage, **options) as running:
        running.until(lambda: len(running.consumer.snapshot().partitions) == 2)
        running.consumer.seek({(stage.topic, 0): 4})
        running.until(lambda: running.failure is not None)
        assert isinstance(running.failure, kl.PeerError)
        assert "at offset 4, and what was processed below 10 is purged" in str(running.failure)


def test_position_and_liveness_can_be_read(stage: Stage) -> None:
    """While record 4 hangs, what is committed is not what was polled, and the log's end is the broker's."""
    release = threading.Event()

    class Held(Running):
        def handler(self, record: kl.Record) -> None:
            super().handler(record)
            if (record.partition, record.offset) == (0, 4):
                release.wait(60)

    with Held(stage, commit=kl.Commit(interval_ms=50), ordering="partition", workers=kl.Threads(2)) as running:
        running.until(lambda: [one.committed for one in running.consumer.snapshot().partitions] == [4, 10])
        one = running.consumer.snapshot().partitions[0]
        (end,) = stage.admin.log_ends([(one.topic, one.partition)], read_committed=False).values()
        assert end is not None
        assert (one.base, one.committed, one.position, one.lag) == (4, 4, 10, end - 4)
        assert one.log_end_offset == one.high_watermark == end
        release.set()
        running.until(lambda: stage.all_is_committed())
        alive = running.consumer.liveness()
        assert (alive.session_timeout_ms, alive.heartbeat_interval_ms) == (6_000, 300)
        assert (alive.max_poll_interval_ms, alive.stall_timeout_ms) == (300_000, 600_000)
        assert alive.lease_left_ms is not None
        assert 0 <= alive.lease_left_ms <= 4_000
