"""What the membership decides is done by client, fetcher and listener, in its order."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from threading import Event
from time import sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, TopicPartition

from keylane import Pipeline
from keylane.consumer.ports import Revoking
from keylane.consumer.start import Start
from keylane.kafka import group_member, membership
from keylane.kafka.faults import Faults
from keylane.kafka.group_member import GroupMember
from keylane.kafka.logs import MissingError
from keylane.kafka.membership import Target
from keylane.kafka.starts import MovedOnError
from keylane.offsets import OffsetMap
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T0, T1 = ("t", 0), ("t", 1)
TIMEOUT_S = 20


class Client:
    """Notes what it is told, and calls back from `poll` as librdkafka does."""

    def __init__(self, told: list[tuple[str, Any]], topics: dict[str, range]) -> None:
        self.assigned: list[TopicPartition] = []
        """What librdkafka says is assigned."""
        self.member_id = ""
        self.may_close = Event()
        self.may_close.set()
        self._told = told
        self._topics = topics
        self._events: SimpleQueue[tuple[Callable[[], None], Event]] = SimpleQueue()
        self._over: Event | None = None
        """Of the turn that the next poll ends."""

    def turn(self, event: Callable[[], None] = lambda: None) -> None:
        """Has this happen in a poll; returns once the member has done all that follows from it."""
        over = Event()
        self._events.put((event, over))
        assert over.wait(TIMEOUT_S)

    def poll(self, timeout_s: float) -> None:
        if self._over is not None:
            self._over.set()
            self._over = None
        try:
            event, self._over = self._events.get(timeout=timeout_s)
        except Empty:
            return
        event()

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        assert topics == ["t"]
        self.callbacks = callbacks

    def call_back(self, name: str, partitions: list[TopicPartition]) -> None:
        self.callbacks[name](self, partitions)

    def unsubscribe(self) -> None:
        """What is to be taken back is, in the next poll."""
        self._told.append(("client", "unsubscribe"))
        assigned, self.assigned = self.assigned, []
        self._events.put((lambda: self.call_back("on_revoke", assigned), Event()))

    def memberid(self) -> str:
        return self.member_id

    def assignment(self) -> list[TopicPartition]:
        return self.assigned if self._events.empty() else [TopicPartition("t")]

    def assign(self, _: list[TopicPartition]) -> None:
        self._told.append(("client", "assign"))

    def unassign(self) -> None:
        self._told.append(("client", "unassign"))

    def incremental_assign(self, _: list[TopicPartition]) -> None:
        self._told.append(("client", "incremental_assign"))

    def incremental_unassign(self, _: list[TopicPartition]) -> None:
        self._told.append(("client", "incremental_unassign"))

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        error = None if topic in self._topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=self._topics.get(topic, ()))})

    def close(self) -> None:
        self._told.append(("client", f"close with {len(self.assigned)}"))
        self.may_close.wait(TIMEOUT_S)


class World:
    """A member, and its client, fetcher, starts and listener, which note what they are told."""

    def __init__(self, *, cooperative: bool = True, instance_id: str | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self.settle = Mock()
        self.topics = {"t": range(2)}
        self.not_sought = ""
        self.epoch = 0
        self.revoking = Revoking([])
        self.faults = Faults()
        self.resolve_error: Exception | None = None
        self.client = Client(self.told, self.topics)
        anything: Any = self
        kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
        if instance_id is not None:
            kafka["group.instance.id"] = instance_id
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_member, "Starts", lambda *_: self)
            self.member = GroupMember(
                client=self.client,  # type: ignore[arg-type]
                commits=SimpleNamespace(settle=self.settle, close=lambda: None),  # type: ignore[arg-type]
                pipeline=Pipeline(kafka=kafka, topics=["t"], handler=print),
                reader=anything,
                logs=SimpleNamespace(serve=lambda: None, close=lambda: None),  # type: ignore[arg-type]
                patience=anything,
                faults=self.faults,
                cooperative=cooperative,
                name="m",
                epochs=iter(()),
                instance=None,
                check_starts=lambda starts: starts,
                before_commit=lambda _: None,
            )

    def look(self, _: object) -> None:
        """Of `Starts`: no partition is new."""

    def forget(self, _: str) -> None:
        """The same: a topic was deleted."""

    def give(self, *names: tuple[str, int]) -> None:
        self._call_back("on_assign", names)

    def take_back(self, *names: tuple[str, int]) -> None:
        self._call_back("on_revoke", names)

    def take_away(self, *names: tuple[str, int]) -> None:
        self._call_back("on_lost", names)

    def _call_back(self, name: str, names: tuple[tuple[str, int], ...]) -> None:
        partitions = [TopicPartition(*one) for one in names]
        self.client.turn(lambda: self.client.call_back(name, partitions))

    def end_records(self) -> None:
        """Of those that were told to end."""
        self.revoking.answer.put([])
        self.client.turn()

    def resolved(self, names: list[tuple[str, int]], targets: Mapping[Any, Target]) -> list[Start]:
        for topic, _ in names:
            if topic not in self.topics:
                raise MissingError("the log cannot be read", topic)
        if self.resolve_error is not None:
            raise self.resolve_error
        self.epoch += 1
        offsets = {name: targets.get(name, Target(0)).offset or 0 for name in names}
        return [
            Start(*name, self.epoch, OffsetMap(offsets[name]), 0, 100, not_sought=self.not_sought) for name in names
        ]

    def on_heard(self, heard_at: float) -> None:
        """Not told of."""

    def on_assigned(self, starts: list[Start]) -> None:
        self.told += [("assigned", (one.partition, one.offsets.base)) for one in starts]

    def on_reloaded(self, starts: list[Start]) -> None:
        self.told += [("reloaded", one.partition) for one in starts]

    def on_revoking(self, names: list[tuple[str, int]]) -> Revoking:
        self.told.append(("revoking", names))
        self.revoking = Revoking(names)
        return self.revoking

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
        told = [*self.told]
        self.told.clear()
        return told


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """A world whose member has joined; it has left at the end of the test."""
    worlds: list[World] = []

    def make(**options: Any) -> World:
        worlds.append(World(**options))
        worlds[0].member.start(worlds[0])  # type: ignore[arg-type]
        return worlds[0]

    yield make
    for world in worlds:
        world.revoking.answer.put([])
        world.member.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


def test_what_is_given_is_told_and_read_before_the_client_may_go_on(world: World) -> None:
    world.give(T0)
    assert world.told == [("assigned", (0, 0)), ("read", [0]), ("client", "incremental_assign")]
    assert world.member.has_partitions


def test_what_was_lost_begins_again_once_no_commit_of_before_is_on_its_way(world: World) -> None:
    """Else that could be made after the start was read."""
    world.give(T0)
    world.take_away(T0)
    world.told_since()
    world.settle.side_effect = lambda: world.told.append(("commits", "settled"))
    world.give(T0)
    assert world.told_since()[:2] == [("commits", "settled"), ("assigned", (0, 0))]


@pytest.mark.parametrize(
    ("cooperative", "keeps", "gives"),
    [(True, "incremental_assign", "incremental_unassign"), (False, "assign", "unassign")],
)
def test_what_is_taken_back_goes_when_its_records_are_through(
    make_world: Callable[..., World], cooperative: bool, keeps: str, gives: str
) -> None:
    world = make_world(cooperative=cooperative)
    world.give(T0)
    world.told_since()
    world.take_back(T0)
    assert world.told_since() == [("revoking", [T0]), ("client", keeps)]
    world.client.turn()
    assert world.told_since() == [], "not yet"
    assert world.member.has_partitions, "a transaction may still send their offsets"
    world.end_records()
    assert world.told_since() == [("revoked", [T0]), ("stop", [T0]), ("client", gives)]
    assert not world.member.has_partitions


@pytest.mark.parametrize(
    ("instance_id", "ends"),
    [(None, [("client", "unsubscribe"), ("client", "close with 0")]), ("static", [("client", "close with 1")])],
)
def test_a_member_gives_all_back_before_its_client_closes(
    make_world: Callable[..., World], instance_id: str | None, ends: list[Any]
) -> None:
    """What librdkafka takes back while it closes may wait for ever; a static member stays in the group by that."""
    world = make_world(instance_id=instance_id)
    world.give(T0)
    world.client.assigned = [TopicPartition(*T0)]
    world.told_since()
    world.member.close()
    assert world.faults.broken is None
    told = world.told_since()
    assert [one for one in told if one[1] in ("unsubscribe", "close with 0", "close with 1")] == ends
    assert (("stop", [T0]) in told) is (instance_id is None)


def test_a_member_that_joins_while_it_closes_is_taken_out_of_its_group(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka's close waits until the rebalance is over, and the group then waits for the member."""
    monkeypatch.setattr(group_member, "JOINING_S", 0.01)
    taken_out: list[Any] = []

    def take_out(kafka: Mapping[str, Any], group: str, member_id: str) -> None:
        taken_out.append((kafka["bootstrap.servers"], group, member_id))
        world.client.may_close.set()  # the coordinator answers the request to join

    monkeypatch.setattr(group_member, "take_out", take_out)
    world.client.member_id = "keylane-1"
    world.client.may_close.clear()
    world.member.close()
    assert taken_out == [("nowhere:1", "g", "keylane-1")]
    assert caplog.text == ""


