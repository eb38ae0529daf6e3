"""Partitions that were added while a static member of the classic protocol was away: the coordinator gives it what it
had, and nobody has the others (KIP-345)."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined] # exported untyped

from keylane.cli import main
from keylane.consumer.snapshot import Snapshot, Unassigned
from keylane.desk.groups import gather
from keylane.kafka.sole_member import SoleMember
from keylane.kafka.unassigned_wait import UnassignedWait, unassigned
from kit.either_broker import either_broker
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import keylane as kl

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
RECORDS = 40


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker.bootstrap


class Group:
    """Static members of one group, and what they ran."""

    def __init__(self, servers: str, name: str) -> None:
        self.stage = Stage(servers, name)
        self.stage.create(2)
        self._lock = threading.Lock()
        self.ran: list[tuple[int, int]] = []

    def kafka(self, name: str, **more: Any) -> dict[str, Any]:
        static = {"group.instance.id": name, "session.timeout.ms": 30_000}
        return self.stage.kafka | static | {one.replace("_", "."): value for one, value in more.items()}

    def start(self, name: str, **more: Any) -> ThreadMember:
        return ThreadMember(self.stage.pipeline(self.note, kafka=self.kafka(name, **more)), f"client-{name}")

    def note(self, record: kl.Record) -> None:
        with self._lock:
            self.ran.append((record.partition, record.offset))

    def fill(self, partitions: range) -> None:
        self.stage.fill((None, partitions[number % len(partitions)]) for number in range(RECORDS))

    def add_partitions(self) -> None:
        client = AdminClient({"bootstrap.servers": self.stage.servers})
        for future in client.create_partitions([NewPartitions(self.stage.topic, 4)]).values():
            future.result(20)
        self.fill(range(2, 4))

    def assigned(self) -> set[int]:
        members = self.stage.admin.describe_group(self.stage.group).members
        return {partition for one in members for _, partition in one.assignment}


def test_a_static_member_that_comes_back_reads_what_was_added(servers: str) -> None:
    group = Group(servers, "comes-back")
    group.fill(range(2))
    group.stage.run(group.note, kafka=group.kafka("one"))
    assert len(group.ran) == RECORDS
    group.add_partitions()
    group.stage.run(group.note, kafka=group.kafka("one"))
    assert (len(group.ran), len(set(group.ran))) == (2 * RECORDS, 2 * RECORDS)
    assert group.assigned() == {0, 1, 2, 3}


def test_the_sole_member_of_a_query_owns_what_was_added(servers: str) -> None:
    group = Group(servers, "query")
    with closing(SoleMember(group.stage.kafka, [group.stage.topic], "driver")) as member:
        member.own({(group.stage.topic, 0), (group.stage.topic, 1)})
    group.add_partitions()
    with closing(SoleMember(group.stage.kafka, [group.stage.topic], "driver")) as member:
        member.own({(group.stage.topic, partition) for partition in range(4)}, 20)


def plain(group: Group) -> Consumer:
    """Another client, under a static name."""
    consumer = Consumer(group.kafka("one") | {"enable.auto.commit": False})
    consumer.subscribe([group.stage.topic])
    until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "it has joined")
    return consumer


@pytest.mark.full
def test_what_nobody_has_is_told_and_mended(
    servers: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside another client, which does not mend it."""
    group = Group(servers, "told")
    plain(group).close()
    group.add_partitions()
    with closing(plain(group)) as other:
        mended = threading.Event()
        kafka = group.kafka("two", topic_metadata_refresh_interval_ms=1_000)
        with closing(UnassignedWait(kafka, [group.stage.topic], "two", set, mended.set)) as watch:
            watch.start()
            assert mended.wait(60)
            expected = Unassigned(group.stage.group, ((group.stage.topic, 2), (group.stage.topic, 3)))
            assert watch.wait == expected
            report = gather(group.stage.admin, group.stage.group)
            assert report["unassigned"] == [f"{group.stage.topic}-2", f"{group.stage.topic}-3"]
            assert main(["groups", "describe", group.stage.group, "--bootstrap", servers]) == 0
            assert f"no member has {group.stage.topic}-2, {group.stage.topic}-3:" in capsys.readouterr().out
            until(lambda: str(expected) in caplog.text, "it is told")
            member = group.start("two")  # the group divides all anew

            def is_mended() -> bool:
                other.poll(0)  # it takes part in the rebalance
                return watch.wait is None

            until(is_mended, "nobody waits any more")
            member.consumer.stop()
            member.end()


def test_a_member_that_joins_anew_commits_before_and_runs_nothing_again(servers: str) -> None:
    group = Group(servers, "anew")
    group.fill(range(2))
    member = group.start("one")
    until(lambda: len(group.ran) == RECORDS, "all have run")

    def member_id() -> str:
        return next((one.member_id for one in group.stage.admin.describe_group(group.stage.group).members), "")

    before = member_id()
    kafka_consumer = member.consumer._consumer
    assert kafka_consumer is not None
    assert before
    kafka_consumer._member.rejoin()
    until(lambda: member_id() not in ("", before), "it has joined anew")
    group.add_partitions()
    group.fill(range(2))
    until(lambda: {*group.ran} >= {(partition, RECORDS - 1) for partition in range(2)}, "it goes on")
    member.consumer.stop()
    member.end()
    assert len(group.ran) == len(set(group.ran))


def test_what_an_expression_matches_counts_where_somebody_has_some_of_it() -> None:
    counts = {"a": 2, "b": 1, "__consumer_offsets": 50}
    assert unassigned(["^.*"], counts, {("a", 0)}) == [("a", 1)]
    assert unassigned(["a", "b"], counts, {("a", 0)}) == [("a", 1), ("b", 0)]
    assert unassigned(["a", "gone"], counts, {("a", 0), ("a", 1)}) == []


def test_two_members_tell_the_same_once() -> None:
    a, b = (Snapshot(waits=Unassigned("g", places)) for places in ((("t", 2),), (("t", 2), ("t", 3))))
    assert a.merge(b).waits == Unassigned("g", (("t", 2), ("t", 3)))
    assert "waits for partitions that nobody in group g has: t-2, t-3;" in str(a.merge(b).waits)
