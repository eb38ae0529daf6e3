"""`keylane operate replay-record` on real members: which record runs again, when, and how often, in processes that are
killed meanwhile."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.cli import main
from keylane.desk.commands import Order, send
from keylane.errors import PeerError
from keylane.kafka.redriving import Redriving
from keylane.operations.commands import replaying
from keylane.operations.operator import Operator
from kit import operated
from kit.operated import OPERATIONS, PARTITIONS, TOKEN, Members, are_heard, fill, operate, refused
from kit.redriver import redrive, stop
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

    from keylane.testing import EmbeddedBroker
    from kit.ledger import Source

broker, stage, token = operated.broker, operated.stage, operated.token
pytestmark = pytest.mark.usefixtures("token")


def name(source: Source) -> str:
    topic, partition, offset = source
    return f"{topic}:{partition}@{offset}"


def test_records_run_again_once_each_and_no_other_and_in_no_other_group(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[int] = []
    other = Stage(stage.servers, "other", group=f"{stage.group}-other")
    beside = ThreadMember(other.pipeline(lambda one: others.append(one.offset), topics=[stage.topic]), "beside")
    try:
        with Members(stage, tmp_path) as members:
            members.start()
            members.start()
            until(lambda: are_heard(capsys, stage, 2), "both report")
            fill(stage, 210)
            until(stage.all_is_committed, "all is done")
            chosen = [(stage.topic, 0, 3), (stage.topic, 0, 40), (stage.topic, 2, 0)]
            would = operate(capsys, stage, "replay-record", *map(name, chosen))
            assert (would["executed"], len(would["members"])) == (False, 2)
            done = operate(capsys, stage, "replay-record", *map(name, chosen), "--execute")
            assert [one["record"] for one in done["records"] if one["member"]] == list(map(name, chosen))
            until(lambda: sum(members.ledger.done_times().values()) == 213, "they run")
            fill(stage, 21)
            until(stage.all_is_committed, "the members go on")
            twice = {source for source, times in members.ledger.done_times().items() if times == 2}
            assert twice == set(chosen)
            assert sum(members.ledger.done_times().values()) == 234
            (told,) = operate(capsys, stage, "log")["commands"]
            assert (told["do"], told["about"]) == ("replay-record", ", ".join(map(name, chosen)))
        until(lambda: len(others) == 231, "the other group reads all")
    finally:
        beside.consumer.stop()
        beside.end()
    assert len(others) == 231, "and none of it twice"


def test_a_record_runs_again_before_later_ones_of_its_key_that_wait_and_never_beside_one(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []
    fails = threading.Event()
    fails.set()

    def handler(record: kl.Record) -> None:
        if record.offset == 4 and fails.is_set():
            raise ValueError("not yet")
        ran.append(record.offset)

    stage.fill([(b"a", 0)] * 6)
    options = {
        "retries": kl.Retries(max_attempts=None, delay_ms=60_000, jitter=0),
        "operations": kl.Operations(**OPERATIONS),
        "commit": kl.Commit(interval_ms=100),
    }
    member = ThreadMember(stage.pipeline(handler, **options), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(lambda: len(operate(capsys, stage, "keys")["queues"]) == 1, "the key waits")
        assert ran == [0, 1, 2, 3]
        fails.clear()
        waits = operate(capsys, stage, "replay-record", f"{stage.topic}:0@4", "--execute", code=1)
        assert "it is not complete: it runs without a replay" in waits["members"][0]["text"]
        until(lambda: ran == [0, 1, 2, 3, 4, 5], "what was put off begins anew with its partition")
        until(stage.all_is_committed, "and is committed")
        fails.set()
        both = [f"{stage.topic}:0@{one}" for one in (4, 1)]
        operate(capsys, stage, "replay-record", *both, "--execute")
        until(lambda: ran[6:] == [1], "the earlier one runs, and then the later one fails")
        operate(capsys, stage, "replay-record", f"{stage.topic}:0@2", "--execute")
        until(lambda: ran[6:] == [1, 2], "before the one that waits")
        fails.clear()
        operate(capsys, stage, "replay-record", f"{stage.topic}:0@5", "--execute")
        until(lambda: ran[6:] == [1, 2, 4, 5], "and that one behind it")
        until(stage.all_is_committed, "all is complete again")
    finally:
        member.consumer.stop("now")
        member.end()


def test_what_cannot_run_again_is_refused_and_the_member_says_why(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.fill([(b"a", 0)] * 5)
    member = ThreadMember(stage.pipeline(lambda _: None, operations=kl.Operations(**OPERATIONS)), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(stage.all_is_committed, "all is done")
        unwritten = refused(capsys, stage, "replay-record", f"{stage.topic}:0@5", "--execute")
        assert "the log ends before it" in unwritten
        stage.admin.delete_records({(stage.topic, 0): 2})
        deleted = refused(capsys, stage, "replay-record", f"{stage.topic}:0@1", "--execute")
        assert "produce it again" in deleted
        assert main(["records", "replay", stage.group, f"{stage.topic}:0@3", "--bootstrap", stage.servers]) == 2
        assert "`keylane operate` tells them" in capsys.readouterr().err
    finally:
        member.consumer.stop()
        member.end()
    alone = refused(capsys, stage, "replay-record", f"{stage.topic}:0@3", "--execute")
    assert "`keylane records skip|park|replay` needs none" in alone


class Burying:
    """A member that fails for some records, and buries them."""

    def __init__(self, stage: Stage, *bad: tuple[int, int], **more: Any) -> None:
        self.dead = f"{stage.topic}.dead"
        self.bad = set(bad)
        self.ran: Counter[tuple[int, int]] = Counter()
        stage.admin.create_topics({self.dead: 1})
        options = {
            "operations": kl.Operations(**OPERATIONS),
            "retries": kl.Retries(max_attempts=1),
            "on_exhausted": kl.DeadLetter(self.dead),
            "commit": kl.Commit(interval_ms=100),
        }
        self.member = ThreadMember(stage.pipeline(self.handle, **options | more), "m")

    def handle(self, record: kl.Record) -> None:
        self.ran[record.partition, record.offset] += 1
        if (record.partition, record.offset) in self.bad:
            raise ValueError("bad")

    def __enter__(self) -> Burying:
        return self

    def __exit__(self, *_: object) -> None:
        self.member.consumer.stop()
        self.member.end()


def redriven(capsys: pytest.CaptureFixture[str], stage: Stage, dead: str, *more: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    found = main(["dlq", "redrive", dead, "--in-group", stage.group, "--bootstrap", stage.servers, "--json", *more])
    said = capsys.readouterr()
    assert found == code, said
    return json.loads(said.out) if said.out else {}


def test_records_of_dead_letters_run_again_in_their_group_once_each_without_a_copy(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [(0, 1), (1, 2), (1, 3)]
    with Burying(stage, *bad) as member:
        fill(stage, 12)
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(stage.all_is_committed, "all is done, or dead")
        would = redriven(capsys, stage, member.dead)
        assert (would["executed"], would["to"], len(stage.read(member.dead))) == (False, {stage.topic: 3}, 3)
        member.bad.clear()

        def no_commit(*_: object) -> None:
            raise PeerError("it ends when the members have answered")

        with monkeypatch.context() as patch:
            patch.setattr(Redriving, "commit", no_commit)
            redriven(capsys, stage, member.dead, "--limit", "2", "--execute", code=1)
        until(lambda: member.ran.total() == 14, "two have run again")
        found = redriven(capsys, stage, member.dead, "--execute")
        assert (found["letters"], found["redriven_before"]) == (1, 2)
        until(lambda: member.ran == Counter(dict.fromkeys(member.ran, 1)) + Counter(bad), "each once more, no other")
        until(stage.all_is_committed, "all is done")
        found = redriven(capsys, stage, member.dead, "--execute")
        assert (found["letters"], found["redriven_before"], found["left"]) == (0, 3, {})
        assert len(stage.read(stage.topic)) == 12, "no copy"


def test_a_letter_whose_topic_was_made_anew_stays(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    with Burying(stage, (0, 1), (1, 3)) as member:
        fill(stage, 12)
        until(stage.all_is_committed, "all is done, or dead")
    stage.admin.delete_topics([stage.topic])
    stage.create(PARTITIONS)
    stage.fill([(b"new", 0)] * 3)
    member = Burying(stage)
    with member:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(stage.all_is_committed, "the new ones are done")
        found = redriven(capsys, stage, member.dead, "--execute", code=1)
        assert (found["letters"], found["redriven_before"]) == (0, 0)
        assert found["left"] == {"other record": 1, "not complete": 1}
        assert member.ran == Counter({(0, offset): 1 for offset in range(3)}), "no record of the new log runs again"


def test_a_record_that_dies_again_has_a_letter_that_goes_and_rounds_are_bounded(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with Burying(stage, (0, 1)) as member:
        fill(stage, 12)
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        for rounds in (1, 2):
            until(lambda: len(stage.read(member.dead)) == rounds, "it is dead")  # noqa: B023 - called at once
            until(stage.all_is_committed, "and committed")
            found = redriven(capsys, stage, member.dead, "--max-rounds", "2", "--execute")
            assert (found["letters"], found["redriven_before"]) == (1, rounds - 1)
        until(lambda: len(stage.read(member.dead)) == 3, "it is dead again")
        until(stage.all_is_committed, "and committed")
        found = redriven(capsys, stage, member.dead, "--max-rounds", "2", "--execute", code=1)
        assert (found["letters"], found["redriven_before"], found["left"]) == (0, 2, {"rounds": 1})
        member.bad.clear()
        operate(capsys, stage, "replay-record", f"{stage.topic}:0@1", "--execute")
        found = redriven(capsys, stage, member.dead, "--execute")
        assert (found["letters"], found["redriven_before"]) == (0, 3), "whoever asked for it"
        assert redriven(capsys, stage, member.dead, "--to", stage.topic, code=2) == {}


@pytest.mark.full
def test_a_redrive_in_the_group_that_is_killed_at_each_step_lets_each_run_again_once(
    stage: Stage, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    bad = [(partition, offset) for partition in range(PARTITIONS) for offset in (1, 2, 3)]
    with Burying(stage, *bad) as member:
        fill(stage, 15)
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(stage.all_is_committed, "all is done, or dead")
        member.bad.clear()
        more = ("--in-group", stage.group, "--token-file", str(tmp_path / "token"))
        try:
            codes = [redrive(stage.servers, member.dead, step, None, *more) for step in range(1, 8)]
            codes.append(redrive(stage.servers, member.dead, 0, None, *more))
        finally:
            stop()
        assert codes[0] == -signal.SIGKILL
        assert codes[-1] == 0
        assert redriven(capsys, stage, member.dead)["redriven_before"] == len(bad)
        until(lambda: member.ran == Counter(dict.fromkeys(member.ran, 1)) + Counter(bad), "each once more, no other")


def test_a_redrive_in_the_group_that_let_nothing_run_again_fails_and_says_why(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with Burying(stage, (0, 1), delivery="transactional") as member:
        fill(stage, 12)
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(stage.all_is_committed, "all is done, or dead")
        found = redriven(capsys, stage, member.dead, "--execute", code=1)
        assert (found["letters"], found["left"]) == (0, {"refused": 1})
        (refusal,) = found["refusals"]
        assert "stop the members, and `keylane records replay`" in refusal
        assert redriven(capsys, stage, member.dead)["letters"] == 1, "what it would do is no failure"


def test_with_transactions_nothing_is_replayed_while_members_run(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []
    stage.fill([(b"a", 0)] * 5)
    options = {"operations": kl.Operations(**OPERATIONS), "delivery": "transactional"}
    member = ThreadMember(stage.pipeline(lambda one: ran.append(one.offset), **options), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(stage.all_is_committed, "all is done")
        found = operate(capsys, stage, "replay-record", f"{stage.topic}:0@3", "--execute", code=1)
        assert [one["member"] for one in found["records"]] == [None]
        assert "stop the members, and `keylane records replay`" in found["members"][0]["text"]
        assert ran == [0, 1, 2, 3, 4]
    finally:
        member.consumer.stop()
        member.end()


@pytest.mark.full
def test_with_a_store_what_it_knows_does_not_run_again_and_what_it_has_purged_is_refused(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []
    fails = threading.Event()
    fails.set()

    def handler(record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("SELECT 1")
        if record.offset == 0 and fails.is_set():
            raise ValueError("not yet")
        ran.append(record.offset)

    file = tmp_path / "effects.db"
    stage.fill((b"k%d" % one, 0) for one in range(5))
    options: dict[str, Any] = {
        "delivery": kl.ExactlyOnce(str(file)),
        "retries": kl.Retries(max_attempts=None, delay_ms=60_000, jitter=0),
        "operations": kl.Operations(**OPERATIONS),
        "commit": kl.Commit(interval_ms=100),
    }
    member = ThreadMember(stage.pipeline(handler, **options), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        until(lambda: len(stage.covered()) == 4, "all but the first is done")
        operate(capsys, stage, "replay-record", f"{stage.topic}:0@3", "--execute")
        until(lambda: len(stage.covered()) == 4, "it is complete again")
        assert sorted(ran) == [1, 2, 3, 4], "the store knows it"
        with closing(sqlite3.connect(file)) as store, store:
            assert store.execute("DELETE FROM keylane_processed WHERE at = 4").rowcount == 1
        operate(capsys, stage, "replay-record", f"{stage.topic}:0@4", "--execute")
        until(lambda: sorted(ran) == [1, 2, 3, 4, 4], "what the store has forgotten runs again")
        fails.clear()
        operate(capsys, stage, "replay-record", f"{stage.topic}:0@2", "--execute")
        until(stage.all_is_committed, "all is done")
    finally:
        fails.clear()
        member.consumer.stop()
        member.end()  # which purges the store
    member = ThreadMember(stage.pipeline(handler, **options), "m")
    try:
        until(lambda: are_heard(capsys, stage, 1), "the next one reports", 90)
        found = operate(capsys, stage, "replay-record", f"{stage.topic}:0@3", "--execute", code=1)
        assert "is purged from the store" in found["members"][0]["text"]
        stage.fill([(b"a", 0)])
        until(lambda: ran[-1] == 5, "the member goes on")
    finally:
        member.consumer.stop()
        member.end()


def reports(stage: Stage, pid: int) -> bool:
    """Whether this process has told that it has all partitions."""
    with Operator(stage.kafka, stage.group, None, stage.admin) as operator:
        told = [one.report for one in operator.members.reports.values()]
    return any(one["pid"] == pid and len(one["snapshot"]["partitions"]) == PARTITIONS for one in told)


def accepted(stage: Stage) -> bool:
    with Operator(stage.kafka, stage.group, None, stage.admin) as operator:
        answers = [one for by in operator.members.results.values() for one in by.values()]
    return ("replay-record", "accepted") in [(one.verb, one.state) for one in answers]


@pytest.mark.full
def test_a_member_that_is_killed_before_its_commit_is_said_to_be_and_nobody_does_it(
    broker: EmbeddedBroker, stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Members(stage, tmp_path) as members:
        member = members.start()
        until(lambda: are_heard(capsys, stage, 1), "it reports")
        fill(stage, 70)
        until(stage.all_is_committed, "all is done")
        fault = broker.fault("OffsetCommit", times=None, error="COORDINATOR_LOAD_IN_PROGRESS")

        def kill() -> None:
            until(lambda: accepted(stage), "it has accepted the command")
            member.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        found = operate(capsys, stage, "replay-record", f"{stage.topic}:0@3", "--execute", code=1)
        killer.join()
        assert [(one["state"], one["text"]) for one in found["members"]] == [
            ("silent", "it began, and did not say how that ended: look at where the group stands")
        ]
        fault.remove()
        members.ledger.died(member.name)
        members.start()
        until(lambda: are_heard(capsys, stage, 1), "the next one reports", 90)
        fill(stage, 7)
        until(stage.all_is_committed, "all is done", 90)
        assert set(members.ledger.done_times().values()) == {1}, "nobody else has replayed it"


@pytest.mark.full
def test_what_is_said_to_be_done_runs_again_wherever_the_member_is_killed(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replays_are_killed(stage, tmp_path, capsys, 6)


@pytest.mark.soak
def test_what_is_said_to_be_done_runs_again_wherever_the_member_is_killed_many_times(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replays_are_killed(stage, tmp_path, capsys, 100)


def replays_are_killed(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str], kills: int) -> None:
    """One record each time, and a SIGKILL, each time a little later. What is said to be done runs at least once more,
    and nothing else does."""
    chosen = random.Random(7)
    said: dict[Source, bool] = {}

    def replay(source: Source) -> bool:
        order = Order(stage.group, "replay-record", replaying([source]), execute=True, wait_ms=5_000)
        report, _ = send(stage.kafka, stage.admin, TOKEN, order)
        return report["records"][0]["member"] is not None

    with Members(stage, tmp_path) as members:
        member = members.start()
        fill(stage, 21 * PARTITIONS + kills)
        until(stage.all_is_committed, "all is done")
        sources = sorted(source for source, _ in stage.sources())
        until(lambda: reports(stage, member.process.pid), "it reports")
        began = time.monotonic()
        assert replay(sources[0]), "nobody kills it"
        takes_s = time.monotonic() - began
        until(stage.all_is_committed, "it ran")
        for number, source in enumerate(chosen.sample(sources, kills)):
            until(lambda: reports(stage, member.process.pid), "it reports", 90)  # noqa: B023 - called at once
            before = members.ledger.done_times()
            killer = threading.Timer(1.8 * takes_s * (number + chosen.random()) / kills, member.kill)
            if number < kills - 1:
                killer.start()
            said[source] = replay(source)
            if number < kills - 1:
                killer.join()
            else:
                member.kill()  # when it is said to be done: on a busy machine each other one may be killed before
            members.ledger.died(member.name)
            member = members.start()
            until(stage.all_is_committed, "all is complete", 90)
            more = members.ledger.done_times() - before
            assert set(more) <= {source}, "no other record"
            assert more[source] >= said[source], f"{source} was said to be done"
            assert more[source] <= 2, "once, and once more where it was killed before the commit"
    assert any(said.values()), "some were done"
