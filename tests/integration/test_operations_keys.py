"""Rules by key, and single records, on real members, in processes that are killed meanwhile."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import keylane as kl
from keylane.cli import main
from keylane.operations.operator import Operator
from keylane.pipeline import topics_of_operations
from kit import operated
from kit.operated import OPERATIONS, PARTITIONS, Members, are_heard, fill, operate, refused
from kit.processes import Stopwatch
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

    from keylane.testing import EmbeddedBroker

broker, stage, token = operated.broker, operated.stage, operated.token
pytestmark = pytest.mark.usefixtures("token")


@pytest.mark.full
def test_a_held_key_stays_held_while_members_are_killed_and_all_others_go_on(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        first = members.start()
        members.start()
        until(lambda: are_heard(capsys, stage, 2), "both members report")
        would = operate(capsys, stage, "hold-key", "--key", "3")
        assert (would["executed"], len(would["members"])) == (False, 2)
        watch = Stopwatch()
        held = operate(capsys, stage, "hold-key", "--key", "3", "--execute")
        assert [one["state"] for one in held["members"]] == ["done", "done"]
        assert watch.took_s() < 5.0
        fill(stage, 210)
        others = {source for source, key in stage.sources() if key != b"3"}
        assert len(others) == 180
        until(lambda: members.ledger.done_times().keys() == others, "all other keys are done")
        until(lambda: others == stage.covered(), "and committed: what is not would run again after a death")
        first.kill()
        until(lambda: members.has(1), "the killed member's session ends")
        members.start()
        until(lambda: members.has(2), "another member has joined")
        fill(stage, 21)
        others = {source for source, key in stage.sources() if key != b"3"}
        until(lambda: members.ledger.done_times().keys() == others, "others go on there, too")
        until(lambda: are_heard(capsys, stage, 2), "the killed member is silent")

        def waiting() -> dict[int, tuple[str, int]]:
            queues = operate(capsys, stage, "keys")["queues"]
            return {one["partition"]: (one["why"], one["behind"]) for one in queues}

        until(lambda: waiting() == dict.fromkeys(range(PARTITIONS), ("paused", 10)), "the first of each waits")
        (rule,) = operate(capsys, stage, "show")["members"][0]["holding"]["keys"]
        assert rule == {"where": "key=3", "do": "hold", "per_s": None}
        assert main(["operate", "show", stage.group, "--bootstrap", stage.servers]) == 0
        assert "holds: records with key=3: held" in capsys.readouterr().out
        released = operate(capsys, stage, "release-key", "--key", "3", "--execute")
        assert [one["state"] for one in released["members"]] == ["done", "done"]
        until(lambda: len(members.ledger.done_times()) == 231, "all is done")
        until(stage.all_is_committed, "and committed")
        assert set(members.ledger.done_times().values()) == {1}, "each record once"
        assert members.ledger.disorders("key", stage.sources()) == []
        log = operate(capsys, stage, "log")["commands"]
        assert [(one["do"], one["about"]) for one in log] == [("hold-key", "key=3"), ("release-key", "key=3")]


def test_rules_outlive_the_topic_that_has_them(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.operations.agent.KEEP_S", 0.2)
    ran: list[bytes | None] = []
    pipeline = stage.pipeline(lambda record: ran.append(record.key), operations=kl.Operations(**OPERATIONS))
    commands = topics_of_operations(stage.group)[0]
    members = [ThreadMember(pipeline, "first")]
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        operate(capsys, stage, "hold-key", "--key", "3", "--execute")
        stage.admin.delete_topics([commands])
        until(
            lambda: len(stage.read(commands)) == 1 if commands in stage.admin.topics() else False, "it is there again"
        )
        members[0].consumer.stop()
        members.pop().end()
        members.append(ThreadMember(pipeline, "second"))
        fill(stage, 21)
        others = [key for _, key in stage.sources() if key != b"3"]
        until(lambda: len(ran) == len(others), "all other keys are done")
        assert b"3" not in ran
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        operate(capsys, stage, "release-key", "--key", "3", "--execute")
        until(lambda: b"3" in ran, "commands are taken there")
    finally:
        for member in members:
            member.consumer.stop()
            member.end()


def test_a_topic_that_would_forget_a_rule_takes_none(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commands = topics_of_operations(stage.group)[0]
    stage.admin.create_topics({commands: 1}, config={"cleanup.policy": "delete"})
    member = ThreadMember(stage.pipeline(print, operations=kl.Operations(**OPERATIONS)), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        assert "cleanup.policy=delete: set compact" in refused(capsys, stage, "hold-key", "--key", "3", "--execute")
    finally:
        member.consumer.stop()
        member.end()


def test_a_skipped_key_never_runs_and_is_complete_and_so_it_is_after_a_death(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        first = members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        operate(capsys, stage, "skip-key", "--where", "key=3*", "--execute")
        fill(stage, 210)
        until(stage.all_is_committed, "all is committed")
        shown = operate(capsys, stage, "show")["members"]
        assert [one["snapshot"]["skipped"] for one in shown if not one["silent"]] == [30]
        first.kill()
        members.start()
        fill(stage, 21)
        until(stage.all_is_committed, "all is committed", 90)
        assert members.ledger.done_times().keys() == {source for source, key in stage.sources() if key != b"3"}
        assert set(members.ledger.done_times().values()) == {1}


def test_a_slow_key_is_slow_by_its_header_and_others_are_not(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    times: dict[tuple[int, bytes], float] = {}

    def handler(record: kl.Record) -> None:
        times[record.offset, record.key or b""] = time.monotonic()

    member = ThreadMember(stage.pipeline(handler, operations=kl.Operations(**OPERATIONS)), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        operate(capsys, stage, "limit-key", "--where", "header.tenant=acme", "--per-s", "10", "--execute")
        producer = Producer({"bootstrap.servers": stage.servers})
        began, watch = time.monotonic(), Stopwatch()
        for number in range(40):
            tenant = b"acme" if number % 2 else b"other"
            producer.produce(stage.topic, b"v", b"k%d" % number, 0, headers=[("tenant", tenant)])
        assert producer.flush(30) == 0
        until(lambda: sum(not offset % 2 for offset, _ in list(times)) == 20, "all others have run")
        assert watch.took_s() < 1.0
        until(lambda: len(times) == 40, "all have run")
    finally:
        member.consumer.stop()
        member.end()
    slow = [at for (offset, _), at in times.items() if offset % 2]
    assert max(slow) - began >= 1.8, "nineteen tenths of a second, but for the burst"


def test_what_cannot_be_ruled_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    member = ThreadMember(stage.pipeline(lambda _: None, operations=kl.Operations(**OPERATIONS)), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        assert "no rule holds for 'key=a'" in refused(capsys, stage, "release-key", "--key", "a", "--execute")
        assert "no rule holds for any key" in refused(capsys, stage, "release-key", "--all", "--execute")
        assert "name a key or a header" in refused(capsys, stage, "hold-key", "--where", "topic=t", "--execute")
        assert "records a second" in refused(capsys, stage, "limit-key", "--key", "a", "--per-s", "0", "--execute")
        assert operate(capsys, stage, "log")["commands"] == []
    finally:
        member.consumer.stop()
        member.end()


# --- single records ---


def dead(stage: Stage) -> str:
    topic = f"{stage.topic}.dead"
    stage.create(1, topic)
    return topic


def name(stage: Stage, source: tuple[str, int, int]) -> str:
    return f"{stage.topic}:{source[1]}@{source[2]}"


def test_a_record_that_fails_is_skipped_and_its_key_goes_on_while_the_member_runs(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def handler(record: kl.Record) -> None:
        if record.offset == 0:
            raise ValueError("poisoned")
        ran.append(record.offset)

    stage.fill([(b"a", 0)] * 5)
    options = {
        "retries": kl.Retries(max_attempts=None, delay_ms=60_000, jitter=0),
        "operations": kl.Operations(**OPERATIONS),
        "commit": kl.Commit(interval_ms=100),
    }
    member = ThreadMember(stage.pipeline(handler, **options), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(lambda: len(operate(capsys, stage, "keys")["queues"]) == 1, "the key waits")
        first = f"{stage.topic}:0@0"
        behind = operate(capsys, stage, "skip-record", f"{stage.topic}:0@1", "--execute", code=1)
        assert "waits behind an earlier record" in behind["members"][0]["text"]
        done = operate(capsys, stage, "skip-record", first, "--execute")
        assert [(one["record"], bool(one["member"])) for one in done["records"]] == [(first, True)]
        assert (stage.topic, 0, 0) in stage.covered(), "a commit has it"
        until(lambda: ran == [1, 2, 3, 4], "its key goes on")
        again = operate(capsys, stage, "skip-record", first, "--execute", code=1)
        assert (again["records"][0]["member"], again["members"][0]["state"]) == (None, "failed")
        assert "it is complete already" in again["members"][0]["text"]
    finally:
        member.consumer.stop("now")
        member.end()


@pytest.mark.full
def test_a_held_record_is_parked_and_never_runs_after_a_death_and_comes_back_by_a_redrive(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = dead(stage)
    with Members(stage, tmp_path) as members:
        first = members.start()
        members.start()
        until(lambda: are_heard(capsys, stage, 2), "both report")
        operate(capsys, stage, "hold-key", "--key", "3", "--execute")
        fill(stage, 210)
        until(lambda: len(members.ledger.done_times()) == 180, "all other keys are done")
        heads = [
            min(source for source, key in stage.sources() if key == b"3" and source[1] == one)
            for one in range(PARTITIONS)
        ]
        names = [name(stage, one) for one in heads]
        parked = operate(capsys, stage, "park-record", *names, "--dlq", topic, "--reason", "ticket", "--execute")
        assert [one["record"] for one in parked["records"] if one["member"]] == names
        assert len({one["member"] for one in parked["records"]}) == 2, "each by the member that has it"
        letters = stage.read(topic)
        assert sorted(dict(one.headers)["keylane.partition"] or b"" for one in letters) == [b"0", b"1", b"2"]
        until(lambda: len(stage.covered()) == 183, "what is not committed would run again after a death")
        first.kill()
        until(lambda: members.has(1), "the killed member's session ends")
        members.start()
        until(lambda: are_heard(capsys, stage, 2), "the killed member is silent", 90)
        operate(capsys, stage, "release-key", "--all", "--execute")
        until(stage.all_is_committed, "all is done", 90)
        assert members.ledger.done_times().keys() == {source for source, _ in stage.sources()} - set(heads)
        assert set(members.ledger.done_times().values()) == {1}
        assert main(["dlq", "redrive", topic, "--bootstrap", stage.servers, "--execute"]) == 0
        until(stage.all_is_committed, "they came back")
        assert len(members.ledger.done_times()) == 210


def test_a_record_that_runs_is_not_skipped_and_nobody_says_that_it_was(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(stage, 30)
    with Members(stage, tmp_path, slow=[9], hold_s=60) as members:
        members.start()
        until(lambda: members.ledger.running() == PARTITIONS, "records run")
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        found = operate(capsys, stage, "skip-record", f"{stage.topic}:0@9", "--execute", code=1)
        assert found["records"] == [{"record": f"{stage.topic}:0@9", "member": None}]
        assert "it runs" in found["members"][0]["text"]


@pytest.mark.full
def test_a_member_that_is_killed_before_its_commit_is_said_to_be_and_the_record_runs_once(
    broker: EmbeddedBroker, stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        member = members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        operate(capsys, stage, "hold-key", "--key", "3", "--execute")
        fill(stage, 70)
        until(lambda: len(members.ledger.done_times()) == 60, "all other keys are done")
        until(lambda: len(stage.covered()) == 60, "and committed")
        head = min(source for source, key in stage.sources() if key == b"3")
        fault = broker.fault("OffsetCommit", times=None, error="COORDINATOR_LOAD_IN_PROGRESS")

        def kill() -> None:
            def accepted() -> bool:
                with Operator(stage.kafka, stage.group, None, stage.admin) as operator:
                    answers = [one for by in operator.members.results.values() for one in by.values()]
                return ("skip-record", "accepted") in [(one.verb, one.state) for one in answers]

            until(accepted, "it has accepted the command")
            member.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        found = operate(capsys, stage, "skip-record", name(stage, head), "--execute", code=1)
        killer.join()
        assert [one["state"] for one in found["members"]] == ["silent"]
        assert "did not say how that ended" in found["members"][0]["text"]
        fault.remove()
        members.ledger.died(member.name)
        members.start()
        until(lambda: are_heard(capsys, stage, 1), "the next one reports", 90)
        operate(capsys, stage, "release-key", "--all", "--execute")
        until(stage.all_is_committed, "all is done", 90)
        assert members.ledger.done_times()[head] == 1, "nobody else has skipped it"


def test_records_that_cannot_be_named_are_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    member = ThreadMember(stage.pipeline(lambda _: None, operations=kl.Operations(**OPERATIONS)), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        assert "TOPIC:PARTITION@OFFSET" in refused(capsys, stage, "skip-record", "here", "--execute")
        assert "partitions 0 to 2" in refused(capsys, stage, "skip-record", f"{stage.topic}:3@1", "--execute")
        assert "does not exist" in refused(
            capsys, stage, "park-record", f"{stage.topic}:0@1", "--dlq", "no-such-topic", "--execute"
        )
    finally:
        member.consumer.stop()
        member.end()
    assert "no member of the group" in refused(capsys, stage, "skip-record", f"{stage.topic}:0@1", "--execute")
