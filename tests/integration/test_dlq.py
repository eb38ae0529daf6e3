"""`keylane dlq`, on the embedded broker and on Apache Kafka: what is shown, sent back once, and deleted.

KEYLANE_DLQ_KILLS says how many kills (100) the long form has on each broker.
"""

from __future__ import annotations

import json
import os
import random
import signal
from typing import TYPE_CHECKING, Any

import peers
import pytest
from confluent_kafka import Producer

from keylane.cli import main
from keylane.consumer.dead_letters import said_of
from keylane.errors import PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.kafka.redriving import Redriving
from keylane.records import Output
from keylane.testing import EmbeddedBroker
from keylane.wire.batches import NewRecord, encode_batch
from kit.committed import committed_values
from kit.redriver import STEPS_A_LOT, redrive, stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = int(os.environ.get("KEYLANE_DLQ_KILLS", "100"))
T0 = 1_700_000_000_000


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "keylane":
        with EmbeddedBroker() as broker:
            yield broker.bootstrap_servers
    elif missing := peers.missing():
        pytest.skip(f"Apache Kafka cannot run here: {missing}")
    else:
        with peers.ApacheKafka() as kafka:
            yield kafka.bootstrap


@pytest.fixture(scope="module", autouse=True)
def no_server_left() -> Iterator[None]:
    yield
    stop()


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    """Of records; its dead letters, whose times are long ago, are in `<topic>.dead`."""
    name: str = request.node.name.split("[")[0].removeprefix("test_")[:60]
    Admin({"bootstrap.servers": servers}).create_topics({name: 3, f"{name}.dead": 2}, config={"retention.ms": "-1"})
    return name


def bury(servers: str, topic: str, numbers: range, error: Exception | None = None) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        headers: list[tuple[str, str | bytes | None]] = [
            ("own", b"%d" % number),
            *said_of((topic, number % 3, number), T0, error or ValueError("bad"), 5),
        ]
        producer.produce(
            f"{topic}.dead", b"%d" % number, b"k%d" % (number % 7), number % 2, timestamp=T0 + number, headers=headers
        )
    assert producer.flush(30) == 0


