"""`offset_reset="latest_then_earliest"`: a group begins at the end, and reads partitions that are added from their
beginning, whoever of its members was there, under both protocols, with static members too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined] # exported untyped

import keylane as kl
from keylane.testing import EmbeddedBroker
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

RESET: dict[str, Any] = {"offset_reset": "latest_then_earliest"}
PROTOCOLS = {
    "classic": {},
    "classic, static": {"group.instance.id": "one"},
    "consumer": {"group.protocol": "consumer"},
    "consumer, static": {"group.protocol": "consumer", "group.instance.id": "one"},
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(params=PROTOCOLS)
def stage(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Stage:
    """Two partitions with three records each, which are older than the group."""
    made = Stage(broker.bootstrap_servers, "".join(one for one in request.node.name if one.isalnum()))
    made.create(2)
    made.fill((None, partition) for partition in (0, 1) for _ in range(3))
    return made


@pytest.fixture
def kafka(stage: Stage, request: pytest.FixtureRequest) -> dict[str, Any]:
    own = PROTOCOLS[request.node.callspec.params["stage"]]
    timing = {} if "group.protocol" not in own else dict.fromkeys(("session.timeout.ms", "heartbeat.interval.ms"))
    of_both = {name: value for name, value in stage.kafka.items() if name not in timing}
    return of_both | {"topic.metadata.refresh.interval.ms": 500} | own


class Ran:
    """Members of the group, and the records that they were given."""

    def __init__(self, stage: Stage, kafka: dict[str, Any]) -> None:
        self.records: list[tuple[int, int]] = []
        self._stage = stage
        self._pipeline = stage.pipeline(self._handle, kafka=kafka, commit=kl.Commit(interval_ms=50), **RESET)

    def _handle(self, record: kl.Record) -> None:
        self.records.append((record.partition, record.offset))

    def member(self, partitions: int) -> ThreadMember:
        """One that has so many of them."""
        made = ThreadMember(self._pipeline, "member")
        until(
            lambda: made.assigned == partitions, lambda: f"{partitions} partitions are read: {made.consumer.snapshot()}"
        )
        return made

    def until(self, *records: tuple[int, int]) -> None:
        until(lambda: sorted(self.records) == sorted(records), lambda: f"these run: {records}; so far {self.records}")
        until(self._stage.all_is_committed, "they are committed")
        self.records.clear()


@pytest.fixture
def ran(stage: Stage, kafka: dict[str, Any]) -> Ran:
    return Ran(stage, kafka)


def add_partition(stage: Stage) -> None:
    """A third one, with two records before anybody can have heard of it."""
    admin = AdminClient({"bootstrap.servers": stage.servers})
    admin.create_partitions([NewPartitions(stage.topic, 3)])[stage.topic].result()
    stage.fill([(None, 2)] * 2)


def end(member: ThreadMember) -> None:
    member.consumer.stop()
    member.end()


def test_added_while_a_member_runs(stage: Stage, ran: Ran) -> None:
    member = ran.member(2)
    stage.fill([(None, 0)])
    ran.until((0, 3))
    add_partition(stage)
    ran.until((2, 0), (2, 1))
    end(member)


def test_added_while_none_runs(stage: Stage, ran: Ran) -> None:
    end(ran.member(2))
    add_partition(stage)
    member = ran.member(3)
    ran.until((2, 0), (2, 1))
    end(member)


def test_a_group_that_begins_with_two_members_reads_nothing_older(stage: Stage, kafka: dict[str, Any]) -> None:
    ran: list[tuple[int, int]] = []
    both = [
        ThreadMember(
            stage.pipeline(
                lambda record: ran.append((record.partition, record.offset)),
                kafka=kafka | ({"group.instance.id": f"of two {number}"} if "group.instance.id" in kafka else {}),
                **RESET,
            ),
            f"of two {number}",
        )
        for number in range(2)
    ]
    until(lambda: [one.assigned for one in both] == [1, 1], "each has a partition")
    stage.fill([(None, 0), (None, 1)])
    until(lambda: sorted(ran) == [(0, 3), (1, 3)], lambda: f"only new ones run: {ran}")
    for one in both:
        end(one)


def test_what_an_expression_brings_later_is_read_from_its_beginning(stage: Stage, kafka: dict[str, Any]) -> None:
    ran: list[tuple[str, int]] = []

    def made(name: str) -> None:
        stage.create(1, f"{stage.topic}-{name}")
        stage.fill([(None, 0)] * 2, f"{stage.topic}-{name}")

    def member(number: int, refresh_ms: int, partitions: int) -> ThreadMember:
        own = {"group.instance.id": f"expression {number}"} if "group.instance.id" in kafka else {}
        own_kafka = kafka | own | {"topic.metadata.refresh.interval.ms": refresh_ms}
        pipeline = stage.pipeline(
            lambda record: ran.append((record.topic.removeprefix(f"{stage.topic}-"), record.offset)),
            kafka=own_kafka,
            topics=f"^{stage.topic}-.*",
            commit=kl.Commit(interval_ms=50),
            **RESET,
        )
        made = ThreadMember(pipeline, f"expression {number}")
        until(lambda: made.assigned == partitions, lambda: f"{partitions} partitions: {made.consumer.snapshot()}")
        return made

    made("older")
    first = member(1, 600_000, 1)
    made("while-one-runs")  # and has not heard of it
    second = member(2, 500, 1)
    until(lambda: len(ran) == 2, lambda: f"so far {ran}")
    end(first)
    end(second)
    made("while-none-runs")
    third = member(1, 500, 3)
    until(lambda: len(ran) == 4, lambda: f"so far {ran}")
    end(third)
    assert sorted(ran) == [(name, offset) for name in ("while-none-runs", "while-one-runs") for offset in (0, 1)]


def test_it_needs_the_groups_commits() -> None:
    with pytest.raises(kl.UsageError, match="offset_reset='latest_then_earliest': with commit=External"):
        kl.Pipeline(
            kafka={"bootstrap.servers": "localhost:1", "group.id": "g"},
            topics=["t"],
            handler=print,
            commit=kl.External(lambda names: dict.fromkeys(names)),
            **RESET,
        )