def test_a_member_that_need_not_be_taken_out_leaves_no_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(threading.Timer):
        """It has no turn for a while when it could end."""

        def run(self) -> None:
            super().run()
            sleep(0.1)

    monkeypatch.setattr("threading.Timer", Slow)
    world.client.member_id = "keylane-1"
    world.member.close()
    assert not [one for one in threading.enumerate() if isinstance(one, Slow)]


def test_a_member_that_cannot_be_taken_out_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_member, "JOINING_S", 0.01)
    monkeypatch.setattr(group_member, "CLOSE_S", 0.5)
    asked = Event()

    def take_out(*_: object) -> None:
        asked.set()
        raise OSError("nobody listens")

    monkeypatch.setattr(group_member, "take_out", take_out)
    world.client.member_id = "keylane-1"
    world.client.may_close.clear()
    world.member.close()
    assert asked.is_set()
    assert "the coordinator of group 'g' does not answer (nobody listens): the group learns by the" in caplog.text
    world.client.may_close.set()


def test_a_seek_goes_on_at_the_target_when_its_records_are_through(world: World) -> None:
    world.give(T0)
    world.told_since()
    world.member.seek({T0: Target(7), T1: Target(9)}, None)
    world.client.turn()
    assert world.told_since() == [("revoking", [T0])]
    world.end_records()
    assert world.told_since() == [("revoked", [T0]), ("stop", [T0]), ("assigned", (0, 7)), ("read", [0])]
    world.client.turn()
    assert world.told == [], "once"


