"""`keylane groups offsets | map | reset | delete`, on the embedded broker and on Apache Kafka."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.cli import main
from keylane.kafka.admin import Admin
from keylane.offsets import OffsetMap, encode
from kit.either_broker import either_broker
from kit.outside_commits import commit

if TYPE_CHECKING:
    from collections.abc import Iterator

T0 = 1_700_000_000_000
"""When the first record was made, in milliseconds; each next one a second later."""
WRITTEN_BY_THE_JVM = "bAAGNgA="
"""The Parallel Consumer's map at base 100: 100 and 103 are incomplete, 105 is the highest complete (BitSet v1)."""


@pytest.fixture(scope="module", params=["keylane", "apache"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker")) as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"flights": 3, "weather": 1})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition, records in enumerate((120, 10, 0)):
            for number in range(records):
                producer.produce("flights", b"x", partition=partition, timestamp=T0 + number * 1_000)
        assert producer.flush(30) == 0
        yield broker.bootstrap


def keylane(capsys: pytest.CaptureFixture[str], servers: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, in this process."""
    code = main(["groups", *arguments, "--bootstrap", servers])
    said = capsys.readouterr()
    return code, said.out, said.err


def report(capsys: pytest.CaptureFixture[str], servers: str, *arguments: str) -> dict[str, Any]:
    code, out, err = keylane(capsys, servers, *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def committed(servers: str, group: str) -> dict[tuple[str, int], int]:
    found = Admin({"bootstrap.servers": servers}).committed_offsets(group)
    return {name: one.offset for name, one in found.items()}


def test_a_reset_by_time_goes_to_the_first_record_of_that_time_whatever_its_transaction(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Admin({"bootstrap.servers": servers}).create_topics({"open": 1})
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("open", b"x", timestamp=T0)
    producer.produce("open", b"x", timestamp=T0 + 60_000)
    assert producer.flush(30) == 0
    when = datetime.fromtimestamp(T0 / 1000 + 30, UTC).isoformat()
    found = report(capsys, servers, "reset", "by-time", "--topic", "open", "--to-datetime", when)
    assert [one["new_offset"] for one in found["partitions"]] == [1]
    producer.abort_transaction(30)


def test_offsets(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    commit(servers, "shown", [TopicPartition("flights", 0, 100, metadata="m" * 50), TopicPartition("weather", 0, 0)])
    rows = report(capsys, servers, "offsets", "shown")["partitions"]
    assert rows[0] == {
        "topic": "flights",
        "partition": 0,
        "committed": 100,
        "metadata": "m" * 50,
        "leader_epoch": None,
        "log_start_offset": 0,
        "log_end_offset": 120,
        "lag": 20,
    }
    assert [(row["topic"], row["lag"]) for row in rows] == [("flights", 20), ("weather", 0)]
    assert len(report(capsys, servers, "offsets", "shown", "--topic", "weather")["partitions"]) == 1
    assert report(capsys, servers, "offsets", "shown", "--topic", "flights:1-2")["partitions"] == []
    code, out, _ = keylane(capsys, servers, "offsets", "shown")
    assert code == 0
    assert ["flights", "0", "100", "0", "120", "20", "m" * 40 + "…", "(50", "characters)"] in map(
        str.split, out.splitlines()
    )


def test_maps_of_any_consumer(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    ours = encode(OffsetMap(5, [5, range(7, 9)], 9))
    commit(
        servers,
        "mapped",
        [
            TopicPartition("flights", 0, 100, metadata=WRITTEN_BY_THE_JVM),
            TopicPartition("flights", 1, 5, metadata=ours),
            TopicPartition("flights", 2, 0, metadata="a checkpoint"),
            TopicPartition("weather", 0, 0),
        ],
    )
    jvm, own, foreign, plain = report(capsys, servers, "map", "mapped")["partitions"]
    assert (jvm["encoding"], jvm["incomplete"], jvm["highest_completed"]) == (
        "BitSet v1",
        [[100, 100], [103, 103]],
        105,
    )
    assert (own["incomplete"], own["incomplete_count"], own["highest_completed"]) == ([[5, 5], [7, 8]], 3, 9)
    assert "is not an offset map" in foreign["metadata_error"]
    assert (plain["encoding"], plain["incomplete"], plain["metadata_error"]) == (None, None, None)
    code, out, _ = keylane(capsys, servers, "map", "mapped")
    assert code == 0
    assert "BitSet v1" in out
    assert "5, 7–8" in out
    assert out.splitlines()[-1].startswith("flights-2: metadata 'a checkpoint' is not an offset map")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), [0, 0, 0]),
        (("--to-latest",), [120, 10, 0]),
        (("--to-offset", "15"), [15, 10, 0]),
        (("--to-datetime", datetime.fromtimestamp(T0 / 1000 + 4.5, UTC).isoformat()), [5, 5, 0]),
        (("--to-datetime", datetime.fromtimestamp(T0 / 1000 + 50, UTC).replace(tzinfo=None).isoformat()), [50, 10, 0]),
    ],
    ids=["earliest", "latest", "offset", "time", "time-in-utc"],
)
def test_reset(
    servers: str,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    target: tuple[str, ...],
    expected: list[int],
) -> None:
    group = f"reset-{request.node.callspec.id}"
    before = [TopicPartition("flights", 0, 7, metadata=WRITTEN_BY_THE_JVM), TopicPartition("flights", 2, 0)]
    commit(servers, group, before)
    arguments = ("reset", group, "--topic", "flights", *target)
    dry = report(capsys, servers, *arguments)
    assert not dry["executed"]
    assert [row["new_offset"] for row in dry["partitions"]] == expected
    assert [row["committed"] for row in dry["partitions"]] == [7, None, 0]
    assert [row["drops_metadata"] for row in dry["partitions"]] == [True, False, False]
    assert committed(servers, group) == {("flights", 0): 7, ("flights", 2): 0}, "a dry run changes nothing"
    done = report(capsys, servers, *arguments, "--execute")
    assert done == dry | {"executed": True}
    assert committed(servers, group) == {("flights", index): offset for index, offset in enumerate(expected)}
    found = Admin({"bootstrap.servers": servers}).committed_offsets(group)
    assert {one.metadata for one in found.values()} == {""}


def test_reset_of_what_is_committed(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    commit(servers, "some", [TopicPartition("flights", 1, 3), TopicPartition("weather", 0, 0)])
    code, out, _ = keylane(capsys, servers, "reset", "some", "--to-latest")
    assert code == 0
    assert out.splitlines()[-1] == "nothing was changed: add --execute to do it"
    assert committed(servers, "some")["flights", 1] == 3
    code, out, _ = keylane(capsys, servers, "reset", "some", "--to-latest", "--execute")
    assert (code, out.splitlines()[-1]) == (0, "group some: 2 offsets set")
    assert committed(servers, "some") == {("flights", 1): 10, ("weather", 0): 0}


def test_a_live_group_is_refused(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    commit(servers, "bystander", [TopicPartition("flights", 0, 1)])
    settings = {"bootstrap.servers": servers, "group.id": "alive", "client.id": "worker-a", "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe(["flights"])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition("flights", 0, 4)], asynchronous=False)
        for arguments in (
            ("reset", "alive", "--to-latest", "--execute"),
            ("delete", "bystander", "alive", "--execute"),
        ):
            code, out, err = keylane(capsys, servers, *arguments)
            assert (code, out) == (2, "")
            assert err.startswith(
                "keylane: error: the group 'alive' is stable with 1 members (worker-a on 127.0.0.1): stop"
            )
        assert committed(servers, "alive") == {("flights", 0): 4}
    assert committed(servers, "bystander") == {("flights", 0): 1}, "none is deleted when one is refused"


def test_delete(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("gone-a", "gone-b"):
        commit(servers, group, [TopicPartition("flights", 0, 4), TopicPartition("weather", 0, 0)])
    dry = report(capsys, servers, "delete", "gone-a", "gone-b", "gone-a")
    rows = [{"group": group, "state": "empty", "offsets": 2} for group in ("gone-a", "gone-b")]
    assert dry == {"executed": False, "groups": rows}
    assert committed(servers, "gone-a")
    code, out, _ = keylane(capsys, servers, "delete", "gone-a", "gone-b", "--execute")
    assert (code, out.splitlines()[-1]) == (0, "2 groups deleted")
    assert not committed(servers, "gone-a")
    assert not {one.group for one in Admin({"bootstrap.servers": servers}).groups()} & {"gone-a", "gone-b"}
    code, _, err = keylane(capsys, servers, "delete", "gone-a")
    assert code == 2
    assert "the group 'gone-a' does not exist" in err


def test_delete_of_some_offsets(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("part-a", "part-b"):
        commit(servers, group, [TopicPartition("flights", 0, 4), TopicPartition("flights", 2, 0)])
    commit(servers, "part-a", [TopicPartition("weather", 0, 0)])
    dry = report(capsys, servers, "delete", "part-a", "part-b", "--topic", "flights:0-1")
    rows = [{"group": group, "topic": "flights", "partition": 0, "committed": 4} for group in ("part-a", "part-b")]
    assert dry == {"executed": False, "partitions": rows}
    assert len(committed(servers, "part-a")) == 3
    chosen = ("--topic", "flights:0", "--topic", "weather")
    code, out, _ = keylane(capsys, servers, "delete", "part-a", *chosen, "--execute")
    assert (code, out.splitlines()[-1]) == (0, "2 offsets deleted")
    assert committed(servers, "part-a") == {("flights", 2): 0}
    assert committed(servers, "part-b") == {("flights", 0): 4, ("flights", 2): 0}
    code, _, err = keylane(capsys, servers, "delete", "part-a", *chosen, "--execute")
    assert (code, "the group 'part-a' has no offsets in flights:0, weather" in err) == (2, True)


def test_offsets_that_a_live_group_needs_stay(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"bootstrap.servers": servers, "group.id": "needy", "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe(["flights"])
        while not consumer.assignment():
            consumer.poll(0.1)
        offsets = [TopicPartition("flights", 0, 4), TopicPartition("weather", 0, 0)]
        consumer.commit(offsets=offsets, asynchronous=False)
        code, _, err = keylane(capsys, servers, "delete", "needy", "--topic", "flights:0", "--execute")
        assert code == 1
        assert "the group 'needy'" in err
        assert keylane(capsys, servers, "delete", "needy", "--topic", "weather", "--execute")[0] == 0
        assert committed(servers, "needy") == {("flights", 0): 4}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("offsets", "nobody"), "the group 'nobody' does not exist"),
        (("map", "nobody"), "the group 'nobody' does not exist"),
        (("reset", "nobody", "--to-latest"), "has no offsets: name what to set with --topic"),
        (("reset", "nobody", "--topic", "nowhere", "--to-latest"), "--topic nowhere: there is no topic 'nowhere'"),
        (("reset", "nobody", "--topic", "flights:3", "--to-latest"), "the topic has partitions 0 to 2"),
        (("reset", "nobody", "--topic", "flights:x", "--to-latest"), "'x' is no partition or range of them"),
        (("reset", "nobody", "--topic", "flights:2-1", "--to-latest"), "'2-1' is no partition or range of them"),
        (("reset", "nobody", "--topic", "flights:", "--to-latest"), "'' is no partition or range of them"),
        (("reset", "nobody", "--to-offset", "-1"), "--to-offset -1: give an offset from 0 on"),
        (("reset", "nobody", "--to-datetime", "noon"), "--to-datetime noon: give a time like 2026-11-21T08:00:00"),
        (("reset", "nobody"), "--to-earliest --to-latest --to-datetime --to-offset is required"),
        (("reset", "nobody", "--to-latest", "--to-earliest"), "not allowed with argument"),
        (("delete", "", "--execute"), "the group's id is empty"),
        (("delete",), "GROUP"),
    ],
)
def test_wrong_usage(servers: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    code, out, err = keylane(capsys, servers, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
