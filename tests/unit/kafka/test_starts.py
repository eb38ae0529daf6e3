"""What becomes of an assignment while its starts are asked for and committed: the group may go on, or refuse."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keylane import Pipeline
from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka import exact
from keylane.kafka.consumer import KafkaConsumer
from keylane.kafka.faults import commit_problem
from keylane.kafka.logs import MissingError
from keylane.kafka.membership import Replay
from keylane.kafka.starts import MovedOnError, Starts
from keylane.offsets import OffsetMap, encode
from keylane.parallel_consumer import check_replay
from keylane.pipeline import Commit, External, Partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.consumer.commits import CommitProblem
    from keylane.consumer.start import Start

T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "h:1", "group.id": "g"}


class World:
    """A group without commits, whose coordinator has an answer to commits, and one to questions."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        commits: int = 0,
        lookups: int = 0,
        unknown: int = 0,  # a code, as the others
        log_answers: int = 9,
        **changes: Any,
    ) -> None:
        self.waits: list[str] = []
        self._unknown = unknown
        self._log_answers = log_answers
        self._commits = commits
        self._lookups = lookups
        monkeypatch.setattr(exact, "committed", self._committed)
        anything: Any = self
        pipeline = Pipeline(kafka=KAFKA, handler=print, **({"topics": ["t"]} | changes))
        self.starts = Starts(anything, pipeline, anything, anything, self.commit, count(), self._check)

    def resolve(self) -> list[Start]:
        return self.starts.resolved([T0])

    def _check(self, starts: Sequence[Start]) -> Sequence[Start]:
        return starts

    # --- the coordinator and the log ---

    def commit(self, offsets: Sequence[Any]) -> dict[tuple[str, int], CommitProblem]:
        if not self._commits:
            return {}
        return {one.name: commit_problem(KafkaError(self._commits)) for one in offsets}

    def _committed(self, _: object, names: list[tuple[str, int]], __: float) -> list[exact.GroupOffset]:
        if self._lookups:
            raise KafkaException(KafkaError(self._lookups))
        error = KafkaError(self._unknown) if self._unknown else None
        return [exact.GroupOffset(*name, -1001, "", error) for name in names]

    def bounds(self, topic: str, _: int) -> tuple[int, int]:
        if not self._log_answers:
            raise MissingError("the log cannot be read", topic)
        self._log_answers -= 1
        return 0, 10

    # --- patience, which has none ---

    def give_up_at(self) -> float:
        return 0.0

    def pause(self) -> bool:
        return True

    def wait(self, _: float, text: str) -> None:
        self.waits.append(text)
        raise BrokerUnavailableError(text)

    def ask_again(self, error: KafkaError, _: float, what: str) -> None:
        self.wait(0, f"{what}: {error.name()}")


def test_a_start_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    [start] = World(monkeypatch).resolve()
    assert (start.topic, start.partition) == T0


@pytest.mark.parametrize(
    "code", [KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH]
)
@pytest.mark.parametrize("asked", ["commits", "lookups"])
def test_nothing_starts_where_the_group_went_on_and_the_member_lives(
    monkeypatch: pytest.MonkeyPatch, code: int, asked: str
) -> None:
    world = World(monkeypatch, **{asked: code})
    with pytest.raises(MovedOnError, match=KafkaError(code).name()):
        world.resolve()
    assert not world.waits


@pytest.mark.parametrize(
    ("asked", "log_answers"),
    [({"unknown": KafkaError.UNKNOWN_TOPIC_OR_PART}, 0), ({"commits": KafkaError.UNKNOWN_TOPIC_OR_PART}, 1)],
)
def test_a_coordinator_that_does_not_know_a_topic_is_believed_once_its_log_is_gone(
    monkeypatch: pytest.MonkeyPatch, asked: Any, log_answers: int
) -> None:
    world = World(monkeypatch, **asked, log_answers=log_answers)
    with pytest.raises(MissingError):
        world.resolve()
    assert not world.waits
    world = World(monkeypatch, **asked)
    with pytest.raises(BrokerUnavailableError):
        world.resolve()
    [text] = world.waits
    assert "UNKNOWN_TOPIC_OR_PART" in text


@pytest.mark.parametrize("code", [KafkaError.NOT_COORDINATOR, KafkaError.REBALANCE_IN_PROGRESS])
@pytest.mark.parametrize("asked", ["commits", "lookups"])
def test_what_passes_is_waited_for(monkeypatch: pytest.MonkeyPatch, code: int, asked: str) -> None:
    world = World(monkeypatch, **{asked: code})
    with pytest.raises(BrokerUnavailableError, match=KafkaError(code).name()):
        world.resolve()
    assert len(world.waits) == 1


def test_a_start_that_may_not_be_committed_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, commits=KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(PeerError, match=r"the starts of \S+-0 cannot be committed: GROUP_AUTHORIZATION_FAILED"):
        world.resolve()
    assert not world.waits


def test_who_is_assigned_by_hand_has_no_group_to_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, commits=KafkaError.UNKNOWN_MEMBER_ID, topics=Partitions([T0]))
    with pytest.raises(BrokerUnavailableError, match="UNKNOWN_MEMBER_ID"):
        world.resolve()


