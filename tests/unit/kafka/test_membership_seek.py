"""A seek is a revoke that the group does not see; what the group does meanwhile comes before or after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from keylane import Pipeline
from keylane.engine.assignment import Start
from keylane.engine.events import Revoking
from keylane.kafka.faults import Faults
from keylane.kafka.membership import Membership
from keylane.kafka.starts import Target
from keylane.offsets import OffsetMap

if TYPE_CHECKING:
    from collections.abc import Mapping

T0, T1 = ("t", 0), ("t", 1)


class World:
    """A membership whose client, fetcher and listener note what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        pipeline = Pipeline(kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"}, topics=["t"], handler=print)
        anything: Any = self
        self.group = Membership(
            anything,
            pipeline,
            anything,
            anything,
            anything,
            Faults(),
            cooperative=True,
            name="seeking",
            epochs=iter(()),
            instance=None,
            check_starts=lambda _: None,
        )
        self.group._listener = anything
        self.group._starts = anything
        self.group._on_assign(anything, [TopicPartition(*T0)])
        self.told.clear()

    def resolved(self, names: list[tuple[str, int]], targets: Mapping[Any, Target] | None) -> list[Start]:
        offset = {name: (targets or {}).get(name, Target(0)).offset or 0 for name in names}
        return [Start(*name, 1, OffsetMap(offset[name]), 0, 100) for name in names]

    def on_assigned(self, starts: list[Start]) -> None:
        self.told += [("assigned", (one.partition, one.offsets.base)) for one in starts]

    def on_revoking(self, names: list[tuple[str, int]]) -> Revoking:
        self.told.append(("revoking", names))
        return Revoking(names)

    def on_revoked(self, revoking: Revoking) -> None:
        self.told.append(("revoked", revoking.names))

    def on_lost(self, names: list[tuple[str, int]]) -> None:
        self.told.append(("lost", names))

    def assign(self, _: Any) -> None:
        """The client's, and the fetcher's."""

    unassign = incremental_assign = incremental_unassign = assign


@pytest.fixture
def world() -> World:
    return World()


def test_it_goes_on_at_the_target_when_its_records_are_through(world: World) -> None:
    world.group.seek({T0: Target(7), T1: Target(9)}, None)
    world.group._begin_seek()
    assert world.told == [("revoking", [T0])], "the other partition is not ours"
    world.group._finish_revoke()
    assert len(world.told) == 1, "not yet"
    world.group._revoking.answer.put([])  # type: ignore[union-attr]
    world.group._finish_revoke()
    assert world.told[1:] == [("revoked", [T0]), ("assigned", (0, 7))]
    assert world.group._revoking is None


def test_partitions_that_the_group_adds_meanwhile_cost_nothing(world: World) -> None:
    world.group.seek({}, Target(7))
    world.group._begin_seek()
    world.group._on_assign(world, [TopicPartition(*T1)])  # type: ignore[arg-type]
    assert world.told[1:] == [("revoked", [T0]), ("assigned", (0, 7)), ("assigned", (1, 0))]


def test_a_revoke_comes_after_the_seek(world: World) -> None:
    world.group.seek({T0: Target(7)}, None)
    world.group._begin_seek()
    world.group._on_revoke(world, [TopicPartition(*T0)])  # type: ignore[arg-type]
    assert world.told[1:] == [("revoked", [T0]), ("assigned", (0, 7)), ("revoking", [T0])]


def test_lost_partitions_are_not_sought_in(world: World) -> None:
    world.group.seek({T0: Target(7)}, None)
    world.group._begin_seek()
    world.group._on_lost(world, [TopicPartition(*T0)])  # type: ignore[arg-type]
    assert world.told[1:] == [("lost", [T0])]
    world.group._on_assign(world, [TopicPartition(*T0)])  # type: ignore[arg-type]
    assert world.told[2:] == [("assigned", (0, 0))]
