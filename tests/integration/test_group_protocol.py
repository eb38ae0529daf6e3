"""The group APIs over a plain socket, in every version that is offered."""

from __future__ import annotations

import datetime
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.coordinator.formats import OFFSETS_TOPIC, partition_for
from keylane.wire.versions import entity, request_type
from kit.protocol import ProtocolClient, decode_answer, part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SESSION_MS = 30_000
DEADLINE_S = 20.0
TOPIC = "flights"


def milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "group.min.session.timeout.ms": "100",
        "offset.metadata.max.bytes": "10",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        with ProtocolClient(process.bootstrap) as link:
            wanted = part(
                "create_topics",
                2,
                "CreatableTopic",
                name=TOPIC,
                num_partitions=3,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            answer = link.ask("create_topics", 2, topics=(wanted,), timeout=milliseconds(9_000), validate_only=False)
            assert answer.topics[0].error_code == ErrorCode.none
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ProtocolClient]:
    with ProtocolClient(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group of this test's own."""
    return str(request.node.name)


def send(client: ProtocolClient, api: str, version: int, **values: Any) -> None:
    """Send a request, with the fields that this version has."""
    client.send(api, entity(request_type(api, version), **values))


def ask(client: ProtocolClient, api: str, version: int, **values: Any) -> Any:
    send(client, api, version, **values)
    return decode_answer(api, version, client.receive())[1]


def join_values(group: str, member_id: str, version: int, **values: Any) -> dict[str, Any]:
    protocol = part("join_group", version, "JoinGroupRequestProtocol", name="range", metadata=b"sub")
    return {
        "group_id": group,
        "session_timeout": milliseconds(SESSION_MS),
        "rebalance_timeout": milliseconds(SESSION_MS),
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": (protocol,),
        "reason": "a test",
    } | values


def join(client: ProtocolClient, group: str, version: int, member_id: str = "", **values: Any) -> Any:
    """Become a member: from version 4 on with the id that the first answer gives."""
    answer = ask(client, "join_group", version, **join_values(group, member_id, version, **values))
    if answer.error_code == ErrorCode.member_id_required:
        assert version >= 4
        return join(client, group, version, answer.member_id, **values)
    return answer


def sync(client: ProtocolClient, group: str, version: int, joined: Any, **values: Any) -> Any:
    own = part("sync_group", version, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"all")
    defaults = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": (own,),
    }
    return ask(client, "sync_group", version, **defaults | values)


def commit(
    client: ProtocolClient, group: str, version: int, rows: dict[int, int | str], **values: Any
) -> dict[int, int]:
    """Commit an offset, or offset 7 with this metadata, for each partition; the error code of each."""
    partitions = tuple(
        part(
            "offset_commit",
            version,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=row if isinstance(row, int) else 7,
            committed_leader_epoch=5,
            committed_metadata=row if isinstance(row, str) else None,
        )
        for partition, row in rows.items()
    )
    topic = part("offset_commit", version, "OffsetCommitRequestTopic", name=TOPIC, partitions=partitions)
    defaults = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": milliseconds(-1),
        "topics": (topic,),
    }
    answer = ask(client, "offset_commit", version, **defaults | values)
    return {p.partition_index: int(p.error_code) for topic in answer.topics for p in topic.partitions}


Fetched = dict[tuple[str, int], tuple[int, int | None, str, int]]


def fetch(client: ProtocolClient, version: int, asked: dict[str, dict[str, list[int]] | None]) -> dict[str, Fetched]:
    """Offset, leader epoch, metadata and error code by (topic, partition), for each group."""

    def topics(name: str, wanted: dict[str, list[int]] | None) -> Any:
        if wanted is None:
            return None
        return tuple(
            part("offset_fetch", version, name, name=topic, partition_indexes=tuple(partitions))
            for topic, partitions in wanted.items()
        )

    if version >= 8:
        groups = tuple(
            part(
                "offset_fetch",
                version,
                "OffsetFetchRequestGroup",
                group_id=group,
                member_id=None,
                member_epoch=-1,
                topics=topics("OffsetFetchRequestTopics", wanted),
            )
            for group, wanted in asked.items()
        )
        answer = ask(client, "offset_fetch", version, groups=groups, require_stable=True)
        found = {row.group_id: row for row in answer.groups}
    else:
        ((group, wanted),) = asked.items()
        rows = topics("OffsetFetchRequestTopic", wanted)
        found = {group: ask(client, "offset_fetch", version, group_id=group, topics=rows, require_stable=True)}
    if version >= 2:
        assert all(row.error_code == ErrorCode.none for row in found.values())
    return {
        group: {
            (topic.name, p.partition_index): (
                p.committed_offset,
                getattr(p, "committed_leader_epoch", None),
                p.metadata,
                int(p.error_code),
            )
            for topic in row.topics
            for p in topic.partitions
        }
        for group, row in found.items()
    }


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"