KEPT = OffsetMap(3, [3, 5], 8)
ELSEWHERE = {"commit": External(lambda names: dict.fromkeys(names, KEPT))}


def test_a_start_that_is_kept_elsewhere_may_have_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, commits=KafkaError.GROUP_AUTHORIZATION_FAILED)
    anything: Any = world
    options: Any = ELSEWHERE
    pipeline = Pipeline(kafka=KAFKA, handler=print, topics=["t"], **options)
    [start] = Starts(anything, pipeline, anything, anything, world.commit, count(), lambda starts: starts).resolved(
        [T0]
    )
    assert start.offsets == KEPT


def test_what_is_kept_elsewhere_is_committed_to_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    entry: Any = SimpleNamespace(name=T0, offset=1, metadata="")
    options: Any = ELSEWHERE
    with closing(KafkaConsumer(Pipeline(kafka=kafka, handler=print, topics=["t"], **options))) as consumer:
        monkeypatch.setattr(consumer._member, "commit_now", lambda *_: {T0: "the group was asked"})
        assert consumer.commit_now([entry], 0.1) == {}


def test_what_is_kept_elsewhere_is_not_replayed_here() -> None:
    options: Any = ELSEWHERE
    with pytest.raises(UsageError, match="the offsets are not the group's: change them where they are"):
        check_replay(Pipeline(kafka=KAFKA, handler=print, topics=["t"], **options))


# --- records that are to run again ---

HAD = OffsetMap(5, [5, 7], 9)


class Replayed(World):
    """The same of a group that has committed `HAD` of a log from 2 to 10, and notes what is committed then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        super().__init__(monkeypatch, **more)
        self.sent: list[tuple[int, str]] = []

    def commit(self, offsets: Sequence[Any]) -> dict[tuple[str, int], CommitProblem]:
        self.sent += [(one.offset, one.metadata) for one in offsets]
        return super().commit(offsets)

    def _committed(self, _: object, names: list[tuple[str, int]], __: float) -> list[exact.GroupOffset]:
        return [exact.GroupOffset(*name, HAD.base, encode(HAD), None) for name in names]

    def bounds(self, topic: str, _: int) -> tuple[int, int]:
        return 2, 10

    def again(self, *offsets: int) -> Start:
        [start] = self.starts.resolved([T0], Replay(tuple((*T0, one) for one in offsets)).targets)
        return start


def test_what_is_to_run_again_is_committed_as_incomplete_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Replayed(monkeypatch)
    start = world.again(3, 8)
    assert (start.offsets, start.not_sought) == (OffsetMap(3, [3, 5, 7, 8], 9), "")
    assert world.sent == [(3, encode(start.offsets))]


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ((3, 5), "t:0@5: it is not complete: it runs without a replay"),
        ((9, 10), "t:0@10: it is not complete: it runs without a replay"),
        ((1, 3), "t:0@1: it is below the log's start at 2: produce it again to have it processed"),
    ],
)
def test_one_record_that_cannot_run_again_leaves_its_partition_as_it_was(
    monkeypatch: pytest.MonkeyPatch, offsets: tuple[int, ...], why: str
) -> None:
    world = Replayed(monkeypatch)
    start = world.again(*offsets)
    assert (start.offsets, start.not_sought) == (HAD, why)
    assert world.sent == []


def test_a_map_that_the_broker_does_not_take_leaves_the_partition_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Replayed(monkeypatch, commits=KafkaError.OFFSET_METADATA_TOO_LARGE)
    start = world.again(3)
    assert start.offsets == HAD
    assert "larger than the broker takes" in start.not_sought
    assert len(world.sent) == 1
    assert world.waits == []


def test_a_map_that_could_grow_too_large_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Replayed(monkeypatch, commit=Commit(metadata_max_bytes=2))
    start = world.again(3)
    assert start.offsets == HAD
    assert "name fewer records" in start.not_sought
    assert world.sent == []


def test_who_keeps_what_was_processed_may_refuse_that_it_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Replayed):
        def _check(self, starts: Sequence[Start]) -> Sequence[Start]:
            if starts[0].offsets.base < 5:
                raise PeerError(f"what was processed below 5 is purged: {starts[0].offsets.base}")
            return starts

    world = Refusing(monkeypatch)
    start = world.again(3)
    assert (start.offsets, start.not_sought) == (HAD, "what was processed below 5 is purged: 3")
    assert world.sent == []


def test_who_keeps_what_was_processed_may_have_it_start_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the group's offset goes there first, as with every start that is not what the group has committed."""

    class Rewinding(Replayed):
        def _check(self, starts: Sequence[Start]) -> Sequence[Start]:
            return [replace(one, offsets=OffsetMap(2, [3], 4)) for one in starts]

    world = Rewinding(monkeypatch)
    (start,) = world.starts.resolved([T0])
    assert start.offsets == OffsetMap(2, [3], 4)
    assert world.sent == [(2, encode(start.offsets))]