def keylane(capsys: pytest.CaptureFixture[str], servers: str, *arguments: str) -> dict[str, Any]:
    assert main(["dlq", *arguments, "--bootstrap", servers, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_list_and_show(servers: str, topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dead = f"{topic}.dead"
    bury(servers, topic, range(4))
    bury(servers, topic, range(4, 6), TimeoutError("the service is slow"))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(dead, b"aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    found = keylane(capsys, servers, "list", dead)
    assert found["matching"] == 6
    assert [one["letter"] for one in found["letters"]] == [f"{dead}:{n % 2}@{n // 2}" for n in range(6)], "oldest first"
    slow = keylane(capsys, servers, "list", dead, "--error", "TimeoutError", "--limit", "1")
    assert (slow["matching"], len(slow["letters"])) == (2, 1)
    assert slow["letters"][0] == {
        "letter": f"{dead}:0@2",
        "written": "2023-11-14T22:13:20.004+00:00",
        "kind": "keylane",
        "topic": topic,
        "partition": 1,
        "offset": 4,
        "timestamp": "2023-11-14T22:13:20.000+00:00",
        "error": "TimeoutError",
        "reason": "the service is slow",
        "attempts": 5,
        "rounds": 0,
        "redriven": False,
    }
    plain = keylane(capsys, servers, "show", f"{dead}:0@2")
    assert (plain["value_bytes"], plain["header_names"]) == (1, ["own"])
    assert not {"key", "value", "headers"} & plain.keys()
    (tmp_path / "some.py").write_text(
        "import keylane as kl\n"
        f"numbers = kl.Pipeline(kafka={{'bootstrap.servers': {servers!r}, 'group.id': 'g'}}, topics=[{topic!r}],\n"
        f"    handler=print, on_exhausted=kl.DeadLetter({dead!r}), value_deserializer=lambda data, _: int(data))\n"
    )
    shown = keylane(capsys, servers, "show", f"{dead}:0@2", "--payload", "--pipeline", str(tmp_path / "some.py"))
    assert (shown["key"], shown["value"], shown["headers"]) == ("k4", 4, [["own", "4"]])
    assert main(["dlq", "list", "--pipeline", str(tmp_path / "some.py")]) == 0
    text = capsys.readouterr().out
    assert "the service is slow" in text
    assert text.splitlines()[-1] == f"6 of 6 letters in {dead}"
    assert main(["dlq", "show", f"{dead}:0@99", "--bootstrap", servers]) == 2
    assert main(["dlq", "list", f"{topic}.daed", "--bootstrap", servers]) == 2
    assert f"did you mean {dead}?" in capsys.readouterr().err


def test_a_letter_at_the_limit_goes_back_with_less_of_its_error(
    servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_of((topic, 0, 7), T0, ValueError("bad" * 60), 5)
    wire = tuple((name.encode(), one) for name, one in said)
    million = len(encode_batch([NewRecord(b"k", b"x" * 1_000_000, wire)], timestamp_ms=T0))
    value = b"x" * (1_000_000 + 1_048_588 - million)
    with BulkProducer(servers) as producer:
        producer.produce(Output(f"{topic}.dead", b"k", value, said, 0))
    assert keylane(capsys, servers, "redrive", f"{topic}.dead", "--execute")["letters"] == 1
    [record] = next(iter(read_to_end(servers, topic)))
    assert record.raw_value == value
    assert dict(record.headers)["keylane.offset"] == b"7"


def test_a_purge_by_time_keeps_what_is_in_or_behind_an_open_transaction(
    servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what is committed alone there is no letter of that time on, which is not to mean that all are older."""
    dead = f"{topic}.dead"
    bury(servers, topic, range(0, 6, 2))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": dead})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(dead, b"open", partition=0, timestamp=T0 + 60_000)
    assert producer.flush(30) == 0
    bury(servers, topic, range(100_000, 100_006, 2))
    purged = keylane(capsys, servers, "purge", dead, "--to-datetime", "2023-11-14T22:14:00", "--execute")
    assert [one["new_start_offset"] for one in purged["partitions"]] == [3, 0]
    everything = keylane(capsys, servers, "purge", dead, "--to-latest", "--execute")["partitions"][0]
    assert (everything["records"], everything["open_transaction"]) == (0, True)
    producer.commit_transaction(30)
    assert len(committed_values(servers, dead)) == 4


def test_redrive_and_purge(servers: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    dead = f"{topic}.dead"
    bury(servers, topic, range(20))
    bury(servers, topic, range(20, 30), TimeoutError("slow"))
    would = keylane(capsys, servers, "redrive", dead)
    assert (would["executed"], would["to"], would["group"]) == (False, {topic: 30}, f"keylane-redrive-{dead}")
    assert committed_values(servers, topic) == []
    some = keylane(capsys, servers, "redrive", dead, "--error", "TimeoutError", "--rate", "100000", "--execute")
    assert (some["letters"], some["not_selected"]) == (10, 20)
    assert keylane(capsys, servers, "list", dead, "--waiting")["matching"] == 20
    assert keylane(capsys, servers, "redrive", dead, "--limit", "5", "--execute")["letters"] == 5
    rest = keylane(capsys, servers, "redrive", dead, "--execute")
    assert (rest["letters"], rest["redriven_before"]) == (15, 15)
    assert committed_values(servers, topic) == sorted(b"%d" % number for number in range(30))
    back = [record for batch in read_to_end(servers, topic) for record in batch]
    for record in back:
        number = int(record.raw_value or b"")
        assert (record.partition, record.raw_key) == (number % 3, b"k%d" % (number % 7))
        assert [record.headers[0], record.headers[-1]] == [("own", b"%d" % number), ("keylane.rounds", b"1")]
    bury(servers, topic, range(30, 32))
    would = keylane(capsys, servers, "purge", dead, "--to-redriven")
    assert [(one["new_start_offset"], one["log_end_offset"]) for one in would["partitions"]] == [(15, 16), (15, 16)]
    assert keylane(capsys, servers, "list", dead)["matching"] == 32
    keylane(capsys, servers, "purge", dead, "--to-redriven", "--execute")
    assert [one["letter"] for one in keylane(capsys, servers, "list", dead)["letters"]] == [
        f"{dead}:0@15",
        f"{dead}:1@15",
    ]
    assert keylane(capsys, servers, "redrive", dead)["letters"] == 2, "a purge moves no position"
    time = keylane(capsys, servers, "purge", dead, "--to-datetime", "2023-11-14T22:13:20.031")
    assert [one["new_start_offset"] for one in time["partitions"]] == [16, 15]
    keylane(capsys, servers, "purge", dead, "--to-latest", "--execute")
    assert keylane(capsys, servers, "list", dead)["matching"] == 0


def test_a_position_that_a_mirror_copied_is_believed_for_its_offset_alone(
    servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = f"{topic}.dead"
    bury(servers, topic, range(0, 20, 2))  # in partition 0
    assert keylane(capsys, servers, "redrive", dead, "--limit", "2", "--execute")["letters"] == 2
    bury(servers, topic, range(20, 24, 2), TimeoutError("slow"))
    keylane(capsys, servers, "redrive", dead, "--error", "TimeoutError", "--execute")
    assert keylane(capsys, servers, "list", dead, "--waiting")["matching"] == 8
    admin, group = Admin({"bootstrap.servers": servers}), f"keylane-redrive-{dead}"
    (name,) = (committed := admin.committed_offsets(group)).keys()
    admin.commit_offsets(group, {name: committed[name].offset}, {name: committed[name].metadata})
    assert keylane(capsys, servers, "list", dead, "--waiting")["matching"] == 10, "its map is of another log"
    assert main(["dlq", "purge", dead, "--to-redriven", "--bootstrap", servers, "--execute"]) == 2
    assert "which letters here came back is not known" in capsys.readouterr().err
    assert keylane(capsys, servers, "redrive", dead, "--execute")["letters"] == 10
    would = keylane(capsys, servers, "purge", dead, "--to-redriven")
    assert [one["new_start_offset"] for one in would["partitions"]] == [12, 0]


def test_a_later_redrive_fences_an_earlier_one(servers: str, topic: str) -> None:
    kafka, group = {"bootstrap.servers": servers}, f"keylane-redrive-{topic}.dead"
    with Redriving(kafka, group, topic) as earlier:
        earlier.produce(Output(topic, b"k", b"earlier"))
        earlier.flush()
        with Redriving(kafka, group, topic) as later:
            later.produce(Output(topic, b"k", b"later"))
            later.commit([])
        earlier_ended = "another redrive has begun"
        with pytest.raises(PeerError, match=earlier_ended):
            earlier.commit([])
    assert committed_values(servers, topic) == [b"later"]


def test_a_redrive_that_is_killed_loses_none_and_sends_none_twice(servers: str, topic: str) -> None:
    judge(servers, topic, [2, 5, *range(9, STEPS_A_LOT + 2), 2 * STEPS_A_LOT - 1])


@pytest.mark.soak
def test_a_redrive_that_is_killed_again_and_again(servers: str, topic: str) -> None:
    """Half of the kills at a step of a lot, half at any moment."""
    chance = random.Random(20261124)
    dead, letters, died = f"{topic}.dead", 0, 0
    while died < KILLS:
        bury(servers, topic, range(letters, letters + 8))
        letters += 8
        if letters % 16:
            ended = redrive(servers, dead, chance.randint(1, 3 * STEPS_A_LOT))
        else:
            ended = redrive(servers, dead, dies_after_s=chance.uniform(0.05, 0.6))
        died += ended == -signal.SIGKILL
    assert redrive(servers, dead) == 0
    assert sorted(map(int, committed_values(servers, topic))) == list(range(letters))
    print(f"{died} killed at work, {letters} letters")  # noqa: T201


def judge(servers: str, topic: str, kills: list[int]) -> None:
    """Each letter comes back once, as a reader of committed records sees it in another client library."""
    letters = 8 * len(kills)
    bury(servers, topic, range(letters))
    died = [redrive(servers, f"{topic}.dead", at) for at in kills].count(-signal.SIGKILL)
    assert died >= len(kills) // 2, "kills that found the redrive at work"
    assert redrive(servers, f"{topic}.dead") == 0
    assert sorted(map(int, committed_values(servers, topic))) == list(range(letters))
    print(f"{died} of {len(kills)} killed at work, {letters} letters")  # noqa: T201
