"""A topic is deleted and made anew while its group is at offset servers: what was committed in the other one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from kit.either_broker import either_broker
from kit.offset_servers import OffsetServers, pace
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = ("--allow-unreplicated-log", "--set", "offsets.topic.num.partitions=2", *pace(300, 6_000))
BEFORE, AFTER = 100, 200
HELD = 95


@pytest.fixture(scope="module", params=["keylane", "apache"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetServers]:
    folder = tmp_path_factory.mktemp("anew")
    with either_broker(request.param, folder) as log, OffsetServers(log.bootstrap, folder, 2, *OPTIONS) as servers:
        servers.settled()
        yield servers


def stage_of(servers: OffsetServers, name: str, group: str = "") -> Stage:
    return Stage(servers.log, name, servers.bootstrap, group or f"group-{name}")


def make_anew(stage: Stage) -> None:
    stage.admin.delete_topics([stage.topic])
    until(lambda: stage.topic not in stage.admin.topics(), "the topic is gone")
    stage.create(1)
    stage.fill((b"%d" % number, 0) for number in range(AFTER))


def ran(stage: Stage, **options: Any) -> list[int]:
    offsets: list[int] = []
    stage.run(lambda record: offsets.append(record.offset), **options)
    return sorted(offsets)


def leave_a_gap(stage: Stage) -> None:
    def handler(record: kl.Record) -> None:
        if record.offset == HELD:
            raise kl.Fatal("stays incomplete")

    with pytest.raises(kl.HandlerError):
        stage.run(handler, on_exhausted=kl.Halt(), ordering="unordered")


def test_a_group_that_was_stopped_reads_all_of_the_new_one(servers: OffsetServers) -> None:
    stage = stage_of(servers, "stopped")
    gap, other = stage_of(servers, "stopped", "gap"), stage_of(servers, "kept", "gap")
    for one in (stage, other):
        one.create(1)
        one.fill((b"%d" % number, 0) for number in range(BEFORE))
    assert len(ran(stage)) == BEFORE
    leave_a_gap(gap)
    ran(other)
    make_anew(stage)
    assert ran(stage) == list(range(AFTER))
    assert ran(gap) == list(range(AFTER))
    assert ran(stage) == ran(gap) == [], "what is committed since then stays"
    assert other.admin.committed_offsets("gap")[other.topic, 0].offset == BEFORE, "and so do other topics"
    told = f"topic '{stage.topic}' was made anew"
    assert told in servers.told()


def test_the_next_leader_knows_it_too(servers: OffsetServers) -> None:
    """What its name stood for is in the log."""
    stage = stage_of(servers, "led")
    stage.create(1)
    stage.fill((b"%d" % number, 0) for number in range(BEFORE))
    assert len(ran(stage)) == BEFORE
    for one in list(servers.running):
        servers.stop(one)
    make_anew(stage)
    servers.add()
    servers.add()
    servers.settled()
    again = stage_of(servers, "led")
    assert ran(again) == list(range(AFTER))
    assert ran(again) == []