def test_who_sought_is_told_where_it_went_on_and_why_not_where_it_was_sought(world: World) -> None:
    world.give(T0)
    moved: list[Any] = []
    world.member.seek({T0: Target(again=frozenset([3])), T1: Target(9)}, None, moved.append)
    world.client.turn()
    world.not_sought = "it is not complete"
    world.end_records()
    world.client.turn()
    assert moved == [{T0: "it is not complete"}], "once, and nothing of what it does not have"


def test_lost_partitions_are_told_and_no_longer_read(world: World) -> None:
    heard: list[str] = []
    world.member.on_lost = lambda: heard.append("lost")
    world.give(T0)
    world.told_since()
    world.take_away(T0)
    assert world.told == [("lost", [T0]), ("stop", [T0]), ("client", "incremental_unassign")]
    assert heard == ["lost"]


def test_what_is_reloaded_stays_ours_in_another_epoch(world: World) -> None:
    world.give(T0, T1)
    world.told_since()
    world.member.reload([(T1, 1)])
    world.client.turn()
    assert world.told_since() == [("stop", [T1]), ("reloaded", 1), ("read", [1])]
    world.member.reload([(T1, 1)])
    world.client.turn()
    assert world.told_since() == [], "that was of the epoch before"
    world.member.reload([(T0, 1), (T1, 2)])
    world.client.turn()
    assert world.told_since() == [("stop", [T0, T1]), ("reloaded", 0), ("reloaded", 1), ("read", [0, 1])]


def test_a_deleted_topic_is_looked_for_and_begins_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "DELETED_S", 0.0)
    monkeypatch.setattr(membership, "LOOK_AGAIN_S", 0.0)
    world.topics.clear()
    world.give(T0)
    assert world.told_since() == [("t", []), ("client", "incremental_assign")]
    world.client.turn()
    assert world.told_since() == [], "it is told once"
    world.topics["t"] = range(1)
    world.client.turn()
    assert world.told_since() == [("assigned", (0, 0)), ("read", [0])]
    del world.topics["t"]
    world.member.suspect("t")
    world.client.turn()
    assert world.told_since() == [("stop", [T0]), ("t", [T0])]


def test_what_could_not_begin_while_the_group_was_going_on_begins_when_that_is_over(world: World) -> None:
    """A cooperative group does not give again what a member has."""
    world.resolve_error = MovedOnError("ILLEGAL_GENERATION")
    world.give(T0)
    assert world.told_since() == [("client", "incremental_assign")]
    world.resolve_error = None
    until(lambda: world.client.turn() or bool(world.told), "it begins")  # type: ignore[func-returns-value]
    assert world.told_since() == [("assigned", (0, 0)), ("read", [0])]


def test_what_a_start_raises_ends_the_consumer_and_not_the_callback(world: World) -> None:
    world.resolve_error = ValueError("these starts")
    world.give(T0)
    assert world.told == [("client", "incremental_assign")]
    with pytest.raises(ValueError, match="these starts"):
        world.faults.raise_failure()
