"""`keylane records`, on the embedded broker and on Apache Kafka: one record runs again, or never, and no other one
changes."""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import keylane as kl
from keylane.cli import main, records_edit
from keylane.errors import HandlerError, PeerError
from keylane.kafka.admin import Admin, CommittedOffset
from keylane.kafka.replacing import replace
from keylane.offsets import OffsetMap, encode
from kit import outside_commits
from kit.either_broker import either_broker
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

T0 = 1_700_000_000_000
SETTINGS = {"log.cleaner.backoff.ms": "100"}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0"}
BY = f"{getpass.getuser()}@{socket.gethostname()}"
WRITTEN_BY_THE_JVM = "bAAGNgA="
"""The Parallel Consumer's map: of six offsets the first and the fourth are incomplete (BitSet v1)."""


@pytest.fixture(scope="module", params=["keylane", "apache"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker.bootstrap


@pytest.fixture
def has_conditions(request: pytest.FixtureRequest) -> bool:
    """Whether the broker has conditional commits."""
    found: bool = request.node.callspec.params["servers"] == "keylane"
    return found


@pytest.fixture
def stage(servers: str, request: pytest.FixtureRequest) -> Stage:
    """A topic with two partitions of ten records each, whose values count from 0, and a group of its own."""
    made = Stage(servers, "".join(one if one.isalnum() else "-" for one in request.node.name))
    made.create(2)
    made.fill((b"key-%d" % (number % 5), number % 2) for number in range(20))
    return made


class Runs:
    """Runs a pipeline to the end of its logs, and remembers what came."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lock = threading.Lock()
        self.seen: list[tuple[int, int]] = []

    def run(self) -> list[tuple[int, int]]:
        """Partition and offset of the records that ran, sorted."""
        self.seen = []
        self._stage.run(self._handle)
        return sorted(self.seen)

    def _handle(self, record: kl.Record) -> None:
        with self._lock:
            self.seen.append((record.partition, record.offset))


def commit(stage: Stage, offsets: Mapping[int, CommittedOffset]) -> None:
    """By partition."""
    wanted = [TopicPartition(stage.topic, number, one.offset, one.metadata) for number, one in offsets.items()]
    outside_commits.commit(stage.servers, stage.group, wanted)


def commit_map(stage: Stage, found: OffsetMap, partition: int = 0) -> None:
    commit(stage, {partition: CommittedOffset(found.base, encode(found))})


def named(stage: Stage, *places: tuple[int, int]) -> list[str]:
    return [f"{stage.topic}:{partition}@{offset}" for partition, offset in places]


def keylane(capsys: pytest.CaptureFixture[str], stage: Stage, verb: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command on the stage's group, in this process."""
    code = main(["records", verb, stage.group, *arguments, "--bootstrap-server", stage.servers])
    said = capsys.readouterr()
    return code, said.out, said.err


def report(capsys: pytest.CaptureFixture[str], stage: Stage, verb: str, *arguments: str) -> dict[str, Any]:
    code, out, err = keylane(capsys, stage, verb, *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], stage: Stage, verb: str, *arguments: str, code: int = 2) -> str:
    """The one line that says why nothing was done; nothing was done."""
    before = stage.admin.committed_offsets(stage.group)
    found, out, err = keylane(capsys, stage, verb, *arguments, "--execute")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert stage.admin.committed_offsets(stage.group) == before
    return err


# --- replay ---


def test_a_replayed_record_runs_again_once_and_no_other(
    stage: Stage, capsys: pytest.CaptureFixture[str], has_conditions: bool
) -> None:
    runs = Runs(stage)
    assert len(runs.run()) == 20
    chosen = named(stage, (0, 7), (0, 3), (1, 9), (0, 7))
    before = stage.committed()
    dry = report(capsys, stage, "replay", *chosen)
    assert (dry["executed"], dry["conditional"], stage.committed()) == (False, None, before)
    done = report(capsys, stage, "replay", *chosen, "--execute")
    assert done == dry | {"executed": True, "conditional": has_conditions, "in_log": False}
    assert [(one["partition"], one["offsets"], one["new_offset"]) for one in done["partitions"]] == [
        (0, [3, 7], 3),
        (1, [9], 9),
    ]
    assert stage.committed()[stage.topic, 0] == OffsetMap(3, [3, 7], 9)
    assert runs.run() == [(0, 3), (0, 7), (1, 9)]
    assert stage.all_is_committed()
    assert runs.run() == []


def test_what_was_done_without_members_is_in_the_log_of_a_group_that_was_operated(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.run(lambda _: None, operations=kl.Operations())
    assert report(capsys, stage, "replay", *named(stage, (0, 7), (1, 2)))["in_log"] is None, "nothing was done"
    assert report(capsys, stage, "replay", *named(stage, (0, 7), (1, 2)), "--execute")["in_log"]
    assert report(capsys, stage, "skip", *named(stage, (0, 7)), "--execute")["in_log"]
    assert main(["operate", "log", stage.group, "--bootstrap", stage.servers, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["commands"]
    assert (first["do"], first["about"]) == ("replay-record", f"{stage.topic}:0@7, {stage.topic}:1@2")
    assert (second["do"], second["about"]) == ("skip-record", f"{stage.topic}:0@7")
    assert {first["by"], second["by"]} == {BY}
    assert [one["member"] for one in (*first["members"], *second["members"])] == ["keylane records"] * 2
    assert main(["operate", "log", stage.group, "--bootstrap", stage.servers]) == 0
    assert BY in capsys.readouterr().out


def test_a_replay_while_others_are_incomplete(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(4, [4, 6], 8))
    commit_map(stage, OffsetMap(10), partition=1)
    code, out, err = keylane(capsys, stage, "replay", *named(stage, (0, 1)))
    assert (code, err, out.splitlines()[-1]) == (0, "", "nothing was changed: add --execute to do it")
    assert out.splitlines()[1].split() == [stage.topic, "0", "1", "4", "1", "3", "8", "BitSet", "v1"]
    code, out, _ = keylane(capsys, stage, "replay", *named(stage, (0, 1)), "--execute")
    assert (code, out.splitlines()[-2]) == (0, f"group {stage.group}: 1 records run again, by {BY}")
    assert f"`keylane operate log {stage.group}` has no word of it" in out
    assert Runs(stage).run() == [(0, 1), (0, 4), (0, 6), (0, 9)]


def test_a_map_of_the_jvm_parallel_consumer_is_edited_in_its_encoding(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(stage, {0: CommittedOffset(2, WRITTEN_BY_THE_JVM), 1: CommittedOffset(10, "")})
    assert report(capsys, stage, "replay", *named(stage, (0, 4)), "--execute")["partitions"][0] == {
        "topic": stage.topic,
        "partition": 0,
        "offsets": [4],
        "committed": 2,
        "new_offset": 2,
        "incomplete_count": 3,
        "highest_completed": 7,
        "encoding": "BitSet v1",
        "had_map": True,
    }
    assert Runs(stage).run() == [(0, 2), (0, 4), (0, 5), (0, 8), (0, 9)]


# --- skip ---


def test_a_skipped_record_never_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    def poisoned(record: kl.Record) -> None:
        if (record.partition, record.offset) == (0, 4):
            raise kl.Fatal("poisoned")

    with pytest.raises(HandlerError):
        stage.run(poisoned)
    before = stage.committed()
    assert not before[stage.topic, 0].is_complete(4)
    left = {
        (partition, offset)
        for partition in range(2)
        for offset in range(10)
        if (stage.topic, partition) not in before or not before[stage.topic, partition].is_complete(offset)
    }
    done = report(capsys, stage, "skip", *named(stage, (0, 4)), "--execute")
    assert done["partitions"][0]["committed"] == before[stage.topic, 0].base
    assert Runs(stage).run() == sorted(left - {(0, 4)})
    assert stage.all_is_committed()


def test_a_skip_moves_the_committed_offset_over_the_first_record(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_map(stage, OffsetMap(2, [2, 5], 6))
    commit_map(stage, OffsetMap(10), partition=1)
    assert report(capsys, stage, "skip", *named(stage, (0, 2)), "--execute")["partitions"][0]["new_offset"] == 5
    assert stage.committed()[stage.topic, 0] == OffsetMap(5, [5], 6)
    code, out, _ = keylane(capsys, stage, "skip", *named(stage, (0, 8)), "--execute")
    assert (code, out.splitlines()[-2]) == (0, f"group {stage.group}: 1 records count as complete, by {BY}")
    assert Runs(stage).run() == [(0, 5), (0, 7), (0, 9)]


def test_what_a_group_without_maps_makes_of_a_skip_is_told(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain consumer does not look at the map: the record runs."""
    commit_map(stage, OffsetMap(2))
    code, out, _ = keylane(capsys, stage, "skip", *named(stage, (0, 5)), "--execute")
    told = (
        f"{stage.topic}-0: the commit had no offset map so far: consumers that keep none (plain ones) go on at 2, and"
    )
    assert (code, told in out, "never run" in out) == (0, True, False)
    code, out, _ = keylane(capsys, stage, "skip", *named(stage, (0, 6)), "--execute")
    assert (code, "no offset map so far" in out) == (0, False)
    code, out, _ = keylane(capsys, stage, "skip", *named(stage, (0, 2), (0, 3), (0, 4)), "--execute")
    assert (code, "no offset map so far" in out) == (0, False)
    assert stage.committed()[stage.topic, 0] == OffsetMap(7), "what a plain consumer goes by too"


# --- park ---


def parked(stage: Stage) -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
    return [(one.raw_key, one.raw_value, dict(one.headers)) for one in stage.read(f"{stage.topic}.dead")]


def test_a_parked_record_is_a_letter_and_its_key_goes_on_and_it_comes_back_by_a_redrive(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.create(1, f"{stage.topic}.dead")
    commit_map(stage, OffsetMap(2, [2, 5], 9))
    commit_map(stage, OffsetMap(10), partition=1)
    given = (*named(stage, (0, 2)), "--dlq", f"{stage.topic}.dead")
    dry = report(capsys, stage, "park", *given)
    assert (dry["executed"], dry["had_letters"], parked(stage)) == (False, None, [])
    done = report(capsys, stage, "park", *given, "--reason", "ticket 481", "--execute")
    assert (done["had_letters"], done["partitions"][0]["new_offset"]) == (0, 5)
    ((key, value, headers),) = parked(stage)
    assert (key, value) == (b"key-4", b"4")
    assert (headers["keylane.offset"], headers["keylane.error.class"]) == (b"2", b"keylane.errors.ParkedError")
    assert (headers["keylane.error.text"] or b"").endswith(b": ticket 481")
    assert stage.committed()[stage.topic, 0] == OffsetMap(5, [5], 9)
    assert Runs(stage).run() == [(0, 5)]
    said = refusal(capsys, stage, "park", *given)
    assert "it is complete already: nothing is to be parked" in said
    assert len(parked(stage)) == 1
    assert main(["dlq", "redrive", f"{stage.topic}.dead", "--bootstrap", stage.servers, "--execute"]) == 0
    capsys.readouterr()
    first = (stage.topic, 0)
    until(lambda: (stage.admin.log_ends([first], read_committed=True)[first] or 0) > 10, "its transaction has ended")
    assert Runs(stage).run() == [(0, 10)]


def test_a_park_that_ended_between_letter_and_commit_is_done_by_the_next_one_without_a_second_letter(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create(1, f"{stage.topic}.dead")
    commit_map(stage, OffsetMap(2, [2, 5], 9))
    commit_map(stage, OffsetMap(10), partition=1)
    given = (*named(stage, (0, 2)), "--dlq", f"{stage.topic}.dead")

    def dies(*_: object) -> bool:
        raise PeerError("somebody else has committed")

    with monkeypatch.context() as patch:
        patch.setattr(records_edit, "replace", dies)
        said = refusal(capsys, stage, "park", *given, code=1)
    assert f"the letters are in '{stage.topic}.dead'" in said
    assert len(parked(stage)) == 1
    done = report(capsys, stage, "park", *named(stage, (0, 5)), *given, "--execute")
    assert done["had_letters"] == 1
    assert sorted(value or b"" for _, value, _ in parked(stage)) == [b"10", b"4"]
    assert Runs(stage).run() == []


def test_a_letter_that_came_back_stands_for_nothing_any_more(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.create(1, f"{stage.topic}.dead")
    commit_map(stage, OffsetMap(2, [2], 9))
    given = (*named(stage, (0, 2)), "--dlq", f"{stage.topic}.dead")
    report(capsys, stage, "park", *given, "--execute")
    assert main(["dlq", "redrive", f"{stage.topic}.dead", "--bootstrap", stage.servers, "--execute"]) == 0
    capsys.readouterr()
    report(capsys, stage, "replay", *named(stage, (0, 2)), "--execute")
    assert report(capsys, stage, "park", *given, "--execute")["had_letters"] == 0
    assert len(parked(stage)) == 2


def test_what_cannot_be_parked_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(2, [2], 9))
    one = named(stage, (0, 2))
    assert "which dead letters?" in refusal(capsys, stage, "park", *one)
    assert "does not exist" in refusal(capsys, stage, "park", *one, "--dlq", "no-such-topic")
    assert "in the dead-letter topic itself" in refusal(capsys, stage, "park", *one, "--dlq", stage.topic)


# --- what is refused ---


def test_a_group_with_members_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"bootstrap.servers": stage.servers, "group.id": stage.group, "client.id": "worker-a"}
    with closing(Consumer(settings | {"enable.auto.commit": False})) as consumer:
        consumer.subscribe([stage.topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition(stage.topic, 0, 4)], asynchronous=False)
        for verb, offset in (("replay", 3), ("skip", 4)):
            said = refusal(capsys, stage, verb, *named(stage, (0, offset)))
            assert (
                f"the group '{stage.group}' is stable with 1 members (worker-a on 127.0.0.1): stop them first" in said
            )
            assert "`keylane operate` tells them" in said


def test_a_record_that_is_in_that_state_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(2, [2, 5], 6))
    for offset in (2, 5, 7):
        said = refusal(capsys, stage, "replay", *named(stage, (0, 1), (0, offset)))
        assert f"{named(stage, (0, offset))[0]}: it is not complete: it runs when consumers of the group start" in said
    for offset in (1, 3):
        said = refusal(capsys, stage, "skip", *named(stage, (0, 2), (0, offset)))
        assert f"{named(stage, (0, offset))[0]}: it is complete already: nothing is to be skipped" in said


def test_metadata_that_is_no_map_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit(stage, {0: CommittedOffset(5, "a checkpoint"), 1: CommittedOffset(5, "TAABAA==")})
    said = refusal(capsys, stage, "replay", *named(stage, (0, 3)))
    assert "cannot be edited: metadata 'a checkpoint' is not an offset map" in said
    assert "`keylane groups reset` commits without metadata" in said
    assert "the encoding ByteArray, which is read and not written" in refusal(
        capsys, stage, "replay", *named(stage, (1, 3))
    )


def test_a_map_that_would_not_fit_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(9))
    some = named(stage, (0, 1), (0, 3), (0, 5), (0, 7))
    said = refusal(capsys, stage, "replay", *some, "--metadata-max-bytes", "4")
    assert f"{stage.topic}-0 of the group '{stage.group}': its offset map would have 4 incomplete of 8 offsets" in said
    report(capsys, stage, "replay", *some, "--metadata-max-bytes", "16", "--execute")
    assert len(stage.admin.committed_offsets(stage.group)[stage.topic, 0].metadata) <= 16


def test_what_the_log_has_no_longer_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(1, [1, 4], 8))
    stage.admin.delete_records({(stage.topic, 0): 3})
    for verb, offset, way_out in (("replay", 0, "produce it again"), ("skip", 1, "consumers pass over it")):
        said = refusal(capsys, stage, verb, *named(stage, (0, offset)))
        assert f"@{offset}: it is below the log's start: retention or a deletion took it; {way_out}" in said
    assert "the log ends before it (at 10)" in refusal(capsys, stage, "skip", *named(stage, (0, 10)))


def test_what_compaction_took_is_refused(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(servers, "compacted")
    assert stage.admin.create_topics({stage.topic: 1}, config=COMPACTED)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(2):
        producer.produce(stage.topic, b"%d" % number, b"key")
        assert producer.flush(30) == 0
    for number in range(4):  # the active segment is not compacted
        producer.produce(stage.topic, os.urandom(600_000), b"large-%d" % number)
        assert producer.flush(30) == 0
    commit_map(stage, OffsetMap(2))
    first = named(stage, (0, 0))
    until(lambda: b"0" not in {one.value for one in stage.read(stage.topic)}, "the first record is compacted")
    said = refusal(capsys, stage, "replay", *first)
    assert f"{first[0]}: no record is there: compaction took it" in said
    commit_map(stage, OffsetMap(0, [0], 1))
    assert "consumers pass over it by themselves" in refusal(capsys, stage, "skip", *first)


def test_what_is_in_an_open_or_aborted_transaction_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(10))
    producer = Producer({"bootstrap.servers": stage.servers, "transactional.id": stage.topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(stage.topic, b"aborted", partition=0)
    producer.flush(30)
    assert "it is in an open transaction" in refusal(capsys, stage, "skip", *named(stage, (0, 10)))
    producer.abort_transaction(30)
    for offset in (10, 11):
        shown = report(capsys, stage, "show", *named(stage, (0, offset)))["records"][0]
        assert (shown["in_log"], shown["standing"], shown["value_bytes"]) == ("gone", "beyond", None)
    assert "its transaction was aborted" in refusal(capsys, stage, "skip", *named(stage, (0, 10)))


def test_names_that_are_none(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit_map(stage, OffsetMap(2))
    for name, says in (
        (f"{stage.topic}:0", "give a record as TOPIC:PARTITION@OFFSET"),
        (f"{stage.topic[:-1]}:0@1", f"did you mean {stage.topic}?"),
        (f"{stage.topic}:2@1", "the topic has partitions 0 to 1"),
        (f"{stage.topic}:1@1", f"has committed nothing in {stage.topic}-1"),
    ):
        assert says in refusal(capsys, stage, "replay", name)
    assert "--metadata-max-bytes -1" in refusal(capsys, stage, "skip", *named(stage, (0, 2)), "--metadata-max-bytes=-1")
    stage.group = "nobody"
    for verb in ("show", "skip"):
        code, out, err = keylane(capsys, stage, verb, *named(stage, (0, 2)))
        assert (code, out, "the group 'nobody' does not exist" in err) == (2, "", True)


# --- commits of others ---


class Meddler(Admin):
    """Somebody else commits just before this one does."""

    def __init__(self, stage: Stage, *, commits: CommittedOffset | None) -> None:
        super().__init__({"bootstrap.servers": stage.servers})
        self._stage = stage
        self._commits = commits

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        metadata: Mapping[tuple[str, int], str] | None = None,
        leader_epochs: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        super().commit_offsets(group, offsets, metadata, leader_epochs)
        assert self._commits is not None
        commit(self._stage, {0: self._commits})


def test_somebody_else_commits_before(stage: Stage) -> None:
    """Another offset, or another map at the same offset."""
    name = (stage.topic, 0)
    before, after = CommittedOffset(5, ""), CommittedOffset(3, encode(OffsetMap(3, [3], 4)))
    for others in (CommittedOffset(6, ""), CommittedOffset(5, encode(OffsetMap(5, [5], 6)))):
        commit(stage, {0: others})
        with pytest.raises(PeerError, match=f"somebody else has committed .*{stage.topic}-0.*: nothing was changed"):
            replace(stage.admin, {"bootstrap.servers": stage.servers}, stage.group, {name: before}, {name: after})
        assert stage.admin.committed_offsets(stage.group) == {name: others}


def test_somebody_else_commits_in_between(stage: Stage, has_conditions: bool) -> None:
    """With conditions the commit is refused; without, what is there afterwards tells."""
    name, other = (stage.topic, 0), CommittedOffset(6, "")
    before, after = CommittedOffset(5, ""), CommittedOffset(3, encode(OffsetMap(3, [3], 4)))
    commit(stage, {0: before})

    class Late(Meddler):
        """What it read is old by the time that it is told."""

        def committed_offsets(self, group: str, topics: Any = None) -> dict[tuple[str, int], CommittedOffset]:
            found = super().committed_offsets(group, topics)
            if has_conditions:
                commit(stage, {0: other})
            return found

    with pytest.raises(PeerError) as raised:
        replace(
            Late(stage, commits=other),
            {"bootstrap.servers": stage.servers},
            stage.group,
            {name: before},
            {name: after},
        )
    said = str(raised.value)
    assert ("is at 6 where 5 was expected; nothing was committed" in said) == has_conditions
    assert ("look at what is committed" in said) != has_conditions
    assert stage.admin.committed_offsets(stage.group) == {name: other}


# --- show ---


def test_show(stage: Stage, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": stage.servers})
    producer.produce(stage.topic, b"20", b"\xff", 0, timestamp=T0, headers=[("own", b"secret")])
    assert producer.flush(30) == 0
    commit_map(stage, OffsetMap(2, [2, 5], 6))
    places = [(0, 1), (0, 3), (0, 5), (0, 10), (1, 0)]
    found = report(capsys, stage, "show", *named(stage, *places))
    assert found["group"] == stage.group
    assert [one["record"] for one in found["records"]] == named(stage, *places)
    standings = [one["standing"] for one in found["records"]]
    assert standings == ["below", "complete", "incomplete", "beyond", "no commit"]
    (one,) = report(capsys, stage, "show", *named(stage, (0, 10)))["records"]
    assert one == {
        "record": f"{stage.topic}:0@10",
        "standing": "beyond",
        "committed": 2,
        "highest_completed": 6,
        "metadata_error": None,
        "in_log": "there",
        "log_start_offset": 0,
        "log_end_offset": 11,
        "timestamp": "2023-11-14T22:13:20.000+00:00",
        "key_bytes": 1,
        "value_bytes": 2,
        "header_names": ["own"],
    }
    (tmp_path / "some.py").write_text(
        "import keylane as kl\n"
        f"numbers = kl.Pipeline(kafka={{'bootstrap.servers': {stage.servers!r}, 'group.id': 'g'}},\n"
        f"    topics=[{stage.topic!r}], handler=print, value_deserializer=lambda data, _: int(data))\n"
    )
    file = str(tmp_path / "some.py")
    (shown,) = report(capsys, stage, "show", *named(stage, (0, 10)), "--payload", "--pipeline", file)["records"]
    payload = {"key": {"base64": "/w=="}, "value": 20, "headers": [["own", "secret"]]}
    assert shown == one | payload
    assert main(["records", "show", stage.group, *named(stage, (0, 10), (0, 99)), "--pipeline", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "standing: beyond: not complete, nor is any record behind it" in lines
    assert "in_log: unwritten: the log ends before it" in lines
    assert "value_bytes: 2" in lines
    assert not any("secret" in line for line in lines)


def test_show_of_a_foreign_commit(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    commit(stage, {0: CommittedOffset(5, "a checkpoint")})
    below, above = report(capsys, stage, "show", *named(stage, (0, 4), (0, 5)))["records"]
    assert (below["standing"], above["standing"]) == ("below", "beyond")
    assert "is not an offset map" in above["metadata_error"]
