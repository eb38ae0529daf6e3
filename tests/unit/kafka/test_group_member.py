"""What the membership decides is done by client, fetcher and listener, in its order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, TopicPartition

from keylane import Pipeline
from keylane.consumer.ports import Revoking
from keylane.consumer.start import Start
from keylane.kafka import membership
from keylane.kafka.faults import Faults
from keylane.kafka.group_member import GroupMember
from keylane.kafka.logs import MissingError
from keylane.kafka.membership import Target
from keylane.offsets import OffsetMap

if TYPE_CHECKING:
    from collections.abc import Mapping

T0, T1 = ("t", 0), ("t", 1)


class World:
    """Client, fetcher, starts and listener of one member: they note what they are told."""

    def __init__(self, *, cooperative: bool = True, instance_id: str | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self.settle = Mock()
        self.assigned: list[TopicPartition] = []
        """What librdkafka says is assigned."""
        self.topics = {"t": range(2)}
        self.not_sought = ""
        self.epoch = 0
        anything: Any = self
        kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
        if instance_id is not None:
            kafka["group.instance.id"] = instance_id
        pipeline = Pipeline(kafka=kafka, topics=["t"], handler=print)
        self.member = GroupMember(
            client=SimpleNamespace(  # type: ignore[arg-type]
                list_topics=self.list_topics,
                assign=lambda _: self.told.append(("client", "assign")),
                unassign=lambda: self.told.append(("client", "unassign")),
                incremental_assign=lambda _: self.told.append(("client", "incremental_assign")),
                incremental_unassign=lambda _: self.told.append(("client", "incremental_unassign")),
                subscribe=lambda *_, **__: None,
                unsubscribe=lambda: self.told.append(("client", "unsubscribe")),
                assignment=lambda: self.assigned,
                poll=self.poll,
                close=lambda: self.told.append(("client", f"close with {len(self.assigned)}")),
            ),
            commits=SimpleNamespace(settle=self.settle, close=lambda: None),  # type: ignore[arg-type]
            pipeline=pipeline,
            reader=anything,
            logs=anything,
            patience=anything,
            faults=Faults(),
            cooperative=cooperative,
            name="m",
            epochs=iter(()),
            instance=None,
            check_starts=lambda _: None,
        )
        self.member._listener = self.member._starts = anything

    def poll(self, _: float) -> None:
        """The client's: what is to be taken back is, once nothing is subscribed."""
        if ("client", "unsubscribe") in self.told and self.assigned:
            names = [(one.topic, one.partition) for one in self.assigned]
            self.assigned = []
            self.take_back(*names)

    def close(self) -> None:
        """The reader's and the logs'."""

    def give(self, *names: tuple[str, int]) -> None:
        self.member._on_assign(self.member._client, [TopicPartition(*name) for name in names])

    def take_back(self, *names: tuple[str, int]) -> None:
        self.member._on_revoke(self.member._client, [TopicPartition(*name) for name in names])

    def resolved(self, names: list[tuple[str, int]], targets: Mapping[Any, Target]) -> list[Start]:
        for topic, _ in names:
            if topic not in self.topics:
                raise MissingError("the log cannot be read", topic)
        self.epoch += 1
        offsets = {name: targets.get(name, Target(0)).offset or 0 for name in names}
        return [
            Start(*name, self.epoch, OffsetMap(offsets[name]), 0, 100, not_sought=self.not_sought) for name in names
        ]

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        error = None if topic in self.topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=self.topics.get(topic, ()))})

    def on_assigned(self, starts: list[Start]) -> None:
        self.told += [("assigned", (one.partition, one.offsets.base)) for one in starts]

    def on_reloaded(self, starts: list[Start]) -> None:
        self.told += [("reloaded", one.partition) for one in starts]

    def on_revoking(self, names: list[tuple[str, int]]) -> Revoking:
        self.told.append(("revoking", names))
        return Revoking(names)

    def on_revoked(self, revoking: Revoking) -> None:
        self.told.append(("revoked", revoking.names))

    def on_lost(self, names: list[tuple[str, int]]) -> None:
        self.told.append(("lost", names))

    def on_deleted(self, topic: str, names: list[tuple[str, int]]) -> None:
        self.told.append((topic, names))

    def assign(self, starts: list[Start]) -> None:
        """The fetcher's."""
        self.told.append(("read", [one.partition for one in starts]))

    def unassign(self, names: list[tuple[str, int]]) -> None:
        if names:
            self.told.append(("stop", names))

    def told_since(self) -> list[tuple[str, Any]]:
        told, self.told = self.told, []
        return told


def test_what_is_given_is_told_and_read_before_the_client_may_go_on() -> None:
    world = World()
    world.give(T0)
    assert world.told == [("assigned", (0, 0)), ("read", [0]), ("client", "incremental_assign")]
    assert world.member.has_partitions