def state_of(client: ProtocolClient, group: str) -> str:
    (described,) = ask(client, "describe_groups", 0, groups=(group,)).groups
    return str(described.group_state)


@pytest.mark.parametrize("version", range(5))
def test_find_coordinator(client: ProtocolClient, broker: BrokerProcess, version: int) -> None:
    values = {"key": "g", "key_type": 0, "coordinator_keys": ("g", "h")}
    answer = ask(client, "find_coordinator", version, **values)
    found = answer.coordinators if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    assert {(row.error_code, row.host, row.port) for row in found} == {(ErrorCode.none, broker.host, broker.port)}
    if version >= 1:  # of a transactional id too
        answer = ask(client, "find_coordinator", version, **(values | {"key_type": 1}))
        found = answer.coordinators if version >= 4 else [answer]
        assert {(row.error_code, row.host, row.port) for row in found} == {(ErrorCode.none, broker.host, broker.port)}


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("key_type", [2, 3])
def test_other_coordinators_are_refused(client: ProtocolClient, version: int, key_type: int) -> None:
    values = {"key": "t", "key_type": key_type, "coordinator_keys": ("t",)}
    answer = ask(client, "find_coordinator", version, **values)
    (found,) = answer.coordinators if version >= 4 else [answer]
    assert found.error_code == ErrorCode.invalid_request
    assert found.error_message
    assert found.node_id == -1


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_and_leaves(client: ProtocolClient, group: str, version: int) -> None:
    joined = join(client, group, version)
    assert joined.error_code == ErrorCode.none
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [(member.member_id, member.metadata) for member in joined.members] == [(joined.member_id, b"sub")]
    synced = sync(client, group, min(version, 5), joined)
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
    beat = {"group_id": group, "generation_id": 1, "member_id": joined.member_id, "group_instance_id": None}
    assert ask(client, "heartbeat", min(version, 4), **beat).error_code == ErrorCode.none
    assert (
        ask(client, "heartbeat", min(version, 4), **beat | {"generation_id": 0}).error_code
        == ErrorCode.illegal_generation
    )
    left = leave(client, group, min(version, 5), joined.member_id)
    assert left == [0, 0] if min(version, 5) >= 3 else left == [0]
    assert state_of(client, group) == "Empty"
    assert ask(client, "heartbeat", min(version, 4), **beat).error_code == ErrorCode.unknown_member_id


def leave(client: ProtocolClient, group: str, version: int, member_id: str) -> list[int]:
    """The error of the whole, then those of the members."""
    values: dict[str, Any] = {"member_id": member_id}
    if version >= 3:
        row = part("leave_group", version, "MemberIdentity", member_id=member_id, group_instance_id=None, reason=None)
        values["members"] = (row,)
    answer = ask(client, "leave_group", version, group_id=group, **values)
    return [int(answer.error_code), *(int(row.error_code) for row in getattr(answer, "members", ()))]


@pytest.mark.parametrize("version", range(6))
def test_leaving_a_group_without_being_a_member(client: ProtocolClient, group: str, version: int) -> None:
    unknown = int(ErrorCode.unknown_member_id)
    assert leave(client, group, version, "nobody") == ([0, unknown] if version >= 3 else [unknown])


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_member_comes_back(client: ProtocolClient, broker: BrokerProcess, group: str, version: int) -> None:
    first = join(client, group, version, group_instance_id="one")
    assert sync(client, group, 5, first, group_instance_id="one").assignment == b"all"
    with ProtocolClient(broker.bootstrap) as other:
        second = join(other, group, version, group_instance_id="one")
        assert (second.error_code, second.generation_id) == (ErrorCode.none, 1)
        assert second.member_id != first.member_id
        if version >= 9:
            assert second.skip_assignment
            assert second.leader == second.member_id
        assert sync(other, group, 5, second, group_instance_id="one", assignments=()).assignment == b"all"
    fenced = sync(client, group, 5, first, group_instance_id="one")
    assert fenced.error_code == ErrorCode.fenced_instance_id


