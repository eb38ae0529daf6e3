"""Three orderings, threads and asyncio, on real topics: order, loss and repetition are checked from outside."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.ledger import Ledger
from kit.outputs import Outputs, source_of
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTITIONS = 4
RECORDS = 1_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("orderings") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    return Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))


def nothing(record: kl.Record) -> None:
    """A handler."""


def zipf(count: int, seed: int) -> list[tuple[bytes | None, int]]:
    """Keys that are very uneven, some records without one; a key has its partition."""
    source = random.Random(seed)
    made: list[tuple[bytes | None, int]] = []
    for _ in range(count):
        rank = min(int(source.paretovariate(1.1)), 200)
        made.append((None, source.randrange(PARTITIONS)) if rank == 2 else (b"%d" % rank, rank % PARTITIONS))
    return made


@pytest.mark.parametrize("workers", ["threads", "asyncio"])
@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
def test_every_record_runs_once_in_its_order_and_its_output_is_there(
    stage: Stage, tmp_path: Path, ordering: Any, workers: str
) -> None:
    stage.create(PARTITIONS)
    stage.create(1, "out-" + stage.topic)
    stage.fill(zipf(RECORDS, seed=7))
    ledger = Ledger(tmp_path / "ledger")
    pause = random.Random(1)

    def output(record: kl.Record) -> kl.Output:
        return kl.Output("out-" + stage.topic, key=record.key, value=record.value, headers=[source_of(record)])

    def in_thread(record: kl.Record) -> kl.Output:
        ledger.began(record)
        time.sleep(pause.random() * 0.001)
        ledger.done(record)
        return output(record)

    async def in_task(record: kl.Record) -> list[kl.Output]:
        ledger.began(record)
        await asyncio.sleep(pause.random() * 0.001)
        ledger.done(record)
        return [output(record)]

    handler: Callable[..., Any] = in_thread if workers == "threads" else in_task
    snapshot = stage.run(handler, ordering=ordering)
    sources = stage.sources()
    assert len(sources) == RECORDS
    assert ledger.done_times() == {source: 1 for source, _ in sources}
    assert ledger.disorders(ordering, sources) == []
    outputs = Outputs.read(stage.servers, stage.topic, "out-" + stage.topic)
    assert (outputs.lost, outputs.repeated, outputs.foreign) == (set(), set(), set())
    assert outputs.out_of_order(ordering) == []
    assert stage.all_is_committed()
    assert (snapshot.processed, snapshot.produced, snapshot.in_flight, snapshot.buffered) == (RECORDS, RECORDS, 0, 0)
    ledger.close()


def test_one_partition_has_a_hundred_records_in_flight(stage: Stage) -> None:
    stage.create(1)
    stage.fill((b"%d" % number, 0) for number in range(300))
    inside, peak = 0, 0
    full = asyncio.Event()

    async def handler(record: kl.Record) -> None:
        nonlocal inside, peak
        inside += 1
        peak = max(peak, inside)
        if peak == 100:
            full.set()
        await asyncio.wait_for(full.wait(), 60)
        await asyncio.sleep(0.02)
        inside -= 1

    stage.run(handler, max_concurrency=100)
    assert peak == 100


def test_lag_goes_to_0_promptly_when_everything_is_through(stage: Stage) -> None:
    stage.create(1)
    with kl.ParallelConsumer(stage.pipeline(nothing, commit=kl.Commit(interval_ms=600_000))) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        until(lambda: bool(consumer.snapshot().partitions), "assigned")
        for round_ in range(3):
            stage.fill([(b"a", 0)])
            until(lambda: stage.committed()[stage.topic, 0].base == round_ + 1, "committed")  # noqa: B023
        consumer.stop()
        thread.join()
    [commits] = [consumer.snapshot().commits]
    assert commits >= 3


def test_progress_and_snapshots_tell_what_happens(stage: Stage) -> None:
    stage.create(2)
    stage.fill((b"%d" % (number % 7), number % 2) for number in range(60))
    gate, seen = threading.Event(), []

    def handler(record: kl.Record) -> None:
        if record.offset >= 20:
            assert gate.wait(60)

    def progress(snapshot: kl.Snapshot) -> None:
        where = [(one.base, one.incomplete, one.log_end_offset) for one in snapshot.partitions]
        if (snapshot.processed, where) == (40, [(20, 10, 30)] * 2):
            gate.set()
        if gate.is_set():
            seen.append(snapshot)

    pipeline = stage.pipeline(handler, ordering="partition")
    with kl.ParallelConsumer(pipeline, ending_offsets="latest", on_progress=progress) as consumer:
        consumer.run()
    during, last = seen[0], seen[-1]
    assert during.oldest is not None
    assert during.oldest.offset == 20
    assert last.processed == 60
    assert last == consumer.snapshot()


def test_what_progress_raises_ends_the_run_and_everything_is_closed(stage: Stage) -> None:
    stage.create(1)
    before = set(threading.enumerate())

    def progress(_: kl.Snapshot) -> None:
        raise LookupError("enough")

    with (
        kl.ParallelConsumer(stage.pipeline(nothing), on_progress=progress) as consumer,
        pytest.raises(LookupError, match="enough"),
    ):
        consumer.run()
    assert set(threading.enumerate()) == before


def test_it_runs_inside_an_asyncio_program_and_cancelling_drains(stage: Stage) -> None:
    stage.create(1)
    stage.fill((b"%d" % number, 0) for number in range(50))
    seen: list[int] = []
    through = threading.Event()

    async def handler(record: kl.Record) -> None:
        await asyncio.sleep(0.001)
        seen.append(record.offset)
        if len(seen) == 50:
            through.set()

    async def program() -> None:
        consumer = kl.ParallelConsumer(stage.pipeline(handler))
        running = asyncio.create_task(consumer.run_async())
        await asyncio.to_thread(through.wait, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        consumer.close()

    before = set(threading.enumerate())
    asyncio.run(program())
    assert set(threading.enumerate()) == before
    assert stage.all_is_committed()


def test_new_records_and_ends_of_other_topics_do_not_disturb_a_run_to_given_offsets(stage: Stage) -> None:
    stage.create(2)
    stage.fill((b"%d" % number, number % 2) for number in range(40))
    seen: list[tuple[int, int]] = []
    ends = {(stage.topic, 0): 5, (stage.topic, 1): 20}
    pipeline = stage.pipeline(lambda record: seen.append((record.partition, record.offset)))
    with kl.ParallelConsumer(pipeline, ending_offsets=ends) as consumer:
        consumer.run()
    assert sorted(seen) == [(0, offset) for offset in range(5)] + [(1, offset) for offset in range(20)]
    assert {name: found.base for name, found in stage.committed().items()} == ends
