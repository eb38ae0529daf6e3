"""`keylane operate` on real members, in processes that are killed meanwhile: each command is done once, or is said not
to be; what holds, holds for members that start later."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import keylane as kl
from keylane.cli import main
from keylane.kafka.bulk import read_to_end
from keylane.operations import operator as operator_module
from keylane.operations.clock import now_ms
from keylane.operations.commands import mac_of
from keylane.operations.reports import key_of
from keylane.pipeline import topics_of_operations
from keylane.testing import EmbeddedBroker
from kit import operated
from kit.operated import OPERATIONS, PARTITIONS, TOKEN, Members, are_heard, fill, operate, refused
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

broker, stage, token = operated.broker, operated.stage, operated.token


@pytest.mark.full
@pytest.mark.usefixtures("token")
def test_a_paused_group_stays_paused_while_members_are_killed_and_others_start(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        first = members.start()
        members.start()
        until(lambda: are_heard(capsys, stage, 2), "both members report")
        would = operate(capsys, stage, "pause", "--topic", f"{stage.topic}:0,2")
        assert (would["executed"], len(would["members"])) == (False, 2)
        paused = operate(capsys, stage, "pause", "--topic", f"{stage.topic}:0,2", "--execute")
        assert [one["state"] for one in paused["members"]] == ["done", "done"]
        fill(stage, 300)
        until(lambda: members.done() == {1: 100}, "the partition that is not paused is done")
        until(lambda: len(stage.covered()) == 100, "and committed: what is not would run again after a death")
        first.kill()
        until(lambda: members.has(1), "the killed member's session ends")
        members.start()
        until(lambda: members.has(2), "another member has joined")
        fill(stage, 30)
        until(lambda: members.done() == {1: 110}, "it goes on")
        until(lambda: are_heard(capsys, stage, 2), "the killed member is silent")
        shown = operate(capsys, stage, "show")
        parts = [one for member in shown["members"] if not member["silent"] for one in member["snapshot"]["partitions"]]
        assert {one["partition"]: one["on_hold"] for one in parts} == {0: True, 1: False, 2: True}
        resumed = operate(capsys, stage, "resume", "--execute")
        assert [one["state"] for one in resumed["members"]] == ["done", "done"]
        until(lambda: members.done() == {0: 110, 1: 110, 2: 110}, "all is done")
        assert set(members.ledger.done_times().values()) == {1}, "each record once"
        log = operate(capsys, stage, "log")["commands"]
        assert [(one["do"], one["about"]) for one in log] == [
            ("pause", f"{stage.topic}-0, {stage.topic}-2"),
            ("resume", "all"),
        ]


@pytest.mark.usefixtures("token")
def test_a_seek_is_done_once_by_the_member_that_has_the_partition(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(stage, 90)
    with Members(stage, tmp_path) as members:
        members.start()
        second = members.start()
        until(lambda: members.done() == {0: 30, 1: 30, 2: 30}, "all is done")
        until(lambda: are_heard(capsys, stage, 2), "both members report")
        found = operate(capsys, stage, "seek", "--topic", f"{stage.topic}:0-1", "--to-offset", "10", "--execute")
        assert [one["state"] for one in found["members"]] == ["done", "done"]
        assert all(one["member"] for one in found["partitions"])
        until(lambda: members.done() == {0: 50, 1: 50, 2: 30}, "what is behind the offset has run once more")
        until(stage.all_is_committed, "and is committed: it would run again after a death")
        second.kill()
        until(lambda: members.has(1), "the killed member's session ends")
        members.start()
        until(lambda: members.has(2), "another member has joined")
        fill(stage, 3)
        until(lambda: members.done() == {0: 51, 1: 51, 2: 31}, "nobody seeks once more")


@pytest.mark.full
@pytest.mark.usefixtures("token")
def test_a_member_that_is_killed_in_the_middle_is_said_to_be_and_nobody_else_does_it(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seek waits for the record in the handler, and that takes longer than the member lives."""
    fill(stage, 30)
    with Members(stage, tmp_path, slow=[9], hold_s=60) as members:
        member = members.start()
        until(lambda: members.done() == {0: 9, 1: 9, 2: 9} or members.ledger.running() == 3, "records are held")
        until(lambda: are_heard(capsys, stage, 1), "it reports")

        def kill() -> None:
            def accepted() -> bool:
                log = operator_module.Operator(stage.kafka, stage.group, None, stage.admin)
                with log:
                    answers = [one for by in log.members.results.values() for one in by.values()]
                return [one.state for one in answers] == ["accepted"]

            until(accepted, "it has accepted the command")
            member.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        found = operate(capsys, stage, "seek", "--topic", stage.topic, "--to-offset", "0", "--execute", code=1)
        killer.join()
        assert [one["state"] for one in found["members"]] == ["silent"]
        assert "did not say how that ended" in found["members"][0]["text"]
        assert {one["member"] for one in found["partitions"]} == {None}
        members.ledger.died(member.name)
        before = members.done()
        members.start(hold_s=0)
        until(lambda: sum(members.done().values()) - sum(before.values()) >= 3, "the next one goes on")
        until(lambda: {source for source, _ in stage.sources()} == members.ledger.done_times().keys(), "to the end")
        until(stage.all_is_committed, "and commits")
        assert set(members.ledger.done_times().values()) == {1}, "nobody else has sought"


