"""Two members of a group, one of which comes and goes while both work: eager and cooperative."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.ledger import Ledger
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = {"group.min.session.timeout.ms": "1000"}
PARTITIONS = 4
RECORDS = 1_000
KEYS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rebalances") / "data", settings=SETTINGS) as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    return Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))


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

    def member(name: str) -> ThreadMember:
        noted = Ledger(ledger.path, name)

        def handler(record: kl.Record) -> None:
            noted.began(record)
            time.sleep(work_s)
            noted.done(record)

        made = stage.pipeline(handler, kafka=kafka, ordering=ordering, workers=kl.Threads(4))
        return ThreadMember(made, name, ending_offsets="latest")

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
    first = kl.ParallelConsumer(stage.pipeline(stuck, revoke_timeout_ms=200, workers=kl.Threads(20)), client_id="first")
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


class Noting(kl.RebalanceListener):
    """Notes what it is told, in order."""

    def __init__(self, raises: str = "") -> None:
        self.told: list[tuple[str, list[int]]] = []
        self._raises = raises

    def _note(self, what: str, partitions: list[tuple[str, int]]) -> None:
        self.told.append((what, sorted(partition for _, partition in partitions)))
        if what == self._raises:
            raise ValueError("not today")

    def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
        self._note("assigned", partitions)

    def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
        self._note("revoked", partitions)

    def on_lost(self, partitions: list[tuple[str, int]]) -> None:
        self._note("lost", partitions)


def test_a_commits_metadata_is_given_back_to_who_has_the_partition_next(stage: Stage) -> None:
    """It names the state as of the offset, as that of the seed's file does."""
    given: list[Any] = []

    class Given(kl.RebalanceListener):
        def on_metadata(self, partition: tuple[str, int], offset: int, metadata: str) -> None:
            given.append((partition, offset, metadata))

        def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
            given.append("assigned")

    commit = kl.Commit(interval_ms=50, metadata=lambda topic, partition, offset: f"{topic}.{partition}.{offset}")
    options: dict[str, Any] = {"ordering": "partition", "commit": commit, "rebalance_listener": Given()}
    stage.create(2)
    stage.fill((b"k", n % 2) for n in range(6))
    assert stage.run(lambda _: None, offset_reset="earliest", **options).processed == 6
    assert given == ["assigned"], "there was none"
    stage.fill([(b"k", 0)])
    assert stage.run(lambda _: None, **options).processed == 1
    names = [(stage.topic, 0), (stage.topic, 1)]
    assert sorted(given[1:3]) == [(name, 3, f"{stage.topic}.{name[1]}.3") for name in names]
    assert given[3:] == ["assigned"]


def test_while_some_partitions_are_being_revoked_the_others_are_read_on_and_the_member_stays(stage: Stage) -> None:
    """The revoke takes longer than max.poll.interval.ms, and the kept partitions get far more than was buffered."""
    stage.create(PARTITIONS)
    stage.fill((b"held", partition) for partition in range(PARTITIONS))
    gate = threading.Event()
    ran: Counter[tuple[int, int]] = Counter()

    def handler(record: kl.Record) -> None:
        if record.key == b"held":
            gate.wait(60)
        ran[record.partition, record.offset] += 1

    kafka = stage.kafka | {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6_000,
        "max.poll.interval.ms": 6_000,
    }
    listener = Noting()
    options: Any = {"kafka": kafka, "revoke_timeout_ms": 60_000, "max_buffered_records": 400}
    first = kl.ParallelConsumer(
        stage.pipeline(handler, rebalance_listener=listener, commit=kl.Commit(interval_ms=100), **options),
        client_id="first",
    )
    second = kl.ParallelConsumer(stage.pipeline(handler, **options), client_id="second")
    threads = [threading.Thread(target=one.run) for one in (first, second)]
    threads[0].start()
    until(lambda: first.snapshot().in_flight == PARTITIONS, "one of each partition is in its handler")
    threads[1].start()
    until(lambda: len(stage.admin.describe_group(stage.group).members) == 2, "both are members")
    rounds = 0
    begun = time.monotonic()
    while time.monotonic() < begun + 7 or rounds < 5:
        before = first.snapshot().processed
        stage.fill((b"%d" % (number % 50), number % PARTITIONS) for number in range(400))
        until(lambda: first.snapshot().processed >= before + 200, "the kept partitions go on")  # noqa: B023
        rounds += 1
    assert [what for what, _ in listener.told] == ["assigned"], "still a member, and nothing given back yet"
    held = {(partition, 0) for partition in range(PARTITIONS)}
    until(lambda: sum(m.span for m in stage.committed().values()) > 600, "commits go on too")
    assert not held & ran.keys()
    gate.set()
    ends = stage.ends()
    until(lambda: len(ran) == sum(ends.values()), "all ran")
    until(stage.all_is_committed, "all is committed")
    for one, thread in zip((first, second), threads, strict=True):
        one.close()
        thread.join()
    assert set(ran.values()) == {1}
    assert [what for what, _ in listener.told] == ["assigned", "revoked", "revoked"], "at the rebalance and at close"
    assert len(listener.told[1][1]) == 2


