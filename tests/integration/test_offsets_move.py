"""`keylane offsets move`: a group goes from its brokers to offset servers and back, and is killed at each step."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import keylane as kl
from keylane.cli import main
from keylane.offsets import OffsetMap, encode
from kit.either_broker import either_broker
from kit.offset_servers import OffsetServers, pace
from kit.stage import Member, Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keylane.kafka.admin import Admin, CommittedOffset

OPTIONS = ("--allow-unreplicated-log", "--set", "offsets.topic.num.partitions=2", *pace(300, 6_000))
RECORDS = 60
GAPS = (3, 7, 8)
"""Offsets that are not complete."""

KILLED = """
import os, signal, sys
from keylane.cli import main
from keylane.kafka import moving
from keylane.kafka.admin import Admin

def deadly(owner, name, is_after):
    call = getattr(owner, name)
    def dies(*args, **options):
        if is_after:
            call(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dies)

owner = {"replace": moving, "delete_offsets": Admin}[sys.argv[1]]
deadly(owner, sys.argv[1], sys.argv[2] == "after")
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture(scope="module", params=["keylane", "apache"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetServers]:
    folder = tmp_path_factory.mktemp("move")
    with either_broker(request.param, folder) as log, OffsetServers(log.bootstrap, folder, 1, *OPTIONS) as servers:
        servers.settled()
        yield servers


def stages(servers: OffsetServers, name: str) -> tuple[Stage, Stage]:
    """The same group at the brokers and at the offset servers, with commits in two partitions of three at the brokers:
    a map and a leader epoch, and neither."""
    brokers, there = Stage(servers.log, name), Stage(servers.log, name, servers.bootstrap)
    brokers.create(3)
    brokers.fill((b"%d" % (number % 5), number % 3) for number in range(RECORDS))
    offsets = OffsetMap(GAPS[0], GAPS, RECORDS // 3 - 1)
    names = [(brokers.topic, partition) for partition in (0, 2)]
    brokers.admin.commit_offsets(
        brokers.group,
        dict(zip(names, (GAPS[0], 11), strict=True)),
        {names[0]: encode(offsets)},
        {names[0]: epoch_of(brokers)},
    )
    return brokers, there


def epoch_of(stage: Stage) -> int:
    """The leader epoch of the records."""
    with closing(Consumer({"bootstrap.servers": stage.servers, "group.id": "looks"})) as reader:
        reader.assign([TopicPartition(stage.topic, 0, 0)])
        (record,) = reader.consume(1, 20)
        epoch = record.leader_epoch()
    assert epoch is not None
    return epoch


def arguments(stage: Stage, servers: OffsetServers, *more: str) -> list[str]:
    places = ("--bootstrap", servers.log, "--offsets-servers", servers.bootstrap)
    return ["offsets", "move", stage.group, *places, *more]


def moved(capsys: pytest.CaptureFixture[str], stage: Stage, servers: OffsetServers, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(arguments(stage, servers, *more, "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], command: list[str]) -> str:
    capsys.readouterr()
    assert main(command) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1, line
    return line


def at(admin: Admin, group: str) -> dict[tuple[str, int], CommittedOffset]:
    return admin.committed_offsets(group)


def test_offset_map_and_epoch_go_there_and_back_as_they_are(
    servers: OffsetServers, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers, there = stages(servers, "there-and-back")
    before = at(brokers.admin, brokers.group)
    epoch = epoch_of(brokers)
    assert {name[1]: (one.offset, one.leader_epoch) for name, one in before.items()} == {0: (3, epoch), 2: (11, -1)}
    planned = moved(capsys, brokers, servers)
    assert (planned["executed"], len(planned["partitions"])) == (False, 2)
    assert (at(brokers.admin, brokers.group), at(there.admin, there.group)) == (before, {})
    assert moved(capsys, brokers, servers, "--execute")["executed"] is True
    assert (at(brokers.admin, brokers.group), at(there.admin, there.group)) == ({}, before)
    with closing(Consumer({"bootstrap.servers": servers.bootstrap, "group.id": there.group})) as other:
        names = [TopicPartition(there.topic, partition) for partition in (0, 2)]
        assert [(one.offset, one.leader_epoch) for one in other.committed(names, timeout=10)] == [
            (3, epoch),
            (11, None),
        ]
    assert moved(capsys, brokers, servers, "--execute")["partitions"] == [], "it is there"
    assert len(moved(capsys, brokers, servers, "--back", "--execute")["partitions"]) == 2
    assert (at(brokers.admin, brokers.group), at(there.admin, there.group)) == (before, {})


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_killed_at_each_step_it_is_made_up_for(
    servers: OffsetServers, capsys: pytest.CaptureFixture[str], back: bool
) -> None:
    way = ("--back",) if back else ()
    for step in ("replace", "delete_offsets"):
        for when in ("before", "after"):
            brokers, there = stages(servers, f"killed-{step}-{when}-{back}")
            before = at(brokers.admin, brokers.group)
            if back:
                moved(capsys, brokers, servers, "--execute")
            source, target = (there, brokers) if back else (brokers, there)
            command = [sys.executable, "-c", KILLED, step, when, *arguments(brokers, servers, *way, "--execute")]
            assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
            left, came = at(source.admin, source.group), at(target.admin, target.group)
            assert {**left, **came} == before, "it is at one of them at least"
            assert came in ({}, before)
            moved(capsys, brokers, servers, *way, "--execute")
            assert (at(source.admin, source.group), at(target.admin, target.group)) == ({}, before), (step, when)


def test_nothing_is_overwritten(servers: OffsetServers, capsys: pytest.CaptureFixture[str]) -> None:
    brokers, there = stages(servers, "other")
    before = at(brokers.admin, brokers.group)
    there.admin.commit_offsets(there.group, {(there.topic, 2): 5})
    line = refused(capsys, arguments(brokers, servers, "--execute"))
    assert f"{there.topic}-2: 11 and 5" in line
    assert at(brokers.admin, brokers.group) == before
    assert {name[1]: one.offset for name, one in at(there.admin, there.group).items()} == {2: 5}
    assert main(["groups", "reset", there.group, "--bootstrap", servers.log, "--offsets-servers", servers.bootstrap,
                 "--topic", there.topic, "--to-earliest"]) == 0  # fmt: skip
    assert "the brokers have 11" in capsys.readouterr().out


def test_a_group_with_members_is_refused(
    servers: OffsetServers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Stage(servers.log, "alive", servers.bootstrap)
    there.create(1)
    with Member(kafka=there.kafka, topic=there.topic, ledger=str(tmp_path / "one"), ends=False):
        until(lambda: bool(there.admin.describe_group(there.group).members), "it has joined")
        line = refused(capsys, arguments(there, servers, "--execute"))
        assert f"at the offset servers ({servers.bootstrap})" in line
        assert "1 members" in line


def test_brokers_in_the_place_of_offset_servers_are_refused(
    servers: OffsetServers, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else all would be there, and only be deleted."""
    brokers, _ = stages(servers, "same")
    before = at(brokers.admin, brokers.group)
    command = ["offsets", "move", brokers.group, "--bootstrap", servers.log, "--execute"]
    assert "there is no offset server" in refused(capsys, [*command, "--offsets-servers", servers.log])
    assert "give --offsets-servers" in refused(capsys, command)
    assert "--offsets-servers 'nowhere'" in refused(capsys, [*command, "--offsets-servers", "nowhere"])
    assert at(brokers.admin, brokers.group) == before


def test_a_start_with_offset_servers_asks_what_the_brokers_have(
    servers: OffsetServers, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers, there = stages(servers, "start")
    ran: list[int] = []

    def note(record: kl.Record) -> None:
        ran.append(int(record.value or b""))

    with pytest.raises(kl.UsageError, match=rf"`keylane offsets move {there.group} .*on_commits_at_brokers"):
        there.run(note)
    assert ran == []
    moved(capsys, brokers, servers, "--execute")
    there.run(note)
    undone = sorted([3 * one for one in GAPS] + [*range(1, RECORDS, 3)] + [*range(11 * 3 + 2, RECORDS, 3)])
    assert sorted(ran) == undone, "what was not complete, and the partition without a commit"
    assert there.all_is_committed()


def test_a_query_that_begins_where_the_group_stands_asks_too(
    servers: OffsetServers, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from keylane.spark.structured.options import parse_source
    from keylane.spark.structured.topics import Topics

    brokers, there = stages(servers, "query")
    options = {f"kafka.{name}": value for name, value in there.kafka.items() if "servers" in name or name == "group.id"}
    source = parse_source(options | {"subscribe": there.topic, "startingOffsets": "committed"}, streaming=True)
    topics = Topics(source)
    with pytest.raises(kl.UsageError, match=rf"`keylane offsets move {there.group} .*startingOffsets=earliest"):
        topics.resolve(source.start, topics.partitions())
    moved(capsys, brokers, servers, "--execute")
    offsets, maps = topics.resolve(source.start, topics.partitions())
    assert {name[1]: offset for name, offset in offsets.items()} == {0: 3, 1: 0, 2: 11}
    assert [name[1] for name in maps] == [0]


def test_a_group_begins_anew_where_it_is_told_to(servers: OffsetServers) -> None:
    brokers, there = stages(servers, "anew")
    before, ran = at(brokers.admin, brokers.group), []
    there.run(lambda record: ran.append(record.offset), commit=kl.Commit(on_commits_at_brokers="begin_anew"))
    assert len(ran) == RECORDS
    assert at(brokers.admin, brokers.group) == before