@pytest.mark.usefixtures("token")
def test_a_member_that_hangs_is_said_not_to_have_answered(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What holds is done by it when it wakes, all the same."""
    with Members(stage, tmp_path) as members:
        member = members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        member.freeze()
        found = operate(capsys, stage, "pause", "--execute", "--wait-ms", "500", code=1)
        assert [one["state"] for one in found["members"]] == ["no answer"]
        member.wake()

        def states() -> list[str]:
            return [one["state"] for by in operate(capsys, stage, "log")["commands"] for one in by["members"]]

        until(lambda: states() == ["done"], "it has paused")


@pytest.mark.usefixtures("token")
def test_drain_returns_when_nothing_is_in_handlers_and_what_is_complete_is_committed(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path, work_s=0.02) as members:
        members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        fill(stage, 3_000)
        until(lambda: sum(members.done().values()) > 100, "it works")
        drained = operate(capsys, stage, "drain", "--execute")
        assert [one["state"] for one in drained["members"]] == ["done"]
        assert members.ledger.running() == 0
        done = set(members.ledger.done_times())
        assert 100 < len(done) < 3_000
        assert stage.covered() == done
        operate(capsys, stage, "resume", "--execute")
        until(lambda: sum(members.done().values()) == 3_000, "all is done")


@pytest.mark.usefixtures("token")
def test_a_drain_that_takes_too_long_says_so_and_the_group_stays_paused(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(stage, 30)
    with Members(stage, tmp_path, slow=[9], hold_s=60) as members:
        members.start()
        until(lambda: members.ledger.running() == PARTITIONS, "records are held")
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        found = operate(capsys, stage, "drain", "--execute", "--wait-ms", "1500", code=1)
        assert [(one["state"], one["text"][:12]) for one in found["members"]] == [("busy", "it is paused")]


@pytest.mark.full
@pytest.mark.usefixtures("token")
def test_what_is_adjusted_holds_for_a_member_that_starts_later(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        first = members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        given = ("--max-concurrency", "2", "--records-per-s", "500")
        assert operate(capsys, stage, "adjust", *given, "--execute")["members"][0]["state"] == "done"

        def concurrency() -> list[int]:
            shown = operate(capsys, stage, "show")["members"]
            return [one["snapshot"]["concurrency"] for one in shown if not one["silent"]]

        until(lambda: concurrency() == [2], "it runs two at once")
        first.kill()
        members.start()
        until(lambda: concurrency() == [2], "so does the next one", 90)
        until(lambda: are_heard(capsys, stage, 1), "it has joined")
        (shown,) = [one for one in operate(capsys, stage, "show")["members"] if not one["silent"]]
        assert (shown["holding"]["max_concurrency"], shown["holding"]["rates"]) == (2, {"records_per_s": 500.0})
        assert operate(capsys, stage, "adjust", "--as-in-pipeline", "--execute")["members"][0]["state"] == "done"
        until(lambda: concurrency() == [16], "as its pipeline says")


def test_without_the_token_nobody_is_told_anything(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Members(stage, tmp_path) as members:
        members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        monkeypatch.delenv("KEYLANE_OPERATIONS_TOKEN", raising=False)
        assert "needs the members' token" in refused(capsys, stage, "pause", "--execute")
        (tmp_path / "token").write_text("another token of somebody\n")
        found = operate(capsys, stage, "pause", "--execute", "--token-file", str(tmp_path / "token"), code=1)
        assert [(one["state"], one["text"]) for one in found["members"]] == [
            ("refused", "it was not made with the token that the members of this group have, for this cluster")
        ]
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        operate(capsys, stage, "pause", "--execute", "--token-file", str(tmp_path / "token"))
        operate(capsys, stage, "resume", "--execute", "--token-file", str(tmp_path / "token"))
        commands, reports = topics_of_operations(stage.group)
        pauses = [one for one in stage.read(commands) if b'"pause"' in (one.raw_value or b"")]
        (paused, *_) = [one for one in pauses if is_signed(stage, one)]
        producer = Producer({"bootstrap.servers": stage.servers})  # somebody who may write there, and has no token
        producer.produce(commands, paused.raw_value, paused.raw_key, 0, headers=list(paused.headers))
        assert producer.flush(30) == 0
        until(
            lambda: any(
                one["state"] == "refused" and one["text"].startswith("another command")
                for command in operate(capsys, stage, "log")["commands"]
                for one in command["members"]
            ),
            "it is refused",
        )
        fill(stage, 30)
        until(lambda: sum(members.done().values()) == 30, "it is not paused")
        stored = [
            part
            for topic in (commands, reports)
            for one in stage.read(topic)
            for part in (one.raw_key, one.raw_value, *(value for _, value in one.headers))
            if part
        ]
        assert not any(TOKEN.encode() in part for part in stored)


def is_signed(stage: Stage, record: kl.Record) -> bool:
    return dict(record.headers)["keylane.mac"] == mac_of(TOKEN, stage.admin.cluster_id(), record.raw_value or b"")


@pytest.mark.usefixtures("token")
def test_members_without_a_token_only_report(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Members(stage, tmp_path, operations={"report_interval_ms": 200}) as members:
        members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        assert "only report" in refused(capsys, stage, "pause", "--execute")
        assert topics_of_operations(stage.group)[0] not in stage.admin.topics()


@pytest.mark.usefixtures("token")
def test_a_seek_that_comes_too_late_is_refused(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage, 3)
    seen: list[int] = []
    member = ThreadMember(
        stage.pipeline(lambda record: seen.append(record.offset), operations=kl.Operations(**OPERATIONS)), "m"
    )
    try:
        until(lambda: are_heard(capsys, stage, 1) and len(seen) == 3, "it reports")
        monkeypatch.setattr(operator_module, "now_ms", lambda: now_ms() - 61_000)
        found = operate(capsys, stage, "seek", "--topic", stage.topic, "--to-offset", "0", "--execute", code=1)
        assert [one["state"] for one in found["members"]] == ["refused"]
        assert "after it was sent" in found["members"][0]["text"]
    finally:
        member.consumer.stop()
        member.end()
    assert len(seen) == 3


def test_a_member_that_ends_says_so(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    fill(stage, 3)
    stage.run(lambda _: None, operations=kl.Operations())
    assert operate(capsys, stage, "show")["members"] == []
    _, reports = topics_of_operations(stage.group)
    last = [record for batch in read_to_end(stage.servers, reports) for record in batch][-1]
    assert last.raw_value is None
    assert (last.raw_key or b"").startswith(key_of(""))


@pytest.mark.parametrize("api", ["CreateTopics", "Produce"])
def test_without_rights_it_says_so_once_and_goes_on_without(
    api: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with EmbeddedBroker() as broker:
        stage = Stage(broker.bootstrap_servers, "rights")
        stage.create(PARTITIONS)
        fill(stage, 300)
        seen: list[int] = []

        def handler(record: kl.Record) -> None:
            time.sleep(0.01)
            seen.append(record.offset)

        broker.fault(api, times=None, error="TOPIC_AUTHORIZATION_FAILED")
        operations = kl.Operations(token=TOKEN, report_interval_ms=20)
        with caplog.at_level(logging.WARNING, "keylane.operations"):
            stage.run(handler, operations=operations)
        assert len(seen) == 300
        said = [record.getMessage() for record in caplog.records if record.name == "keylane.operations"]
        assert [("TOPIC_AUTHORIZATION_FAILED" in one, "goes on without" in one) for one in said] == [(True, True)] * (
            2 if api == "CreateTopics" else 1
        )


def test_without_operations_there_is_none_of_it(stage: Stage) -> None:
    program = (
        "import sys, keylane as kl\n"
        f"pipeline = kl.Pipeline(kafka={stage.kafka!r}, topics=[{stage.topic!r}], handler=lambda _: None,"
        " offset_reset='earliest')\n"
        "with kl.ParallelConsumer(pipeline, ending_offsets='latest') as consumer: consumer.run()\n"
        "assert not [name for name in sys.modules if name.startswith('keylane.operations')]\n"
    )
    fill(stage, 3)
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env=dict(os.environ),
    )
    assert not set(topics_of_operations(stage.group)) & stage.admin.topics().keys()


@pytest.mark.parametrize("shows", [True, False])
def test_keys_that_wait_are_shown_with_the_reason(
    stage: Stage, capsys: pytest.CaptureFixture[str], shows: bool
) -> None:
    def handler(record: kl.Record) -> None:
        if record.key == b"poisoned":
            raise ValueError("bad")

    stage.fill((key, 0) for key in [b"poisoned"] * 5 + [b"well"] * 5)
    operations = kl.Operations(report_interval_ms=100, show_keys=shows)
    options = {"retries": kl.Retries(max_attempts=None, delay_ms=60_000, jitter=0), "operations": operations}
    member = ThreadMember(stage.pipeline(handler, **options), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(lambda: len(operate(capsys, stage, "keys")["queues"]) == 1, "one key waits")
        (queue,) = operate(capsys, stage, "keys")["queues"]
        found = [queue[name] for name in ("topic", "partition", "offset", "why", "attempt", "behind", "key", "lane")]
        assert found == [stage.topic, 0, 0, "retry", 2, 4, "poisoned" if shows else None, None]
        assert 0 < queue["due_in_ms"] <= 60_000
        assert main(["operate", "keys", stage.group, "--bootstrap", stage.servers]) == 0
        assert f"{stage.topic}-0@0" in capsys.readouterr().out
        assert main(["operate", "show", stage.group, "--bootstrap", stage.servers]) == 0
        assert "1 records wait for another attempt" in capsys.readouterr().out
    finally:
        member.consumer.stop("now")
        member.end()


def test_while_a_service_is_down_that_is_what_keys_and_the_group_are_said_to_wait_for(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def handler(_: kl.Record) -> None:
        raise ConnectionError

    stage.fill((b"%d" % n, n % PARTITIONS) for n in [*range(30), *range(30)])
    breaker = kl.Breaker(failures=1, errors=(ConnectionError,), probe_interval_ms=600_000)
    operations = kl.Operations(report_interval_ms=100)
    member = ThreadMember(stage.pipeline(handler, breaker=breaker, operations=operations, max_concurrency=4), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(lambda: operate(capsys, stage, "keys")["breakers"] != [], "the service is down")
        until(lambda: {one["why"] for one in operate(capsys, stage, "keys")["queues"]} == {"service"}, "none else")
        says = r"^the service has been down for \d+ s, next probe in \d+\.\d s$"
        for command in (["operate", "keys"], ["groups", "describe"]):
            capsys.readouterr()
            assert main([*command, stage.group, "--bootstrap", stage.servers]) == 0
            assert re.search(says, capsys.readouterr().out, re.MULTILINE), command
    finally:
        member.consumer.stop("now")
        member.end()


@pytest.mark.usefixtures("token")
def test_a_member_that_only_reports_is_named_among_those_that_obey(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        members.start()
        members.start(operations={"report_interval_ms": 200})
        until(lambda: are_heard(capsys, stage, 2), "both report")
        found = operate(capsys, stage, "pause", "--execute", code=1)
        assert sorted(one["state"] for one in found["members"]) == ["done", "refused"]
        assert "it takes no commands" in next(one["text"] for one in found["members"] if one["state"] == "refused")


@pytest.mark.usefixtures("token")
def test_run_with_operate_reports_and_takes_the_token_from_the_environment(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(stage, 3)
    (tmp_path / "some.py").write_text(
        "import keylane as kl\n"
        f"some = kl.Pipeline(kafka={stage.kafka!r}, topics=[{stage.topic!r}], handler=lambda _: None,\n"
        "    offset_reset='earliest')\n"
    )
    there = set(topics_of_operations(stage.group))
    assert main(["run", str(tmp_path / "some.py"), "--available-now"]) == 0
    assert not there & stage.admin.topics().keys()
    assert main(["run", str(tmp_path / "some.py"), "--available-now", "--operate"]) == 0
    assert there <= stage.admin.topics().keys(), "that of the commands, too: there is a token"