def test_a_rebalance_listener_is_told_before_the_first_record_and_after_the_last_commit(stage: Stage) -> None:
    stage.create(2)
    stage.fill((b"k", number % 2) for number in range(10))
    listener = Noting()
    told: list[int] = []
    committed: list[bool] = []

    class Looking(Noting):
        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            committed.append(stage.all_is_committed())
            super().on_revoked(partitions)

    listener = Looking()
    stage.run(lambda _: told.append(len(listener.told)), rebalance_listener=listener)
    assert told == [1] * 10
    assert listener.told == [("assigned", [0, 1]), ("revoked", [0, 1])]
    assert committed == [True]


@pytest.mark.parametrize("method", ["assigned", "revoked"])
def test_a_rebalance_listener_that_raises_ends_the_run_and_harms_nothing(stage: Stage, method: str) -> None:
    stage.create(1)
    stage.fill((b"k", 0) for _ in range(10))
    with pytest.raises(
        kl.HandlerError, match=rf"rebalance_listener\.on_{method}\(\[\(.*, 0\)\]\) raised ValueError: not"
    ):
        stage.run(lambda _: None, rebalance_listener=Noting(raises=method))
    stage.run(lambda _: None)
    assert stage.all_is_committed()


def test_a_static_member_that_comes_back_within_its_session_takes_its_partitions_up_again(stage: Stage) -> None:
    stage.create(PARTITIONS)
    stage.fill((b"%d" % number, number % PARTITIONS) for number in range(40))
    ran: Counter[tuple[int, int]] = Counter()

    def handler(record: kl.Record) -> None:
        ran[record.partition, record.offset] += 1

    def member(name: str, listener: Noting) -> tuple[kl.ParallelConsumer, threading.Thread]:
        kafka = stage.kafka | {"group.instance.id": name, "session.timeout.ms": 30_000}
        made = kl.ParallelConsumer(stage.pipeline(handler, kafka=kafka, rebalance_listener=listener))
        thread = threading.Thread(target=made.run)
        thread.start()
        return made, thread

    stays, goes, comes = Noting(), Noting(), Noting()
    one, one_thread = member("one", stays)
    two, two_thread = member("two", goes)
    until(lambda: [len(c.snapshot().partitions) for c in (one, two)] == [2, 2], "both have their share")
    until(lambda: len(ran) == 40, "all ran")
    told = list(stays.told)
    two.close()
    two_thread.join()
    again, again_thread = member("two", comes)
    until(lambda: bool(comes.told), "it is back")
    assert comes.told[0] == ("assigned", goes.told[-1][1]), "the same partitions"
    assert stays.told == told, "the other one heard nothing of it"
    stage.fill((b"%d" % number, number % PARTITIONS) for number in range(40))
    until(lambda: len(ran) == 80, "all ran")
    for consumer, thread in ((one, one_thread), (again, again_thread)):
        consumer.close()
        thread.join()
    assert set(ran.values()) == {1}