def test_a_follower_waits_while_its_connection_is_used_by_nobody_else(
    client: ProtocolClient, broker: BrokerProcess, group: str
) -> None:
    """A second member's join waits for the first one's; both get the same generation."""
    first = join(client, group, 9)
    sync(client, group, 5, first)
    with ProtocolClient(broker.bootstrap) as other:
        told = ask(other, "join_group", 9, **join_values(group, "", 9))
        send(other, "join_group", 9, **join_values(group, told.member_id, 9))
        beat = {"group_id": group, "generation_id": 1, "member_id": first.member_id, "group_instance_id": None}
        in_progress = ErrorCode.rebalance_in_progress
        eventually(lambda: ask(client, "heartbeat", 4, **beat).error_code == in_progress)
        again = join(client, group, 9, first.member_id)
        second = decode_answer("join_group", 9, other.receive())[1]
    assert (again.generation_id, second.generation_id) == (2, 2)
    assert {row.member_id for row in again.members} == {first.member_id, second.member_id}
    assert second.members == ()


def test_a_silent_member_is_out(client: ProtocolClient, group: str) -> None:
    joined = join(client, group, 9, session_timeout=milliseconds(2_000))
    sync(client, group, 5, joined)
    assert state_of(client, group) == "Stable"
    eventually(lambda: state_of(client, group) == "Empty")


@pytest.mark.parametrize("session_ms", [99, 1_800_001])
def test_session_timeouts_out_of_bounds(client: ProtocolClient, group: str, session_ms: int) -> None:
    refused = join(client, group, 9, session_timeout=milliseconds(session_ms))
    assert refused.error_code == ErrorCode.invalid_session_timeout


@pytest.mark.parametrize("version", range(2, 10))
def test_commit_and_fetch(client: ProtocolClient, group: str, version: int) -> None:
    assert commit(client, group, version, {0: 41, 2: "mäp\0"}) == {0: 0, 2: 0}
    epoch = 5 if version >= 6 else -1
    nothing = (-1, -1, "", 0)
    for fetch_version in range(1, 10):
        found = fetch(client, fetch_version, {group: {TOPIC: [0, 1, 2, 3], "nowhere": [0]}})[group]
        expected: Fetched = {
            (TOPIC, 0): (41, epoch, "", 0),
            (TOPIC, 1): nothing,
            (TOPIC, 2): (7, epoch, "mäp\0", 0),
            (TOPIC, 3): (-1, -1, "", int(ErrorCode.unknown_topic_or_partition)),
            ("nowhere", 0): (-1, -1, "", int(ErrorCode.unknown_topic_or_partition)),
        }
        if fetch_version < 5:
            expected = {key: (offset, None, text, code) for key, (offset, _, text, code) in expected.items()}
        assert found == expected


@pytest.mark.parametrize("version", range(1, 10))
def test_all_offsets_of_a_group(client: ProtocolClient, group: str, version: int) -> None:
    commit(client, group, 9, {1: 3})
    everything: dict[str, list[int]] | None = {} if version < 2 else None
    assert set(fetch(client, version, {group: everything})[group]) == {(TOPIC, 1)}
    assert fetch(client, version, {"nobody": everything})["nobody"] == {}


def test_no_topics_are_not_all_topics(client: ProtocolClient, group: str) -> None:
    commit(client, group, 9, {1: 3})
    for version in range(2, 10):
        assert fetch(client, version, {group: {}})[group] == {}


@pytest.mark.parametrize("version", [8, 9])
def test_many_groups_in_one_fetch(client: ProtocolClient, group: str, version: int) -> None:
    commit(client, f"{group}-a", 9, {0: 1})
    commit(client, f"{group}-b", 9, {0: 2})
    found = fetch(client, version, {f"{group}-a": None, f"{group}-b": {TOPIC: [0, 1]}, f"{group}-c": None})
    assert [len(rows) for rows in found.values()] == [1, 2, 0]
    assert found[f"{group}-b"][TOPIC, 0][0] == 2


def test_a_bad_partition_is_refused_alone(client: ProtocolClient, group: str) -> None:
    too_large, unknown = int(ErrorCode.offset_metadata_too_large), int(ErrorCode.unknown_topic_or_partition)
    codes = commit(client, group, 9, {0: "ten chars!", 1: "eleven char", 2: 5, 3: 6})
    assert codes == {0: 0, 1: too_large, 2: 0, 3: unknown}
    found = fetch(client, 9, {group: {TOPIC: [0, 1, 2]}})[group]
    assert [row[0] for row in found.values()] == [7, -1, 5]


