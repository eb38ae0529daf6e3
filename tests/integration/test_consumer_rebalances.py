"""Two members of a group, one of which comes and goes while both work: eager and cooperative."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.testing.ledger import Ledger
from keylane.testing.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS = 4
RECORDS = 1_000
KEYS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rebalances") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    return Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))


class Member:
    """A consumer on a thread of its own, noting what it runs under its own name."""

    def __init__(self, stage: Stage, ledger: Ledger, name: str, work_s: float, **options: Any) -> None:
        self.ledger = Ledger(ledger.path, name)
        self.failure: BaseException | None = None

        def handler(record: kl.Record) -> None:
            self.ledger.began(record)
            time.sleep(work_s)
            self.ledger.done(record)

        self.consumer = kl.ParallelConsumer(stage.pipeline(handler, **options), ending_offsets="latest", client_id=name)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.consumer.run()
        except BaseException as error:  # told by end()
            self.failure = error

    @property
    def assigned(self) -> int:
        return len(self.consumer.snapshot().partitions)

    def end(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive(), self.consumer.snapshot()
        assert self.failure is None
        self.ledger.close()


@pytest.mark.parametrize(
    ("strategy", "ordering"),
    [("range", "key"), ("cooperative-sticky", "key"), ("cooperative-sticky", "partition")],
)
def test_members_come_and_go_and_each_record_runs_once_in_order(
    stage: Stage, tmp_path: Path, strategy: str, ordering: Any
) -> None:
    stage.create(PARTITIONS)
    keys = [b"%d" % (number % KEYS) for number in range(RECORDS)]
    stage.fill((key, number % KEYS % PARTITIONS) for number, key in enumerate(keys))
    ledger = Ledger(tmp_path / "ledger")
    kafka = stage.kafka | {"partition.assignment.strategy": strategy}
    work_s = 0.004 if ordering == "partition" else 0.015

    def member(name: str) -> Member:
        made = Member(stage, ledger, name, work_s, kafka=kafka, ordering=ordering, threads=4)
        made.thread.start()
        return made

    first = member("first")
    until(lambda: first.consumer.snapshot().processed > 50, "the first works")
    second = member("second")
    until(lambda: (first.assigned, second.assigned) == (2, 2), "both have their share")
    until(lambda: second.consumer.snapshot().processed > 50, "the second works")
    second.consumer.stop()
    second.end()
    until(lambda: first.assigned == PARTITIONS, "the first has everything again")
    third = member("third")
    first.end()
    third.end()
    sources = stage.sources()
    assert ledger.disorders(ordering, sources) == []
    assert ledger.done_times() == {source: 1 for source, _ in sources}, "graceful rebalances repeat nothing"
    assert stage.all_is_committed()
    snapshots = [one.consumer.snapshot() for one in (first, second, third)]
    assert sum(snapshot.processed for snapshot in snapshots) == RECORDS
    ledger.close()


def test_a_member_whose_handlers_take_longer_than_the_limit_is_given_up_and_its_records_run_elsewhere(
    stage: Stage,
) -> None:
    stage.create(2)
    stage.fill((b"%d" % number, number % 2) for number in range(20))
    gate, entered = threading.Event(), threading.Event()
    seen: list[bool] = []

    def stuck(record: kl.Record, context: kl.Context) -> None:
        entered.set()
        gate.wait(30)
        seen.append(context.cancelled)

    elsewhere: list[tuple[int, int]] = []
    first = kl.ParallelConsumer(stage.pipeline(stuck, revoke_timeout_ms=200, threads=20), client_id="first")
    second = kl.ParallelConsumer(
        stage.pipeline(lambda record: elsewhere.append((record.partition, record.offset))), client_id="second"
    )
    threads = [threading.Thread(target=one.run) for one in (first, second)]
    threads[0].start()
    assert entered.wait(30)
    until(lambda: first.snapshot().in_flight == 20, "all are in handlers")
    threads[1].start()
    until(lambda: len(elsewhere) == 10, "the second runs what the first has given up")
    gate.set()
    until(lambda: len(seen) >= 20, "the old handlers end")
    assert sum(seen) >= 10, "they were told"
    until(lambda: all(found.base == 10 for found in stage.committed().values()), "all is committed")
    for one, thread in zip((first, second), threads, strict=True):
        one.close()
        thread.join()
    assert first.snapshot().processed + len(elsewhere) >= 20
