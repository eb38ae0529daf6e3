"""`keylane groups` and `keylane.kafka.admin` against a running broker: real members, real commits, real logs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.broker.process import BrokerProcess
from keylane.cli import main
from keylane.errors import BrokerUnavailableError, PeerError, UsageError
from keylane.kafka.admin import Admin, CommittedOffset, GroupListing
from keylane.offsets import OffsetMap, encode
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOIN_S = 20.0
"""How long a member may take to join: generous, it is a second or so."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data") as running:
        admin = Admin({"bootstrap.servers": running.bootstrap})
        assert admin.create_topics({"flights": 4, "weather.raw": 1}) == {"flights", "weather.raw"}
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for partition, records in enumerate((120, 10, 7, 0)):
            for _ in range(records):
                producer.produce("flights", b"", partition=partition)
        assert producer.flush(20) == 0
        yield running


@pytest.fixture
def admin(broker: BrokerProcess) -> Admin:
    return Admin({"bootstrap.servers": broker.bootstrap})


def commit(broker: BrokerProcess, group: str, offsets: list[TopicPartition]) -> None:
    """Commit for a group without members."""
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})) as consumer:
        for one in consumer.commit(offsets=offsets, asynchronous=False) or []:
            assert one.error is None


@contextmanager
def member(broker: BrokerProcess, group: str, client_id: str, more: dict[str, Any] | None = None) -> Iterator[Consumer]:
    """A member that is assigned everything."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": client_id}
    with closing(Consumer(settings | {"enable.auto.commit": False} | (more or {}))) as consumer:
        consumer.subscribe(["flights"])
        deadline = monotonic() + JOIN_S
        while not consumer.assignment():
            consumer.poll(0.1)
            assert monotonic() < deadline, "the member was not assigned anything"
        yield consumer


def keylane(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, in this process."""
    code = main(["groups", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def described(capsys: pytest.CaptureFixture[str], broker: BrokerProcess, group: str) -> dict[str, Any]:
    code, out, err = keylane(capsys, "describe", group, "--bootstrap", broker.bootstrap, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    report: dict[str, Any] = json.loads(out)
    return report


# --- the command line ---


def test_a_group_without_members_and_its_offset_maps(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    offset_map = OffsetMap(100, [100, 103, range(110, 115)], 117)
    commit(
        broker,
        "maps",
        [
            TopicPartition("flights", 0, 100, metadata=encode(offset_map)),
            TopicPartition("flights", 1, 10),
            TopicPartition("flights", 2, 3, metadata="checkpoint of worker 7"),
            TopicPartition("flights", 3, 0, metadata="AgAAAYvP4wAA"),
        ],
    )
    report = described(capsys, broker, "maps")
    assert (report["group"], report["state"], report["members"], report["lag"]) == ("maps", "empty", [], 24)
    assert report["remaining"] == 13, "of another software's metadata nothing is known to be complete"
    assert report["coordinator"] == broker.bootstrap
    first, second, foreign, streams = report["partitions"]
    assert first == {
        "topic": "flights",
        "partition": 0,
        "committed": 100,
        "metadata": encode(offset_map),
        "leader_epoch": None,
        "offset_map": {"incomplete": 7, "highest_completed": 117},
        "map_origin": "unmarked",
        "metadata_error": None,
        "log_start_offset": 0,
        "log_end_offset": 120,
        "lag": 20,
        "remaining": 9,
        "member_id": None,
    }
    assert (second["committed"], second["lag"], second["offset_map"], second["metadata_error"]) == (10, 0, None, None)
    assert (foreign["offset_map"], foreign["metadata"], foreign["lag"]) == (None, "checkpoint of worker 7", 4)
    assert "is not an offset map" in foreign["metadata_error"]
    assert "Kafka Streams" in streams["metadata_error"]

    code, out, _ = keylane(capsys, "describe", "maps", "--bootstrap", broker.bootstrap)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("group maps: empty")
    assert lines[0].endswith("lag 24, remaining 13")
    assert "no members" in lines
    assert [line.split()[:9] for line in lines if line.startswith("flights ")] == [
        ["flights", "0", "100", "–", "7", "117", "120", "20", "9"],
        ["flights", "1", "10", "–", "–", "–", "10", "0", "0"],
        ["flights", "2", "3", "–", "–", "–", "7", "4", "4"],
        ["flights", "3", "0", "–", "–", "–", "0", "0", "0"],
    ]
    assert lines[-2].startswith("flights-2: metadata 'checkpoint of worker 7' is not an offset map")
    assert lines[-1].startswith("flights-3: metadata 'AgAAAYvP4wAA' is not an offset map: it belongs to Kafka Streams")


def test_a_map_of_the_jvm_parallel_consumer_says_what_remains(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it wrote it: base 100, and all up to 105 but 100 and 103 complete."""
    commit(broker, "jvm", [TopicPartition("flights", 0, 100, metadata="bAAGNgA=")])
    report = described(capsys, broker, "jvm")
    (only,) = report["partitions"]
    assert only["offset_map"] == {"incomplete": 2, "highest_completed": 105}
    assert (only["lag"], only["remaining"], report["remaining"]) == (20, 16, 16)


def test_what_retention_has_dropped_does_not_remain(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """The log starts above the base, and in the middle of what the map speaks of."""
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.create_topics({"short": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(30):
        producer.produce("short", b"")
    assert producer.flush(20) == 0
    commit(broker, "late", [TopicPartition("short", 0, 5, metadata=encode(OffsetMap(5, [5, 14, 15, 22], 24)))])
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_records([TopicPartition("short", 0, 15)])[TopicPartition("short", 0)].result(20)
    (only,) = described(capsys, broker, "late")["partitions"]
    assert (only["committed"], only["log_start_offset"], only["log_end_offset"]) == (5, 15, 30)
    assert (only["lag"], only["remaining"]) == (25, 7), "15, 22, and 25 to 29"


def test_a_live_member_and_its_assignment(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    commit(broker, "live", [TopicPartition("flights", 0, 50)])
    with member(broker, "live", "worker-a"):
        report = described(capsys, broker, "live")
        code, out, _ = keylane(capsys, "describe", "live", "--bootstrap", broker.bootstrap)
    assert (report["state"], report["assignor"]) == ("stable", "range")
    (only,) = report["members"]
    assert (only["client_id"], only["host"]) == ("worker-a", "127.0.0.1")
    assert only["assignment"] == {"flights": [0, 1, 2, 3]}
    assert {one["member_id"] for one in report["partitions"]} == {only["member_id"]}
    committed = [(one["committed"], one["log_end_offset"], one["lag"]) for one in report["partitions"]]
    assert committed == [(50, 120, 70), (None, 10, None), (None, 7, None), (None, 0, None)]
    assert [one["remaining"] for one in report["partitions"]] == [70, None, None, None]
    assert code == 0
    assert f"{only['member_id']}  worker-a   127.0.0.1  flights 0–3" in out
    assert "nothing committed" in out


def test_a_topic_that_is_gone_takes_its_commits_along(
    broker: BrokerProcess, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topics({"short-lived": 1})
    commit(broker, "leftover", [TopicPartition("short-lived", 0, 0), TopicPartition("flights", 1, 4)])
    assert len(admin.committed_offsets("leftover")) == 2
    admin.delete_topics(["short-lived", "never-was"])
    report = described(capsys, broker, "leftover")
    assert [(one["topic"], one["log_end_offset"], one["lag"]) for one in report["partitions"]] == [("flights", 10, 6)]


def test_groups_are_listed_by_name(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (end,) = Admin({"bootstrap.servers": broker.bootstrap}).log_ends([("flights", 0)], read_committed=False).values()
    assert end is not None
    for group in ("list-b", "list-a"):
        commit(broker, group, [TopicPartition("flights", 0, 1, metadata=encode(OffsetMap(1, [1], 3)))])
    code, out, _ = keylane(capsys, "list", "--bootstrap", broker.bootstrap, "--json")
    assert code == 0
    listed = [one for one in json.loads(out)["groups"] if one["group"].startswith("list-")]
    told = {"state": "empty", "protocol": "classic", "members": 0, "lag": end - 1, "remaining": end - 3}
    assert listed == [{"group": name} | told for name in ("list-a", "list-b")]
    code, out, _ = keylane(capsys, "list", "--bootstrap", broker.bootstrap)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["GROUP", "STATE", "PROTOCOL", "MEMBERS", "LAG", "REMAINING"] in rows
    assert ["list-a", "empty", "classic", "0", str(end - 1), str(end - 3)] in rows


def test_client_settings_from_a_file(broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(f"# ours\nbootstrap.servers = {broker.bootstrap}\ngroup.id=ignored\nclient.id=looker\n")
    code, _, _ = keylane(capsys, "list", "--command-config", str(settings))
    assert code == 0
    settings.write_text("no.such.setting=1\n")
    code, _, err = keylane(capsys, "list", "--command-config", str(settings), "--bootstrap", broker.bootstrap)
    assert code == 2
    assert 'No such configuration property: "no.such.setting"' in err


def test_an_unreachable_broker_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # a port that is ours and on which nobody listens
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        code, out, err = keylane(capsys, "describe", "maps", "--bootstrap", address, "--timeout-ms", "500")
    assert (code, out) == (1, "")
    assert err.startswith(f"keylane: error: no Kafka broker answered at '{address}' within 0.5 s")
    assert "Connection refused" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["describe", "no-such-group"], "the group 'no-such-group' does not exist: `keylane groups list` shows"),
        (["describe", ""], "the group's id is empty"),
        (["describe"], "GROUP"),
        (["list", "--timeout-ms", "0"], "--timeout-ms 0: give a whole number of at least 1"),
        (["list", "--command-config", "/no/such/file"], "/no/such/file: cannot be read: No such file or directory"),
        (["explain"], "invalid choice: 'explain'"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    known = bool(arguments) and arguments[0] != "explain"
    code, out, err = keylane(capsys, *arguments, *(["--bootstrap", broker.bootstrap] if known else []))
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_the_help_has_examples_and_needs_no_broker() -> None:
    for command in ("list", "describe", "offsets", "map", "reset", "delete"):
        done = subprocess.run(
            [sys.executable, "-m", "keylane", "groups", command, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"keylane groups {command}" in done.stdout.split("examples:")[1]


# --- keylane.kafka.admin ---


def test_topics_and_log_offsets(admin: Admin) -> None:
    assert admin.topics()["flights"] == 4
    assert admin.create_topics({"flights": 99}) == set()
    assert admin.topics()["flights"] == 4
    asked = [("flights", 0), ("flights", 3), ("flights", 4), ("no-such-topic", 0)]
    assert admin.log_ends(asked, read_committed=False) == dict(zip(asked, (120, 0, None, None), strict=True))
    assert admin.log_starts(asked[:2]) == dict.fromkeys(asked[:2], 0)
    assert admin.log_ends([], read_committed=False) == {}
    assert admin.log_ends(asked[2:], read_committed=False) == dict.fromkeys(asked[2:])
    assert admin.create_topics({}) == set()


def test_static_members_are_told_from_dynamic_ones(broker: BrokerProcess, admin: Admin) -> None:
    with member(broker, "static", "worker", {"group.instance.id": "lane-0"}):
        (static,) = admin.describe_group("static").members
    with member(broker, "dynamic", "worker"):
        (dynamic,) = admin.describe_group("dynamic").members
    assert (static.client_id, static.group_instance_id) == ("worker", "lane-0")
    assert (dynamic.client_id, dynamic.group_instance_id) == ("worker", None)
    assert static.assignment == dynamic.assignment == tuple(("flights", partition) for partition in range(4))


def test_a_static_member_that_has_stopped_is_told(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """As the lanes of a query that has just ended."""
    reset = ("reset", "stopped", "--to-earliest", "--bootstrap", broker.bootstrap)
    with member(broker, "stopped", "worker", {"group.instance.id": "lane-0"}):
        pass
    code, out, err = keylane(capsys, *reset)
    assert (code, out) == (2, "")
    assert "stop them first (a static member that has stopped stays one until its session timeout); a live" in err


def test_what_a_group_has_committed(broker: BrokerProcess, admin: Admin) -> None:
    commit(broker, "raw", [TopicPartition("weather.raw", 0, 0), TopicPartition("flights", 2, 5, metadata="bAAGNgA=")])
    assert admin.committed_offsets("raw") == {
        ("flights", 2): CommittedOffset(5, "bAAGNgA="),
        ("weather.raw", 0): CommittedOffset(0, ""),
    }
    assert admin.committed_offsets("never-seen") == {}
    assert GroupListing("raw", "empty", "classic") in admin.groups()
    assert admin.describe_group("never-seen").state == "dead"


def test_a_refusal_has_the_brokers_words(admin: Admin) -> None:
    with pytest.raises(PeerError, match=r"cannot create the topic 'bad name!' at .*: TOPIC_EXCEPTION: .*bad name!"):
        admin.create_topics({"bad name!": 1})
    with pytest.raises(UsageError, match="id is empty"):
        admin.committed_offsets("")


def has_answered(admin: Admin) -> bool:
    """Whether it did within its timeout, which is short."""
    with suppress(BrokerUnavailableError):
        return "flights" in admin.topics()
    return False


def test_a_broker_that_does_not_answer(broker: BrokerProcess) -> None:
    patient = Admin({"bootstrap.servers": broker.bootstrap}, timeout_ms=300)
    until(lambda: has_answered(patient), "it is connected")
    broker.pause()
    try:
        for ask in (
            patient.topics,
            patient.groups,
            lambda: patient.describe_group("raw"),
            lambda: patient.committed_offsets("raw"),
            lambda: patient.log_ends([("flights", 0)], read_committed=False),
            lambda: patient.create_topics({"late": 1}),
        ):
            with pytest.raises(BrokerUnavailableError, match=f"no Kafka broker answered at '{broker.bootstrap}'"):
                ask()
    finally:
        broker.resume()


def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """In one process, whatever the moment: an error while it is away, the same answers after."""
    with BrokerProcess(tmp_path / "data") as mortal:
        patient = Admin({"bootstrap.servers": mortal.bootstrap})
        hasty = Admin({"bootstrap.servers": mortal.bootstrap}, timeout_ms=200)
        patient.create_topics({"flights": 2})
        commit(mortal, "survivor", [TopicPartition("flights", 1, 0, metadata="bgABAAE=")])

        def answers(admin: Admin) -> tuple[Any, ...]:
            return (
                admin.describe_group("survivor"),
                admin.committed_offsets("survivor"),
                admin.log_ends([("flights", 1)], read_committed=False),
            )

        before = answers(patient)
        for _ in range(2):
            mortal.kill()
            for _ in range(2):
                with pytest.raises(BrokerUnavailableError):
                    answers(hasty)
            mortal.start()
            assert answers(patient) == before


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match=r"kafka\['bootstrap.servers'\] is missing"):
        Admin({})
    with pytest.raises(UsageError, match=r'No such configuration property: "no.such.setting"'):
        Admin({"bootstrap.servers": "127.0.0.1:9092", "no.such.setting": "1"})