def test_what_was_lost_begins_again_once_no_commit_of_before_is_on_its_way() -> None:
    """Else that could be made after the start was read."""
    world = World()
    world.give(T0)
    world.member._on_lost(world.member._client, [TopicPartition(*T0)])
    world.told_since()
    world.settle.side_effect = lambda: world.told.append(("commits", "settled"))
    world.give(T0)
    assert world.told_since()[:2] == [("commits", "settled"), ("assigned", (0, 0))]


@pytest.mark.parametrize(
    ("cooperative", "keeps", "gives"),
    [(True, "incremental_assign", "incremental_unassign"), (False, "assign", "unassign")],
)
def test_what_is_taken_back_goes_when_its_records_are_through(cooperative: bool, keeps: str, gives: str) -> None:
    world = World(cooperative=cooperative)
    world.give(T0)
    world.told_since()
    world.take_back(T0)
    assert world.told_since() == [("revoking", [T0]), ("client", keeps)]
    world.member._finish_what_ended()
    assert world.told_since() == [], "not yet"
    assert world.member.has_partitions, "a transaction may still send their offsets"
    world.member._revoking.answer.put([])  # type: ignore[union-attr]
    world.member._finish_what_ended()
    assert world.told_since() == [("revoked", [T0]), ("stop", [T0]), ("client", gives)]
    assert not world.member.has_partitions


@pytest.mark.parametrize(
    ("instance_id", "ends"),
    [(None, [("client", "unsubscribe"), ("client", "close with 0")]), ("static", [("client", "close with 1")])],
)
def test_a_member_gives_all_back_before_its_client_closes(instance_id: str | None, ends: list[Any]) -> None:
    """What librdkafka takes back while it closes may wait for ever; a static member stays in the group by that."""
    world = World(instance_id=instance_id)
    world.give(T0)
    world.assigned = [TopicPartition(*T0)]
    world.told_since()
    world.member._closing.set()
    world.member._run()
    assert world.member._faults.broken is None
    told = world.told_since()
    assert [one for one in told if one[1] in ("unsubscribe", "close with 0", "close with 1")] == ends
    assert (("stop", [T0]) in told) is (instance_id is None)


def test_a_seek_goes_on_at_the_target_when_its_records_are_through() -> None:
    world = World()
    world.give(T0)
    world.told_since()
    world.member.seek({T0: Target(7), T1: Target(9)}, None)
    world.member._begin_seek()
    world.member._finish_what_ended()
    assert world.told_since() == [("revoking", [T0])]
    world.member._revoking.answer.put([])  # type: ignore[union-attr]
    world.member._finish_what_ended()
    assert world.told_since() == [("revoked", [T0]), ("stop", [T0]), ("assigned", (0, 7)), ("read", [0])]
    world.member._finish_what_ended()
    assert world.told == [], "once"


def test_who_sought_is_told_where_it_went_on_and_why_not_where_it_was_sought() -> None:
    world = World()
    world.give(T0)
    moved: list[Any] = []
    world.member.seek({T0: Target(again=frozenset([3])), T1: Target(9)}, None, moved.append)
    world.member._begin_seek()
    world.member._revoking.answer.put([])  # type: ignore[union-attr]
    world.not_sought = "it is not complete"
    world.member._finish_what_ended()
    world.member._tell_moved()
    world.member._tell_moved()
    assert moved == [{T0: "it is not complete"}], "once, and nothing of what it does not have"


def test_lost_partitions_are_told_and_no_longer_read() -> None:
    world = World()
    heard: list[str] = []
    world.member.on_lost = lambda: heard.append("lost")
    world.give(T0)
    world.told_since()
    world.member._on_lost(world.member._client, [TopicPartition(*T0)])
    assert world.told == [("lost", [T0]), ("stop", [T0]), ("client", "incremental_unassign")]
    assert heard == ["lost"]


def test_what_is_reloaded_stays_ours() -> None:
    world = World()
    world.give(T0, T1)
    world.told_since()
    world.member._do(world.member._membership.reloaded([(T1, 1)]))
    assert world.told == [("stop", [T1]), ("reloaded", 1), ("read", [1])]
    assert world.member._membership.ours == {T0: 1, T1: 2}


def test_a_deleted_topic_is_looked_for_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "DELETED_S", 0.0)
    monkeypatch.setattr(membership, "LOOK_AGAIN_S", 0.0)
    world = World()
    world.topics.clear()
    world.give(T0)
    assert world.told_since() == [("t", []), ("client", "incremental_assign")]
    world.member._look_for_topics()
    assert world.told_since() == [], "it is told once"
    world.topics["t"] = range(1)
    world.member._look_for_topics()
    assert world.told_since() == [("assigned", (0, 0)), ("read", [0])]
    del world.topics["t"]
    world.member.suspect("t")
    world.member._look_for_topics()
    assert world.told_since() == [("stop", [T0]), ("t", [T0])]


def test_what_a_start_raises_ends_the_consumer_and_not_the_callback() -> None:
    world = World()
    world.member._check_starts = lambda starts: (_ for _ in ()).throw(ValueError(f"{len(starts)} starts"))
    world.give(T0)
    assert world.told == [("client", "incremental_assign")]
    with pytest.raises(ValueError, match="1 starts"):
        world.member._faults.raise_failure()