@pytest.mark.parametrize("version", range(2, 10))
def test_commits_of_members(client: ProtocolClient, group: str, version: int) -> None:
    joined = join(client, group, 9)
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
    assert commit(client, group, version, {0: 1}, **member) == {0: int(ErrorCode.rebalance_in_progress)}
    sync(client, group, 5, joined)
    assert commit(client, group, version, {0: 1}, **member) == {0: 0}
    stale = member | {"generation_id_or_member_epoch": 0}
    assert commit(client, group, version, {0: 2}, **stale) == {0: int(ErrorCode.illegal_generation)}
    assert commit(client, group, version, {0: 2}) == {0: int(ErrorCode.unknown_member_id)}
    missing = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
    assert commit(client, f"{group}-none", version, {0: 2}, **member) == {0: int(missing)}
    assert fetch(client, 9, {group: {TOPIC: [0]}})[group][TOPIC, 0][0] == 1


def test_pipelined_commits_are_answered_in_order(client: ProtocolClient, group: str) -> None:
    """Many requests in flight on one connection: the last one wins, and reads see it."""
    row = part(
        "offset_commit",
        9,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=0,
        committed_leader_epoch=-1,
        committed_metadata=None,
    )
    numbers = []
    for offset in range(200):
        partitions = (
            type(row)(partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=None),
        )
        topic = part("offset_commit", 9, "OffsetCommitRequestTopic", name=TOPIC, partitions=partitions)
        kind = request_type("offset_commit", 9)
        numbers.append(client.send("offset_commit", kind(group_id=group, member_id="", topics=(topic,))))
    answers = [decode_answer("offset_commit", 9, client.receive()) for _ in numbers]
    assert [number for number, _ in answers] == numbers
    assert all(answer.topics[0].partitions[0].error_code == ErrorCode.none for _, answer in answers)
    assert fetch(client, 9, {group: {TOPIC: [0]}})[group][TOPIC, 0][0] == 199


@pytest.mark.parametrize("version", range(6))
def test_describing_and_listing(client: ProtocolClient, group: str, version: int) -> None:
    joined = join(client, group, 9)
    sync(client, group, 5, joined)
    commit(client, f"{group}-simple", 9, {0: 1})
    values = {"groups": (group, f"{group}-simple", f"{group}-none"), "include_authorized_operations": False}
    stable, simple, none = ask(client, "describe_groups", version, **values).groups
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    (member,) = stable.members
    assert (member.client_id, member.client_host, member.member_metadata, member.member_assignment) == (
        "keylane-testing",
        "/127.0.0.1",
        b"sub",
        b"all",
    )
    assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", ())
    assert (none.group_state, none.error_code) == ("Dead", ErrorCode.none)
    listed = {
        row.group_id: row for row in ask(client, "list_groups", version, states_filter=(), types_filter=()).groups
    }
    assert (listed[group].protocol_type, listed[f"{group}-simple"].protocol_type) == ("consumer", "")
    assert f"{group}-none" not in listed
    if version >= 4:
        assert (listed[group].group_state, listed[f"{group}-simple"].group_state) == ("Stable", "Empty")
        wanted = ask(client, "list_groups", version, states_filter=("stable",), types_filter=())
        assert {row.group_state for row in wanted.groups} == {"Stable"}
    if version >= 5:
        assert {row.group_type for row in listed.values()} == {"classic"}
        assert ask(client, "list_groups", version, states_filter=(), types_filter=("Consumer",)).groups == ()


@pytest.mark.parametrize("version", range(3))
def test_deleting_groups(client: ProtocolClient, group: str, version: int) -> None:
    joined = join(client, group, 9)
    sync(client, group, 5, joined)
    commit(client, f"{group}-simple", 9, {0: 1, 2: 3})
    wanted = (group, f"{group}-simple", f"{group}-none", "")
    answer = ask(client, "delete_groups", version, groups_names=wanted)
    assert {row.group_id: row.error_code for row in answer.results} == {
        group: ErrorCode.non_empty_group,
        f"{group}-simple": ErrorCode.none,
        f"{group}-none": ErrorCode.group_id_not_found,
        "": ErrorCode.group_id_not_found,
    }
    assert fetch(client, 9, {f"{group}-simple": None})[f"{group}-simple"] == {}
    assert state_of(client, f"{group}-simple") == "Dead"
    leave(client, group, 5, joined.member_id)
    (row,) = ask(client, "delete_groups", version, groups_names=(group,)).results
    assert row.error_code == ErrorCode.none
    assert state_of(client, group) == "Dead"


