"""A map holds for the log that it was made of: commits say which that was, and a start holds them against it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.cli import main
from keylane.kafka.admin import CommittedOffset
from keylane.kafka.membership import Replay
from keylane.offsets import OffsetMap, decode, encode
from keylane.offsets.codec import is_marked
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANOTHER_EPOCH = 5
"""Of a leader before the first one that the embedded broker's logs have had."""
MODES: list[Any] = ["at_least_once", "at_most_once", "almost_once", "transactional"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("other-logs") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    made = Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))
    made.create(1)
    made.fill((b"%d" % number, 0) for number in range(20))
    return made


def commit(stage: Stage, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
    """By somebody else."""
    name = (stage.topic, 0)
    stage.admin.commit_offsets(stage.group, {name: offset}, {name: metadata}, {name: leader_epoch})


def committed(stage: Stage) -> CommittedOffset:
    return stage.admin.committed_offsets(stage.group)[stage.topic, 0]


def epoch_of(stage: Stage) -> int:
    """Of who leads the log now."""
    led = stage.admin.led_log_ends([(stage.topic, 0)], read_committed=False)[stage.topic, 0]
    assert led is not None
    return led.leader_epoch


def has_all(stage: Stage) -> bool:
    """Whether all 20 records are committed, beside the leader's epoch."""
    found = committed(stage)
    return (decode(found.metadata, found.offset), found.leader_epoch) == (OffsetMap(20), epoch_of(stage))


def with_a_gap(stage: Stage, **options: Any) -> CommittedOffset:
    """What a member has committed that could not complete record 3."""

    def handler(record: kl.Record) -> None:
        if record.offset == 3:
            raise kl.Fatal("stays incomplete")

    with pytest.raises(kl.HandlerError):
        stage.run(handler, on_exhausted=kl.Halt(), **options)
    return committed(stage)


def ran(stage: Stage, **options: Any) -> list[int]:
    offsets: list[int] = []
    stage.run(lambda record: offsets.append(record.offset), **options)
    return sorted(offsets)


# --- what a commit says ---


@pytest.mark.parametrize("mode", MODES)
def test_every_commit_has_the_leader_epoch_and_a_map_says_so(stage: Stage, mode: str) -> None:
    found = with_a_gap(stage, delivery=mode, ordering="unordered")
    assert found.leader_epoch == epoch_of(stage)
    assert is_marked(found.metadata) == (mode != "at_least_once" or bool(found.metadata))
    again = ran(stage, delivery=mode, ordering="unordered")
    done = decode(found.metadata, found.offset)
    assert again == [offset for offset in range(20) if not done.is_complete(offset)]
    assert has_all(stage)


def test_an_exactly_once_store_beside_it_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    store = kl.ExactlyOnce(str(tmp_path / "effects.db"))
    assert with_a_gap(stage, delivery=store, ordering="unordered").leader_epoch == epoch_of(stage)


def test_under_kip_848_it_is_the_same(stage: Stage) -> None:
    kafka = {name: value for name, value in stage.kafka.items() if "interval" not in name and "session" not in name}
    found = with_a_gap(stage, kafka=kafka | {"group.protocol": "consumer"}, ordering="unordered")
    assert found.leader_epoch == epoch_of(stage)


def test_beside_a_map_without_one_there_is_none_before_its_end_was_read(stage: Stage) -> None:
    """Nobody knows by which leaders the records were written that it has complete."""
    commit(stage, 1, encode(OffsetMap(1, [1, 3], 25 - 10)))
    with pytest.raises(kl.HandlerError):
        stage.run(stop_at(1), on_exhausted=kl.Halt(), ordering="partition")
    assert committed(stage).leader_epoch == -1
    assert ran(stage) == [1, 3, 16, 17, 18, 19]
    assert has_all(stage)


def stop_at(offset: int) -> Any:
    def handler(record: kl.Record) -> None:
        if record.offset == offset:
            raise kl.Fatal("stays incomplete")

    return handler


# --- copied maps ---


@pytest.mark.parametrize("mode", MODES)
def test_a_copied_map_runs_again_or_is_refused(stage: Stage, mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As MirrorMaker 2 does it: another offset, the same metadata, no leader epoch."""
    commit(stage, 2, encode(OffsetMap(12, [12], 16), is_marked=True))
    if mode != "at_least_once":
        with pytest.raises(
            kl.PeerError, match=r"offset 2 was copied by another .*on_copied_map='run_again'\).*up to 4 beyond it"
        ):
            ran(stage, delivery=mode)
        ran_now = ran(stage, delivery=mode, commit=kl.Commit(on_copied_map="run_again"))
    else:
        ran_now = ran(stage)
    assert ran_now == list(range(2, 20)), "nothing of this log is lost"
    [line] = [one for one in caplog.records if "were copied" in one.getMessage()]
    assert (line.levelname, "up to 4 complete records beyond these offsets run again" in line.getMessage()) == (
        "WARNING",
        True,
    )
    assert has_all(stage)


def test_a_copied_map_is_believed_where_the_logs_are_the_same(stage: Stage) -> None:
    commit(stage, 2, encode(OffsetMap(2, [2, 9], 15), is_marked=True))
    assert ran(stage, commit=kl.Commit(on_copied_map="believe")) == [2, 9, *range(16, 20)]


def test_of_a_copied_map_commands_say_so_and_do_not_edit_it(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit(stage, 2, encode(OffsetMap(12, [12], 16), is_marked=True))
    here = ["--bootstrap", stage.servers]
    assert main(["groups", "map", stage.group, *here]) == 0
    assert "copied" in capsys.readouterr().out
    assert main(["groups", "describe", stage.group, *here]) == 0
    assert "remaining 18" in capsys.readouterr().out
    for verb, offset in (("replay", 5), ("skip", 7)):
        assert main(["records", verb, stage.group, f"{stage.topic}:0@{offset}", *here, "--execute"]) == 2
        assert "another program copied this commit" in capsys.readouterr().err


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_without_a_map_is_told_from_its_copy_where_a_repeat_would_break_the_promise(
    stage: Stage, mode: Any
) -> None:
    """A mirror's offset may be an earlier one."""
    ran(stage, delivery=mode)
    commit(stage, 15, committed(stage).metadata)
    if mode == "at_least_once":
        assert ran(stage, delivery=mode) == list(range(15, 20))
    else:
        with pytest.raises(kl.PeerError, match="the commit of offset 15 was copied by another program"):
            ran(stage, delivery=mode)


# --- edits ---


def test_an_edited_commit_keeps_its_leader_epoch(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit(stage, 2, encode(OffsetMap(2, [2], 9), is_marked=True), epoch_of(stage))
    for verb, offset in (("replay", 5), ("skip", 12)):
        name = f"{stage.topic}:0@{offset}"
        assert main(["records", verb, stage.group, name, "--bootstrap", stage.servers, "--execute"]) == 0
        found = committed(stage)
        assert (found.leader_epoch, is_marked(found.metadata)) == (epoch_of(stage), True)
    capsys.readouterr()
    assert ran(stage) == [2, 5, 10, 11, *range(13, 20)]


def test_a_running_members_edit_keeps_it_too(stage: Stage) -> None:
    commit(stage, 2, encode(OffsetMap(2, [2], 9), is_marked=True), epoch_of(stage))
    offsets: list[int] = []
    told: list[Any] = []
    member = ThreadMember(stage.pipeline(lambda record: offsets.append(record.offset)), "replays")
    try:
        until(lambda: committed(stage).offset == 20, "all is committed")
        member.consumer.replay(Replay(((stage.topic, 0, 5),)), told.append)
        until(lambda: offsets.count(5) == 1, lambda: f"the record runs again: {told}")
        until(lambda: has_all(stage), "that is committed")
    finally:
        member.consumer.stop()
        member.end()


# --- logs that are others ---

NOT_ASKED = {"sasl.oauthbearer.scope": "unknown to keylane's own client"}
"""A login that only librdkafka has: brokers cannot be asked, and the records tell."""
BOTH_WAYS = pytest.mark.parametrize("login", [{}, NOT_ASKED], ids=["asked", "read"])


@pytest.mark.parametrize(("login", "is_later"), [({}, False), ({}, True), (NOT_ASKED, False)])
def test_a_log_that_never_had_the_epoch_is_refused_and_the_command_that_is_named_goes_on(
    stage: Stage, login: dict[str, str], is_later: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch = epoch_of(stage) + 1 if is_later else ANOTHER_EPOCH
    commit(stage, 12, encode(OffsetMap(12, [12], 16), is_marked=True), epoch)
    with pytest.raises(kl.PeerError, match=r"committed 12 for .*-0, and its log was cut at 0") as caught:
        ran(stage, kafka=stage.kafka | login)
    command = str(caught.value).split("`")[1].split()
    assert command[:3] == ["keylane", "groups", "reset"]
    assert main([*command[1:], "--bootstrap", stage.servers]) == 0
    assert committed(stage) == CommittedOffset(0, "")
    assert ran(stage) == list(range(20))
    capsys.readouterr()


@BOTH_WAYS
@pytest.mark.parametrize(("option", "expected"), [("earliest", list(range(20))), ("latest", [])])
def test_or_the_option_says_where_to_go_on(
    stage: Stage, login: dict[str, str], option: Any, expected: list[int]
) -> None:
    commit(stage, 12, "", ANOTHER_EPOCH)
    assert ran(stage, kafka=stage.kafka | login, beyond_log_end=option) == expected


@BOTH_WAYS
def test_what_no_consumer_sees_is_no_cut(stage: Stage, login: dict[str, str]) -> None:
    """Behind an aborted transaction an offset is committed that lies beyond the epoch of all that was read."""
    stage.admin.delete_records({(stage.topic, 0): 20})
    producer = Producer({"bootstrap.servers": stage.servers, "transactional.id": stage.group})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(stage.topic, b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    until(lambda: stage.ends() == {(stage.topic, 0): 22}, "the transaction's end is in the log")
    commit(stage, 22, "", ANOTHER_EPOCH)
    assert ran(stage, kafka=stage.kafka | login) == []
    stage.fill([(b"new", 0)])
    assert ran(stage, kafka=stage.kafka | login) == [22]


def test_brokers_that_cannot_be_asked_stop_nobody(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """What was cut of a map is seen as it is read."""
    commit(stage, 2, encode(OffsetMap(2, [2], 9), is_marked=True), epoch_of(stage))
    with caplog.at_level(logging.INFO, "keylane"):
        assert ran(stage, kafka=stage.kafka | NOT_ASKED) == [2, *range(10, 20)]
    assert "whether the logs of 1 partitions were cut is seen as they are read" in caplog.text


def test_then_the_map_is_cut_at_the_first_record_of_a_later_leader(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    commit(stage, 0, encode(OffsetMap(0, [0], 9), is_marked=True), ANOTHER_EPOCH)
    assert ran(stage, kafka=stage.kafka | NOT_ASKED) == list(range(20))
    assert "its log was cut at or below 0" in caplog.text
    assert has_all(stage)
