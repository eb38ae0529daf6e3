"""Partitions that the group gives although their topic was deleted: they wait for it, and the others begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from keylane import Pipeline
from keylane.engine.assignment import Start
from keylane.kafka import membership
from keylane.kafka.faults import Faults
from keylane.kafka.logs import MissingError
from keylane.kafka.membership import Membership
from keylane.offsets import OffsetMap

if TYPE_CHECKING:
    from collections.abc import Sequence

GONE, THERE = [("gone", 0), ("gone", 1)], [("there", 0)]


class Group:
    """Client, logs, fetcher and listener of one member, all of which know which topics there are."""

    def __init__(self) -> None:
        self.topics = {"there": range(1)}
        self.told: list[Any] = []
        anything: Any = self
        pipeline = Pipeline(kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"}, topics=["t"], handler=print)
        self.member = Membership(
            anything,
            pipeline,
            anything,
            anything,
            anything,
            Faults(),
            cooperative=True,
            name="m",
            epochs=iter(()),
            instance=None,
            check_starts=lambda _: None,
        )
        self.member._listener = self.member._starts = anything

    def resolved(self, names: Sequence[tuple[str, int]], _: Any) -> list[Start]:
        for topic, _partition in names:
            if topic not in self.topics:
                raise MissingError("the log cannot be read", topic)
        return [Start(*name, 1, OffsetMap(0), 0, 10) for name in names]

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        error = None if topic in self.topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=self.topics.get(topic, ()))})

    def on_assigned(self, starts: list[Start]) -> None:
        self.told.append([(one.topic, one.partition) for one in starts])

    def on_deleted(self, topic: str, names: list[tuple[str, int]]) -> None:
        self.told.append((topic, names))

    def assign(self, _: Any) -> None: ...

    unassign = incremental_assign = incremental_unassign = assign

    def look(self) -> None:
        self.member._look_at = 0.0
        self.member._look_for_topics()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr(membership, "DELETED_S", 0.0)
    made = Group()
    made.member._on_assign(made.member._client, [TopicPartition(*name) for name in [*GONE, *THERE]])
    assert made.told == [("gone", []), THERE]
    made.told.clear()
    return made


def test_they_begin_when_their_topic_is_made_anew(group: Group) -> None:
    group.look()
    assert group.told == [], "it is told once"
    group.topics["gone"] = range(1)
    group.look()
    assert group.told == [GONE[:1]], "the new one has fewer"


def test_what_the_group_takes_back_meanwhile_does_not_begin(group: Group) -> None:
    group.member._on_revoke(group.member._client, [TopicPartition(*GONE[0])])
    group.topics["gone"] = range(2)
    group.look()
    assert group.told == [GONE[1:]]


def test_a_topic_that_is_deleted_while_it_is_assigned(group: Group) -> None:
    group.topics.clear()
    group.member.suspect("there")
    group.look()
    group.look()
    assert group.told == [("there", THERE)]
    group.topics["there"] = range(1)
    group.look()
    assert group.told == [("there", THERE), THERE]