def test_deleting_offsets(client: ProtocolClient, group: str) -> None:
    def delete(name: str, partitions: list[int]) -> Any:
        rows = tuple(part("offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=p) for p in partitions)
        topic = part("offset_delete", 0, "OffsetDeleteRequestTopic", name=TOPIC, partitions=rows)
        return ask(client, "offset_delete", 0, group_id=name, topics=(topic,))

    commit(client, group, 9, {0: 1, 1: 2})
    answer = delete(group, [1, 2, 99])
    assert answer.error_code == ErrorCode.none
    (topic,) = answer.topics
    assert [row.error_code for row in topic.partitions] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert set(fetch(client, 9, {group: None})[group]) == {(TOPIC, 0)}
    refused = delete(f"{group}-none", [0])
    assert (refused.error_code, refused.topics) == (ErrorCode.group_id_not_found, ())


def has_only_the_first(link: ProtocolClient, group: str) -> bool:
    return set(fetch(link, 9, {group: None})[group]) == {(TOPIC, 0)}


def test_a_retention_time_of_the_commits_own(tmp_path: Path) -> None:
    """On a broker that checks often; there, empty groups without offsets go at once, too."""
    settings = {"offsets.retention.check.interval.ms": "50", "num.partitions": "3"}
    with BrokerProcess(tmp_path / "data", settings=settings) as own, ProtocolClient(own.bootstrap) as link:
        ask(link, "metadata", 1, topics=(part("metadata", 1, "MetadataRequestTopic", name=TOPIC),))  # it is made
        for version in range(2, 5):
            group = f"version-{version}"
            assert commit(link, group, version, {0: 1}, retention_time=milliseconds(60_000)) == {0: 0}
            assert commit(link, group, version, {1: 1}, retention_time=milliseconds(1)) == {1: 0}
            eventually(partial(has_only_the_first, link, group))


def test_a_node_that_owns_a_part_of_the_offsets_partitions(tmp_path: Path) -> None:
    """FindCoordinator, the group APIs and readers of `__consumer_offsets` are told so."""
    settings = {"offsets.topic.num.partitions": "2", "keylane.owned.offsets.partitions": "1"}
    owners = {partition_for(group, 2): group for group in ("a", "b")}
    assert len(owners) == 2
    with BrokerProcess(tmp_path / "data", settings=settings) as node, ProtocolClient(node.bootstrap) as link:
        ask(link, "metadata", 1, topics=(part("metadata", 1, "MetadataRequestTopic", name=TOPIC),))  # it is made
        answer = ask(link, "find_coordinator", 4, key_type=0, coordinator_keys=(owners[0], owners[1]))
        other, mine = answer.coordinators
        assert (other.error_code, other.node_id) == (ErrorCode.coordinator_not_available, -1)
        assert "keylane.owned.offsets.partitions" in other.error_message
        assert (mine.error_code, mine.port) == (ErrorCode.none, node.port)
        assert commit(link, owners[0], 9, {0: 1}) == {0: int(ErrorCode.not_coordinator)}
        assert commit(link, owners[1], 9, {0: 1}) == {0: 0}
        (topic,) = ask(
            link, "metadata", 1, topics=(part("metadata", 1, "MetadataRequestTopic", name=OFFSETS_TOPIC),)
        ).topics
        assert {row.partition_index: (row.leader_id, row.error_code) for row in topic.partitions} == {
            0: (-1, ErrorCode.leader_not_available),
            1: (node_id(link), ErrorCode.none),
        }
        rows = tuple(
            part("list_offsets", 1, "ListOffsetsPartition", partition_index=index, timestamp=-1) for index in range(3)
        )
        wanted = part("list_offsets", 1, "ListOffsetsTopic", name=OFFSETS_TOPIC, partitions=rows)
        (ends,) = ask(link, "list_offsets", 1, replica_id=-1, topics=(wanted,)).topics
        assert [(row.error_code, row.offset) for row in ends.partitions] == [
            (ErrorCode.not_leader_or_follower, -1),
            (ErrorCode.none, 1),
            (ErrorCode.unknown_topic_or_partition, -1),
        ]


def node_id(link: ProtocolClient) -> int:
    (broker,) = ask(link, "metadata", 1, topics=()).brokers
    return int(broker.node_id)
