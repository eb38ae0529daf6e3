"""A static member that comes back with other topics: the coordinator would give it what it had (KIP-345)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from keylane.kafka.sole_member import SoleMember
from kit.either_broker import either_broker
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import keylane as kl

PARTITIONS, RECORDS = 4, 40
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
STRATEGIES = ("range", "cooperative-sticky")


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker.bootstrap


class Group:
    """Two static members, which stop and start again at once."""

    def __init__(self, servers: str, name: str, strategy: str) -> None:
        self.stage = Stage(servers, name)
        self._strategy = strategy
        self._lock = threading.Lock()
        self.ran: set[tuple[str, int]] = set()
        self.before, self.after = f"{name}-before", f"{name}-after"
        for topic in (self.before, self.after):
            self.stage.admin.create_topics({topic: PARTITIONS})
            self.fill(topic)

    def fill(self, topic: str) -> None:
        self.stage.fill(((None, number % PARTITIONS) for number in range(RECORDS)), topic)

    def _handler(self, record: kl.Record) -> None:
        with self._lock:
            self.ran.add((record.topic, int(record.value or b"")))

    def run_until(self, topics: list[str], wanted: set[str], count: int | None = None) -> None:
        """Both members, until records of the wanted topics run, and so many topics are assigned."""
        members = []
        for name in ("one", "two"):
            kafka = self.stage.kafka | {
                "group.instance.id": name,
                "session.timeout.ms": 30_000,
                "partition.assignment.strategy": self._strategy,
            }
            members.append(ThreadMember(self.stage.pipeline(self._handler, kafka=kafka, topics=topics), name))
        try:
            until(lambda: wanted <= {topic for topic, _ in self.ran}, f"records of {sorted(wanted)} run")
            partitions = (count or len(wanted)) * PARTITIONS
            until(lambda: sum(one.assigned for one in members) == partitions, "all is assigned")
            until(lambda: all(one.assigned > 0 for one in members), "both have partitions")
        finally:
            for one in members:
                one.consumer.stop()
            for one in members:
                one.end()

    def read_before(self) -> None:
        """The first of the topics, which has more records then."""
        self.run_until([self.before], {self.before})
        self.fill(self.before)
        self.ran.clear()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_come_back_with_another_topic(servers: str, strategy: str) -> None:
    group = Group(servers, f"other-{strategy}", strategy)
    group.read_before()
    group.run_until([group.after], {group.after})
    assert {topic for topic, _ in group.ran} == {group.after}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_come_back_with_one_topic_more(servers: str, strategy: str) -> None:
    group = Group(servers, f"more-{strategy}", strategy)
    group.read_before()
    group.run_until([group.before, group.after], {group.before, group.after})


def test_a_topic_was_made_that_their_expression_matches(servers: str) -> None:
    group = Group(servers, "made", "range")
    group.run_until(["^made-.*"], {"made-before", "made-after"})
    group.stage.create(PARTITIONS, "made-meanwhile")
    group.fill("made-meanwhile")
    group.ran.clear()
    group.run_until(["^made-.*"], {"made-meanwhile"}, 3)


@pytest.mark.parametrize("topics", ["same-before", "^same-b.*"])
def test_members_that_come_back_with_the_same_topics_move_nobody(
    servers: str, topics: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(servers, "same", "range")
    group.run_until([topics], {"same-before"})
    before = group.stage.admin.describe_group(group.stage.group)
    group.ran.clear()
    group.fill("same-before")
    with caplog.at_level("INFO", "keylane.kafka"):
        group.run_until([topics], {"same-before"})
    again = group.stage.admin.describe_group(group.stage.group)
    assert [one.assignment for one in again.members] == [one.assignment for one in before.members]
    assert "anew" not in caplog.text


def test_the_driver_of_a_query_comes_back_with_another_topic(servers: str) -> None:
    stage = Stage(servers, "driver")
    kafka = {"bootstrap.servers": servers, "group.id": stage.group}
    for topic in ("driver-before", "driver-after"):
        stage.create(PARTITIONS, topic)
        member = SoleMember(kafka, [topic], "driver")
        try:
            member.own({(topic, partition) for partition in range(PARTITIONS)}, 8)
        finally:
            member.close()
