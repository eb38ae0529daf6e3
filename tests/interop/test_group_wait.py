"""A member that is started after a kill says what it waits for, whoever coordinates the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.cli.run import note_of
from keylane.consumer.snapshot import Wait
from keylane.kafka import group_wait
from kit.processes import Stopwatch
from kit.stage import Member, Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

    import peers

    import keylane as kl


def nothing(record: kl.Record) -> None:
    """A handler."""


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_that_is_started_after_a_kill_names_the_dead_one_until_the_group_gives_it_up(
    bootstrap: str,
    strategy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(group_wait, "AFTER_S", 1.0)
    stage = Stage(bootstrap, f"wait-{strategy}")
    stage.create(2)
    stage.fill((b"key", 0) for _ in range(20))
    kafka = stage.kafka | {"session.timeout.ms": 8_000, "partition.assignment.strategy": strategy}
    with Member(kafka=kafka, topic=stage.topic, ledger=str(tmp_path / "ledger"), slow=[5], hold_s=60) as child:
        until(lambda: any(one.assignment for one in stage.admin.describe_group(stage.group).members), "it is a member")
        (dead,) = stage.admin.describe_group(stage.group).members
        child.kill()
    member = ThreadMember(stage.pipeline(nothing, kafka=kafka), "next", ending_offsets="latest")
    until(lambda: member.consumer.snapshot().waits is not None, "it says what it waits for")
    found = member.consumer.snapshot()
    assert isinstance(found.waits, Wait)
    assert found.waits.members == (dead.member_id,)
    text = (
        f"waits for the rebalance of group {stage.group}: member {dead.member_id} may be dead: up to 8 s; "
        "group.instance.id avoids this (docs/kubernetes.md#static-members)"
    )
    assert note_of(found, 0.0).endswith(text)
    member.end()
    assert [one.getMessage() for one in caplog.records if one.name == "keylane.waits"] == [text]
    assert member.consumer.snapshot().waits is None
    assert stage.all_is_committed()


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_that_is_stopped_while_it_joins_leaves_no_ghost(
    bootstrap: str, strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The group would wait for the dead one, and then for this one."""
    stage = Stage(bootstrap, f"ghost-{strategy}")
    stage.create(2)
    kafka = stage.kafka | {"session.timeout.ms": 30_000, "partition.assignment.strategy": strategy}
    with Member(kafka=kafka, topic=stage.topic, ledger=str(tmp_path / "ledger"), ends=False) as child:
        until(lambda: any(one.assignment for one in stage.admin.describe_group(stage.group).members), "it is a member")
        (dead,) = stage.admin.describe_group(stage.group).members
        child.kill()

    def members() -> list[str]:
        return [one.member_id for one in stage.admin.describe_group(stage.group).members]

    member = ThreadMember(stage.pipeline(nothing, kafka=kafka), "joins")
    until(lambda: len(members()) == 2, "it joins")
    watch = Stopwatch()
    member.consumer.stop()
    member.end()
    took_s = watch.took_s()
    assert members() == [dead.member_id], "the group gives the dead one up after 30 s"
    assert took_s < 20
    assert "does not answer" not in caplog.text


def test_under_kip_848_it_names_who_has_its_partitions(
    apache_kafka: peers.ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_wait, "AFTER_S", 1.0)
    stage = Stage(apache_kafka.bootstrap, "wait-consumer")
    stage.create(2)  # of one, a dead member stays the rightful owner
    stage.fill((b"key", 0) for _ in range(20))
    kafka = {"bootstrap.servers": stage.servers, "group.id": stage.group, "group.protocol": "consumer"}
    with Member(kafka=kafka, topic=stage.topic, ledger=str(tmp_path / "ledger"), slow=[5], hold_s=60) as child:
        until(lambda: any(one.assignment for one in stage.admin.describe_group(stage.group).members), "it is a member")
        (dead,) = stage.admin.describe_group(stage.group).members
        child.kill()
    member = ThreadMember(stage.pipeline(nothing, kafka=kafka), "next")
    try:
        until(lambda: member.consumer.snapshot().waits is not None, "it says what it waits for")
        waits = member.consumer.snapshot().waits
        assert isinstance(waits, Wait)
        assert waits.members == (dead.member_id,)
    finally:
        member.consumer.stop()
        member.end()
