"""What a broker answers about consumer groups of KIP-848, and writes of them: the same asserts on ours and on Apache
Kafka. Each test has a group and topics of its own."""

from __future__ import annotations

import datetime
import functools
import itertools
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from keylane.coordinator.consumer_groups.records import (
    CURRENT,
    MEMBER,
    PATTERN,
    STABLE,
    TARGET,
    TARGET_EPOCH,
    Current,
    Member,
    Record,
    TargetAssignment,
    decode,
    encode,
)
from keylane.coordinator.consumer_groups.records import GROUP as GROUP_EPOCH
from keylane.coordinator.formats import partition_for
from keylane.errors import PeerError
from keylane.kafka.group_times import GroupTimes, ask_group_times
from kit import protocol
from kit.either_broker import either_broker
from kit.protocol import ProtocolClient, part

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator

NUMBERS = itertools.count()
DEADLINE_S = 30.0
until = functools.partial(protocol.until, within_s=DEADLINE_S)
MS = datetime.timedelta(milliseconds=1)
NONE, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 0, 15, 16
UNKNOWN_MEMBER_ID, INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 25, 42, 68, 69
FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID = 82, 110, 111
UNSUPPORTED_ASSIGNOR, STALE_MEMBER_EPOCH, INVALID_REGULAR_EXPRESSION, INVALID_CONFIG = 112, 113, 128, 40
ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS = 22, 23, 27
UNSUPPORTED_VERSION, MEMBER_ID_REQUIRED = 35, 79
GROUP = 32
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker.bootstrap


class Group:
    """One group, and the topics that its members subscribe to: `<prefix>-a` of 3 partitions, `<prefix>-b` of 2."""

    def __init__(self, client: ProtocolClient) -> None:
        self.client = client
        number = next(NUMBERS)
        self.name, self.topics = f"group-{number}", (f"t{number}-a", f"t{number}-b")
        for topic, count in zip(self.topics, (3, 2), strict=True):
            self.create(topic, count)
        self.epochs: dict[str, int] = {}
        self.has: dict[str, dict[str, set[int]]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        for name in self.topics:
            found = self.topic_id(name)
            assert found is not None
            self.ids[name] = found
        until(lambda: self.ask("nobody", epoch=5).error_code, lambda code: code == GROUP_ID_NOT_FOUND)
        warm = (f"{self.name}-{attempt}" for attempt in itertools.count())  # coordinators learn of topics later
        until(lambda: self.given(self.ask("m", group_id=next(warm))), lambda given: given.keys() == set(self.topics))

    def create(self, topic: str, count: int) -> None:
        wanted = part(
            "create_topics", 7, "CreatableTopic", name=topic, num_partitions=count, replication_factor=1,
            assignments=(), configs=(),
        )  # fmt: skip
        self.client.ask("create_topics", 7, topics=(wanted,), timeout=10_000 * MS, validate_only=False)
        until(lambda: self.topic_id(topic), lambda found: found is not None)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        row = part("metadata", 12, "MetadataRequestTopic", topic_id=None, name=topic)
        answer = self.client.ask(
            "metadata", 12, topics=(row,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        found: uuid.UUID | None = answer.topics[0].topic_id
        return found or None

    def ask(self, member: str, epoch: int = 0, version: int = 1, **said: Any) -> Any:
        """A heartbeat; one that joins says what has to be said."""
        values: dict[str, Any] = {
            "group_id": self.name, "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
            "rebalance_timeout": -1 * MS, "subscribed_topic_names": None, "server_assignor": None,
            "topic_partitions": None,
        }  # fmt: skip
        if version:
            values["subscribed_topic_regex"] = None
        if epoch == 0:
            names = self.topics if "subscribed_topic_regex" not in said else ()
            values |= {"rebalance_timeout": 30_000 * MS, "topic_partitions": (), "subscribed_topic_names": names}
        return self.client.ask("consumer_group_heartbeat", version, **(values | said))

    def owned(self, given: dict[str, set[int]]) -> tuple[Any, ...]:
        return tuple(
            part("consumer_group_heartbeat", 1, "TopicPartitions", topic_id=self.ids[name], partitions=tuple(ones))
            for name, ones in given.items()
        )

    def given(self, answer: Any) -> dict[str, set[int]] | None:
        assert answer.error_code == NONE, answer
        if answer.assignment is None:
            return None
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return {names[row.topic_id]: set(row.partitions) for row in answer.assignment.topic_partitions}

    def refused(self, member: str = "x", epoch: int = 0, version: int = 1, **said: Any) -> tuple[int, str]:
        answer = self.ask(member, epoch, version, **said)
        assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
        return int(answer.error_code), answer.error_message

    def describe(self, version: int = 1) -> Any:
        answer = self.client.ask(
            "consumer_group_describe", version, group_ids=(self.name,), include_authorized_operations=False
        )
        return answer.groups[0]

    def settle(self, *joined: Any) -> dict[str, dict[str, set[int]]]:
        """Heartbeats of all, each giving back what it has to, until the group is stable; who has what."""
        epochs, has = self.epochs, self.has
        epochs |= {answer.member_id: answer.member_epoch for answer in joined}
        has |= {answer.member_id: self.given(answer) or {} for answer in joined}
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for name in epochs:
                answer = self.ask(name, epochs[name], topic_partitions=self.owned(has[name]))
                epochs[name] = answer.member_epoch
                given = self.given(answer)
                has[name] = has[name] if given is None else given
            group = self.describe()
            if group.group_state == "Stable" and all(epoch == group.group_epoch for epoch in epochs.values()):
                return has
            assert time.monotonic() < deadline, group


@pytest.fixture
def client(bootstrap: str) -> Iterator[ProtocolClient]:
    with ProtocolClient(bootstrap) as connection:
        yield connection


@pytest.fixture
def group(client: ProtocolClient) -> Group:
    client.ask("find_coordinator", 4, key_type=0, coordinator_keys=("any",))
    return Group(client)


def test_a_member_joins_an_empty_group(group: Group) -> None:
    answer = group.ask("m1")
    a, b = group.topics
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval) == ("m1", 2, 500 * MS)
    assert group.given(answer) == {a: {0, 1, 2}, b: {0, 1}}
    again = group.ask("m1", answer.member_epoch)
    assert (again.member_epoch, again.assignment) == (2, None)


def test_version_0_makes_ids(group: Group) -> None:
    answer = group.ask("", version=0)
    assert answer.error_code == NONE
    assert len(answer.member_id) == 22
    assert group.refused("") == (INVALID_REQUEST, "MemberId can't be empty.")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rebalance_timeout": -1 * MS}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"epoch": -2}, "InstanceId can't be null."),
        ({"epoch": -3}, "MemberEpoch is invalid."),
    ],
)
def test_malformed_requests(group: Group, said: dict[str, Any], message: str) -> None:
    assert group.refused(**said) == (INVALID_REQUEST, message)


def test_unknown_assignors_groups_and_members(group: Group) -> None:
    assert group.refused(server_assignor="nope") == (
        UNSUPPORTED_ASSIGNOR,
        "ServerAssignor nope is not supported. Supported assignors: uniform, range.",
    )
    assert group.refused(epoch=5) == (GROUP_ID_NOT_FOUND, f"Consumer group {group.name} not found.")
    assert group.refused(epoch=-1) == (GROUP_ID_NOT_FOUND, f"Group {group.name} not found.")
    group.ask("m1")
    message = f"Member x is not a member of group {group.name}."
    assert group.refused(epoch=5) == (UNKNOWN_MEMBER_ID, message)
    assert group.refused(epoch=-1) == (UNKNOWN_MEMBER_ID, message)
    assert group.refused(epoch=-2, instance_id="i9") == (UNKNOWN_MEMBER_ID, "Instance id i9 is unknown.")


@pytest.mark.parametrize("pattern", ["a(", "a(?=b)", "(a)\\1", "[b-a]", "[a", "a**", "*a", "a{1001}", "a\\", "(?>a)"])
def test_invalid_expressions(group: Group, pattern: str) -> None:
    """RE2 and RE2/J give their reasons in other words."""
    code, message = group.refused(subscribed_topic_regex=pattern)
    assert code == INVALID_REGULAR_EXPRESSION
    assert message is not None
    assert re.fullmatch(
        rf"SubscribedTopicRegex `{re.escape(pattern)}` is not a valid regular expression: .+\.", message
    )


def test_epochs_fence(group: Group) -> None:
    epoch = group.ask("m1").member_epoch
    for other, how in ((epoch + 9, "greater"), (epoch - 1, "smaller")):
        message = (
            f"The consumer group member has a {how} member epoch ({other}) than the one known by the group coordinator "
            f"({epoch}). The member must abandon all its partitions and rejoin."
        )
        assert group.refused("m1", other) == (FENCED_MEMBER_EPOCH, message)
    # A member that lost everything joins again under its id, and has what it had.
    again = group.ask("m1")
    assert again.member_epoch >= epoch
    assert sum(map(len, (group.given(again) or {}).values())) == 5


def test_a_partition_is_given_back_before_another_has_it(group: Group) -> None:
    a, b = group.topics
    first = group.ask("m1")
    has = group.given(first)
    assert has is not None
    second = group.ask("m2")
    assert (second.member_epoch, group.given(second)) == (3, {})
    told = group.ask("m1", first.member_epoch, topic_partitions=group.owned(has))
    kept = group.given(told)
    assert kept is not None
    assert told.member_epoch == first.member_epoch, "it stays in its epoch until it has given back"
    assert sum(map(len, kept.values())) == 3
    waiting = group.ask("m2", second.member_epoch)
    assert waiting.assignment is None
    assert group.describe().group_state == "Reconciling"
    done = group.ask("m1", first.member_epoch, topic_partitions=group.owned(kept))
    assert (done.member_epoch, done.assignment) == (3, None)
    got = group.given(group.ask("m2", second.member_epoch))
    assert got is not None
    every = {(topic, one) for has in (kept, got) for topic, ones in has.items() for one in ones}
    assert every == {(a, 0), (a, 1), (a, 2), (b, 0), (b, 1)}
    assert group.describe().group_state == "Stable"


def test_who_leaves_makes_room(group: Group) -> None:
    first, second = group.ask("m1"), group.ask("m2")
    group.settle(first, second)
    epoch = group.describe().group_epoch
    left = group.ask("m2", -1)
    assert (left.error_code, left.member_id, left.member_epoch, left.heartbeat_interval) == (NONE, "m2", -1, 0 * MS)
    found = group.describe()
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Assigning", epoch + 1, epoch)
    del group.epochs["m2"]
    has = group.settle()
    assert sum(map(len, has["m1"].values())) == 5


@pytest.mark.parametrize(
    ("assignor", "expected"),
    [("range", [{"a": {0, 1}, "b": {0}}, {"a": {2}, "b": {1}}]), ("uniform", [3, 2])],
)
def test_assignors(group: Group, assignor: str, expected: list[Any]) -> None:
    has = group.settle(*(group.ask(name, server_assignor=assignor) for name in ("m1", "m2")))
    assert group.describe().assignor_name == assignor
    if assignor == "range":
        assert [{topic[-1]: ones for topic, ones in has[name].items()} for name in ("m1", "m2")] == expected
    else:
        assert sorted((sum(map(len, ones.values())) for ones in has.values()), reverse=True) == expected


def test_static_members(group: Group) -> None:
    first = group.ask("m1", instance_id="i1")
    has = group.given(first)
    assert group.refused("m2", instance_id="i1") == (
        UNRELEASED_INSTANCE_ID,
        "Static member m2 with instance id i1 cannot join the group because the instance id is owned by m1 member.",
    )
    fenced = (FENCED_INSTANCE_ID, "Static member m2 with instance id i1 was fenced by member m1.")
    assert group.refused("m2", first.member_epoch, instance_id="i1") == fenced
    assert group.refused("m2", -2, instance_id="i1") == fenced
    away = group.ask("m1", -2, instance_id="i1")
    assert (away.error_code, away.member_id, away.member_epoch) == (NONE, "m1", -2)
    assert [(one.member_id, one.member_epoch) for one in group.describe().members] == [("m1", -2)]
    back = group.ask("m3", instance_id="i1")
    assert (back.member_epoch, group.given(back)) == (first.member_epoch, has)
    assert group.refused("m1", first.member_epoch, instance_id="i1")[0] == FENCED_INSTANCE_ID
    left = group.ask("m3", -1, instance_id="i1")
    assert (left.error_code, left.member_epoch) == (NONE, -1)
    assert group.describe().group_state == "Empty"


def test_an_expression_finds_the_brokers_own_topic_of_offsets(group: Group) -> None:
    """It is there since a group has committed."""
    row = part(
        "offset_commit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1, committed_metadata=""
    )
    topic = part("offset_commit", 2, "OffsetCommitRequestTopic", name=group.topics[0], partitions=(row,))
    said = {"group_id": f"{group.name}-commits", "generation_id_or_member_epoch": -1, "member_id": ""}
    group.client.ask("offset_commit", 2, **said, retention_time=-1 * MS, topics=(topic,))
    found = until(lambda: group.topic_id("__consumer_offsets"), lambda found: found is not None)
    group.ids["__consumer_offsets"] = found
    joined = group.ask("m1", subscribed_topic_regex="__consumer_offset.*")
    has = until(lambda: group.settle(joined), lambda has: bool(has["m1"]))
    assert has["m1"].keys() == {"__consumer_offsets"}
    assert has["m1"]["__consumer_offsets"] == set(range(len(has["m1"]["__consumer_offsets"])))


def test_expressions_follow_the_topics(group: Group) -> None:
    prefix = group.topics[0][:-1]
    joined = group.ask("m1", subscribed_topic_regex=f"{prefix}[abc]")
    until(lambda: group.settle(joined), lambda has: sum(map(len, has["m1"].values())) == 5)
    (member,) = group.describe().members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), f"{prefix}[abc]")


def test_describe(group: Group) -> None:
    answer = group.ask("m1", rack_id="r1", instance_id="i1")
    for version in (0, 1):
        found = group.describe(version)
        assert (found.error_code, found.error_message, found.group_state) == (NONE, None, "Stable")
        assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (2, 2, "uniform")
        (member,) = found.members
        assert (member.member_id, member.instance_id, member.rack_id) == ("m1", "i1", "r1")
        assert (member.member_epoch, member.client_id) == (answer.member_epoch, "keylane-testing")
        assert member.client_host == "/127.0.0.1"
        assert sorted(member.subscribed_topic_names) == sorted(group.topics)
        assert member.subscribed_topic_regex == ""
        rows = {row.topic_name: (row.topic_id, set(row.partitions)) for row in member.assignment.topic_partitions}
        a, b = group.topics
        assert rows == {a: (group.ids[a], {0, 1, 2}), b: (group.ids[b], {0, 1})}
        target = {row.topic_name: set(row.partitions) for row in member.target_assignment.topic_partitions}
        assert target == {a: {0, 1, 2}, b: {0, 1}}
        assert getattr(member, "member_type", 1) == 1
    for name, expected in (
        ("nobody", (GROUP_ID_NOT_FOUND, "Group nobody not found.")),
        ("", (24, None)),
    ):
        (other,) = group.client.ask(
            "consumer_group_describe", 1, group_ids=(name,), include_authorized_operations=False
        ).groups
        assert (other.error_code, other.error_message) == expected
        assert (other.group_state, other.group_epoch, other.assignor_name, other.members) == ("", 0, "", ())


def test_the_classic_apis_on_such_a_group(group: Group) -> None:
    group.ask("m1")
    (described,) = group.client.ask(
        "describe_groups", 5, groups=(group.name,), include_authorized_operations=False
    ).groups
    assert (described.error_code, described.group_state, described.members) == (NONE, "Dead", ())

    def listed(states: tuple[str, ...], types: tuple[str, ...]) -> list[tuple[str, str, str]]:
        rows = group.client.ask("list_groups", 5, states_filter=states, types_filter=types).groups
        return [(row.protocol_type, row.group_state, row.group_type) for row in rows if row.group_id == group.name]

    assert listed((), ()) == listed(("stable",), ("Consumer",)) == [("consumer", "Stable", "consumer")]
    assert listed(("empty",), ()) == listed((), ("classic",)) == []

    def delete() -> int:
        return int(group.client.ask("delete_groups", 2, groups_names=(group.name,)).results[0].error_code)

    assert delete() == NON_EMPTY_GROUP
    group.ask("m1", -1)
    assert listed((), ()) == [("consumer", "Empty", "consumer")]
    assert delete() == NONE
    assert group.describe().error_code == GROUP_ID_NOT_FOUND
    assert delete() == GROUP_ID_NOT_FOUND


def commit(group: Group, member: str, epoch: int, partition: int = 0, topic_number: int = 0, version: int = 9) -> int:
    row = part(
        "offset_commit", version, "OffsetCommitRequestPartition", partition_index=partition, committed_offset=7,
        committed_leader_epoch=-1, committed_metadata="",
    )  # fmt: skip
    name = group.topics[topic_number]
    topic = part("offset_commit", version, "OffsetCommitRequestTopic", name=name, partitions=(row,))
    answer = group.client.ask(
        "offset_commit", version, group_id=group.name, generation_id_or_member_epoch=epoch, member_id=member,
        group_instance_id=None, topics=(topic,),
    )  # fmt: skip
    return int(answer.topics[0].partitions[0].error_code)


def fetch(group: Group, member: str | None, epoch: int) -> tuple[int, list[int]]:
    topic = part("offset_fetch", 9, "OffsetFetchRequestTopics", name=group.topics[0], partition_indexes=(0,))
    asked = part(
        "offset_fetch", 9, "OffsetFetchRequestGroup", group_id=group.name, member_id=member, member_epoch=epoch,
        topics=(topic,),
    )  # fmt: skip
    (found,) = group.client.ask("offset_fetch", 9, groups=(asked,), require_stable=False).groups
    return int(found.error_code), [one.committed_offset for row in found.topics for one in row.partitions]


def test_commits_and_fetches_have_epochs(group: Group) -> None:
    first = group.ask("m1")
    assert commit(group, "m1", first.member_epoch) == NONE
    assert commit(group, "m1", first.member_epoch + 1) == STALE_MEMBER_EPOCH
    assert commit(group, "m1", first.member_epoch - 1) == STALE_MEMBER_EPOCH
    assert commit(group, "m9", first.member_epoch) == UNKNOWN_MEMBER_ID
    assert commit(group, "", -1) == UNKNOWN_MEMBER_ID
    for _ in range(2):  # the second time it is a request like one before
        assert fetch(group, "m1", first.member_epoch) == (NONE, [7])
        assert fetch(group, None, -1) == (NONE, [7])
        assert fetch(group, "m1", first.member_epoch + 1)[0] == STALE_MEMBER_EPOCH
        assert fetch(group, "m9", first.member_epoch)[0] == UNKNOWN_MEMBER_ID
    # In a newer epoch, what the member had in the older one can still be committed with it (KIP-1251).
    second = group.ask("m2")
    has = group.settle(first, second)
    kept, gone = (
        [(one, number) for number, name in enumerate(group.topics) for one in has[member].get(name, ())]
        for member in ("m1", "m2")
    )
    assert [commit(group, "m1", first.member_epoch, *one) for one in kept] == [NONE] * len(kept)
    assert [commit(group, "m1", first.member_epoch, *one) for one in gone] == [STALE_MEMBER_EPOCH] * len(gone)
    group.ask("m1", -1)
    group.ask("m2", -1)
    assert commit(group, "", -1) == NONE


def alter(group: Group, name: str, value: str | None, resource: str | None = None, how: int = 0) -> tuple[int, str]:
    config = part("incremental_alter_configs", 1, "AlterableConfig", name=name, config_operation=how, value=value)
    wanted = part(
        "incremental_alter_configs", 1, "AlterConfigsResource", resource_type=GROUP,
        resource_name=group.name if resource is None else resource, configs=(config,),
    )  # fmt: skip
    (answer,) = group.client.ask("incremental_alter_configs", 1, resources=(wanted,), validate_only=False).responses
    return int(answer.error_code), answer.error_message or ""


def config(group: Group, name: str, resource: str | None = None) -> Any:
    wanted = part(
        "describe_configs", 4, "DescribeConfigsResource", resource_type=GROUP,
        resource_name=group.name if resource is None else resource, configuration_keys=(name,),
    )  # fmt: skip
    (found,) = group.client.ask(
        "describe_configs", 4, resources=(wanted,), include_synonyms=True, include_documentation=False
    ).results
    return found


def test_configs_of_groups(group: Group) -> None:
    session = "consumer.session.timeout.ms"
    (found,) = config(group, session).configs
    assert (found.value, found.config_source, found.read_only, found.config_type) == ("45000", 5, False, 3)
    assert [tuple(vars_of(one)) for one in found.synonyms] == [(f"group.{session}", "45000", 5)]
    assert alter(group, session, "50000") == (NONE, "")
    until(lambda: config(group, session).configs[0].value, lambda value: value == "50000")
    (found,) = config(group, session).configs
    assert found.config_source == 8
    assert [tuple(vars_of(one)) for one in found.synonyms] == [(session, "50000", 8), (f"group.{session}", "45000", 5)]
    offered = group.client.ask("api_versions", 4, client_software_name="test", client_software_version="1").api_keys
    is_4_3 = next(one.max_version for one in offered if one.api_key == 18) < 5
    too_short, too_long = "in the range 45000 to 60000 inclusive.", "in the range 45000 to 60000 inclusive."
    if is_4_3:
        too_short = "greater than or equal to group.consumer.min.session.timeout.ms"
        too_long = "less than or equal to group.consumer.max.session.timeout.ms"
    for name, value, message in (
        (session, "5", f"{session} must be {too_short}"),
        (session, "60001", f"{session} must be {too_long}"),
        (session, "x", f"Invalid value x for configuration {session}: Not a number of type INT"),
        ("nope", "1", "Unknown group config name: nope"),
    ):
        assert alter(group, name, value) == (INVALID_CONFIG, message)
    assert alter(group, session, "1", resource="") == (INVALID_REQUEST, "Default group resources are not allowed.")
    nameless = config(group, session, resource="")
    assert (nameless.error_code, nameless.error_message) == (INVALID_REQUEST, "Group name must not be empty")
    assert alter(group, "consumer.heartbeat.interval.ms", "700") == (NONE, "")
    until(lambda: group.ask("m1").heartbeat_interval, lambda interval: interval == 700 * MS)
    assert alter(group, session, None, how=1) == (NONE, "")
    until(lambda: config(group, session).configs[0].value, lambda value: value == "45000")


def test_a_member_hears_how_long_it_may_be_silent(group: Group, bootstrap: str) -> None:
    kafka = {"bootstrap.servers": bootstrap, "group.id": group.name}
    assert ask_group_times(kafka, bootstrap, DEADLINE_S) == GroupTimes(45.0, 0.5)
    assert alter(group, "consumer.session.timeout.ms", "50000") == (NONE, "")
    until(lambda: ask_group_times(kafka, bootstrap, DEADLINE_S), lambda times: times == GroupTimes(50.0, 0.5))
    with pytest.raises(PeerError, match="error 42 of DescribeConfigs: Group name must not be empty"):
        ask_group_times(kafka | {"group.id": ""}, bootstrap, DEADLINE_S)


def vars_of(synonym: Any) -> tuple[str, str, int]:
    return synonym.name, synonym.value, synonym.source


def test_records(group: Group, bootstrap: str) -> None:
    """Both write the same kinds of records, and each reads the other's: what is decoded here is encoded to the same
    bytes."""
    first = group.ask("m1", instance_id="i1")
    second = group.ask("m2", subscribed_topic_regex=f"{group.topics[0][:-1]}.", rack_id="r1", server_assignor="range")
    group.settle(first, second)
    group.ask("m1", -2, instance_id="i1")
    group.ask("m3", instance_id="i1")
    group.ask("m2", -1)
    group.ask("m3", -1, instance_id="i1")
    found = read_records(bootstrap, group.name)
    assert [encode(group.name, record) for record, _ in found] == [raw for _, raw in found]
    rows = [record for record, _ in found]
    assert [(row.kind, row.name) for row in rows[:5]] == [
        (MEMBER, "m1"), (GROUP_EPOCH, ""), (TARGET, "m1"), (TARGET_EPOCH, ""), (CURRENT, "m1")
    ]  # fmt: skip
    member = rows[0].value
    assert member == Member("i1", None, "keylane-testing", "/127.0.0.1", tuple(sorted(group.topics)), "", 30_000, None)
    everything = {group.ids[group.topics[0]]: {0, 1, 2}, group.ids[group.topics[1]]: {0, 1}}
    assert rows[2].value == TargetAssignment({topic: frozenset(ones) for topic, ones in everything.items()})
    assert rows[4].value == Current(
        2, 0, STABLE, {topic: dict.fromkeys(ones, 2) for topic, ones in everything.items()}, {}
    )
    assert {row.kind for row in rows} == {MEMBER, GROUP_EPOCH, TARGET, TARGET_EPOCH, CURRENT, PATTERN}
    assert {(row.kind, row.name) for row in rows if row.value is None} == {
        *((kind, name) for kind in (MEMBER, TARGET, CURRENT) for name in ("m1", "m2", "m3")),
        (PATTERN, f"{group.topics[0][:-1]}."),
    }


def read_records(bootstrap: str, group: str) -> list[tuple[Record, tuple[bytes, bytes | None]]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    count = len(consumer.list_topics("__consumer_offsets", DEADLINE_S).topics["__consumer_offsets"].partitions)
    consumer.assign([TopicPartition("__consumer_offsets", partition_for(group, count), 0)])
    found = []
    while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        decoded = decode(key, value)
        if decoded is not None and decoded[0] == group:
            found.append((decoded[1], (key, value)))
    consumer.close()
    return found


def test_commits_of_older_versions(group: Group) -> None:
    """A member of KIP-848 has an epoch to say, which OffsetCommit below version 9 does not know."""
    epoch = group.ask("m1").member_epoch
    for version in (7, 8):
        for _ in range(2):  # the second time it is a request like one before
            assert commit(group, "m1", epoch, version=version) == UNSUPPORTED_VERSION
        assert commit(group, "m9", epoch, version=version) == UNKNOWN_MEMBER_ID
    group.ask("m1", -1)
    assert commit(group, "", -1, version=8) == NONE


class Classic:
    """A member of the classic protocol of a group."""

    def __init__(self, group: Group, instance: str | None = None, protocols: tuple[str, ...] = ("sticky", "range")):
        self.group, self.instance, self.protocols = group, instance, protocols
        self.member_id, self.generation, self.protocol = "", -1, ""

    def ask_join(self, owned: dict[str, set[int]] | None = None, **said: Any) -> Any:
        names = self.group.topics
        listed = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in names)
        metadata = b"\0\1" + len(names).to_bytes(4, "big") + listed + b"\xff" * 4 + partitions_of(owned or {})
        rows = tuple(
            part("join_group", 9, "JoinGroupRequestProtocol", name=name, metadata=metadata) for name in self.protocols
        )
        values: dict[str, Any] = {
            "group_id": self.group.name, "session_timeout": 30_000 * MS, "rebalance_timeout": 30_000 * MS,
            "member_id": self.member_id, "group_instance_id": self.instance, "protocol_type": "consumer",
            "protocols": rows, "reason": None,
        }  # fmt: skip
        return self.group.client.ask("join_group", 9, **(values | said))

    def join(self, owned: dict[str, set[int]] | None = None) -> Any:
        answer = self.ask_join(owned)
        if answer.error_code == MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.ask_join(owned)
        assert answer.error_code == NONE, answer
        self.member_id, self.generation, self.protocol = answer.member_id, answer.generation_id, answer.protocol_name
        return answer

    def ask_sync(self, assigned: dict[str, dict[str, set[int]]] | None = None, **said: Any) -> Any:
        rows = tuple(
            part(
                "sync_group", 5, "SyncGroupRequestAssignment", member_id=name,
                assignment=b"\0\1" + partitions_of(has) + b"\xff" * 4,
            )
            for name, has in (assigned or {}).items()
        )  # fmt: skip
        values = {
            "group_id": self.group.name, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": self.instance, "protocol_type": "consumer", "protocol_name": self.protocol,
            "assignments": rows,
        }  # fmt: skip
        return self.group.client.ask("sync_group", 5, **(values | said))

    def sync(self, assigned: dict[str, dict[str, set[int]]] | None = None) -> dict[str, set[int]]:
        answer = self.ask_sync(assigned)
        assert answer.error_code == NONE, answer
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", self.protocol)
        return partitions_in(answer.assignment)

    def heartbeat(self, generation: int | None = None, member_id: str | None = None) -> int:
        answer = self.group.client.ask(
            "heartbeat", 4, group_id=self.group.name, group_instance_id=self.instance,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id if member_id is None else member_id,
        )  # fmt: skip
        return int(answer.error_code)

    def start(self) -> dict[str, set[int]]:
        """The only member of a group of the classic protocol: it leads, and has everything."""
        a, b = self.group.topics
        joined = self.join()
        assert joined.leader == joined.member_id
        return self.sync({self.member_id: {a: {0, 1, 2}, b: {0, 1}}})


def partitions_of(has: dict[str, set[int]]) -> bytes:
    rows = [
        len(name).to_bytes(2, "big") + name.encode() + len(ones).to_bytes(4, "big")
        + b"".join(one.to_bytes(4, "big") for one in sorted(ones))
        for name, ones in has.items()
    ]  # fmt: skip
    return len(rows).to_bytes(4, "big") + b"".join(rows)


def partitions_in(assignment: bytes) -> dict[str, set[int]]:
    """Read strictly: nothing may be left over."""
    assert assignment[:2] == b"\0\1", "it is in the version of the member's subscription"
    assert assignment[-4:] == b"\xff" * 4
    found: dict[str, set[int]] = {}
    at = 6
    for _ in range(int.from_bytes(assignment[2:6], "big")):
        size = int.from_bytes(assignment[at : at + 2], "big")
        name, at = assignment[at + 2 : at + 2 + size].decode(), at + 2 + size
        count, at = int.from_bytes(assignment[at : at + 4], "big"), at + 4
        found[name] = {int.from_bytes(assignment[at + 4 * row : at + 4 * row + 4], "big") for row in range(count)}
        at += 4 * count
    assert at == len(assignment) - 4
    return found


def total(has: dict[str, set[int]] | None) -> int:
    return sum(map(len, (has or {}).values()))


def described_classic(group: Group) -> Any:
    (found,) = group.client.ask("describe_groups", 5, groups=(group.name,), include_authorized_operations=False).groups
    return found


def test_a_group_of_the_classic_protocol_is_upgraded_and_downgraded(group: Group, bootstrap: str) -> None:
    classic = Classic(group)
    has = classic.start()
    assert (total(has), classic.generation) == (5, 1)
    # A member of KIP-848 comes: the group becomes a consumer group, with the classic member in it.
    joined = group.ask("m1", rack_id="r1")
    assert (joined.error_code, joined.member_epoch, group.given(joined)) == (NONE, 2, {})
    found = group.describe()
    members = {member.member_id: member for member in found.members}
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Reconciling", 2, 2)
    assert {name: (one.member_epoch, one.member_type) for name, one in members.items()} == {
        classic.member_id: (1, 0), "m1": (2, 1)
    }  # fmt: skip
    assert total({r.topic_name: set(r.partitions) for r in members[classic.member_id].assignment.topic_partitions}) == 5
    assert (described_classic(group).group_state, described_classic(group).members) == ("Dead", ())
    # What the classic APIs answer.
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS
    assert classic.heartbeat(generation=7) == ILLEGAL_GENERATION
    assert classic.heartbeat(member_id="nobody") == UNKNOWN_MEMBER_ID
    assert classic.heartbeat(generation=2, member_id="m1") == UNKNOWN_MEMBER_ID
    assert classic.ask_sync().error_code == REBALANCE_IN_PROGRESS
    assert classic.ask_sync(generation_id=7).error_code == ILLEGAL_GENERATION
    assert classic.ask_sync(protocol_name="range").error_code == INCONSISTENT_GROUP_PROTOCOL
    assert classic.ask_sync(protocol_type="connect").error_code == INCONSISTENT_GROUP_PROTOCOL
    assert classic.ask_join(protocol_type="connect").error_code == INCONSISTENT_GROUP_PROTOCOL
    assert Classic(group, protocols=("other",)).ask_join().error_code == INCONSISTENT_GROUP_PROTOCOL
    assert [commit(group, classic.member_id, 1, version=version) for version in (8, 9)] == [NONE, NONE]
    assert commit(group, classic.member_id, 2) == ILLEGAL_GENERATION
    assert fetch(group, classic.member_id, 1) == (NONE, [7])
    assert fetch(group, classic.member_id, 2)[0] == ILLEGAL_GENERATION
    # It joins again, is told to give back, does, and the other has it.
    again = classic.join(has)
    assert (again.generation_id, again.leader, again.members, again.skip_assignment) == (1, "", (), False)
    assert (again.protocol_type, again.protocol_name) == ("consumer", "sticky")
    kept = classic.sync()
    assert 2 <= total(kept) <= 3
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS, "it has not said yet that it has given back"
    assert classic.join(kept).generation_id == 2
    assert classic.sync() == kept
    assert classic.heartbeat() == NONE
    got = group.given(group.ask("m1", 2))
    assert total(got) == 5 - total(kept)
    assert group.describe().group_state == "Stable"
    # The last of its protocol leaves, and the group is of the classic protocol again.
    group.ask("m1", -1)
    assert group.describe().error_code == GROUP_ID_NOT_FOUND
    found = described_classic(group)
    assert (found.group_state, [one.member_id for one in found.members]) == ("PreparingRebalance", [classic.member_id])
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS
    anew = classic.join(kept)
    assert (anew.generation_id, anew.leader) == (3, classic.member_id)
    a, b = group.topics
    assert total(classic.sync({classic.member_id: {a: {0, 1, 2}, b: {0, 1}}})) == 5
    assert fetch(group, None, -1) == (NONE, [7])
    # The records of both are read by both.
    records = read_records(bootstrap, group.name)
    assert [encode(group.name, record) for record, _ in records] == [raw for _, raw in records]
    first = [(record.kind, record.name) for record, _ in records[:5]]
    assert first == [
        (MEMBER, classic.member_id), (GROUP_EPOCH, ""), (TARGET, classic.member_id), (TARGET_EPOCH, ""),
        (CURRENT, classic.member_id),
    ]  # fmt: skip
    last = {(record.kind, record.name): record.value for record, _ in records}
    assert set(last.values()) == {None}
    said = records[0][0].value
    assert isinstance(said, Member)
    assert said.classic is not None
    assert (said.classic.session_timeout_ms, [name for name, _ in said.classic.protocols]) == (
        30_000, ["sticky", "range"]
    )  # fmt: skip
    current = records[4][0].value
    assert isinstance(current, Current)
    assert (current.epoch, current.previous_epoch, current.state) == (1, 1, STABLE)
    assert {one for ones in current.assigned.values() for one in ones.values()} == {1}


def test_a_classic_member_comes_into_a_consumer_group(group: Group) -> None:
    joined = group.ask("m1")
    has = group.given(joined)
    classic = Classic(group)
    first = classic.ask_join()
    assert (first.error_code, first.generation_id, first.protocol_type) == (MEMBER_ID_REQUIRED, -1, None)
    assert len(first.member_id) == 22
    classic.member_id = first.member_id
    assert classic.join().generation_id == joined.member_epoch + 1
    assert classic.sync() == {}
    assert classic.heartbeat() == NONE, "what it is to have is not free"
    assert has is not None
    told = group.ask("m1", joined.member_epoch, topic_partitions=group.owned(has))
    kept = group.given(told)
    assert kept is not None
    group.ask("m1", joined.member_epoch, topic_partitions=group.owned(kept))
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS, "now it is"
    assert classic.join().generation_id == joined.member_epoch + 1
    assert total(classic.sync()) == 5 - total(kept)

    # It leaves, or an administrator has it leave.
    def leave(member_id: str, instance_id: str | None = None) -> tuple[int, str]:
        row = part("leave_group", 5, "MemberIdentity", member_id=member_id, group_instance_id=instance_id, reason=None)
        (left,) = group.client.ask("leave_group", 5, group_id=group.name, members=(row,)).members
        return int(left.error_code), left.member_id

    assert leave("nobody") == (UNKNOWN_MEMBER_ID, "nobody")
    other = group.ask("m2")
    assert other.error_code == NONE
    assert leave("m2") == (NONE, "m2"), "a member of the other protocol, too"
    assert group.ask("m2", other.member_epoch).error_code == UNKNOWN_MEMBER_ID
    epoch = group.describe().group_epoch
    assert leave(classic.member_id) == (NONE, classic.member_id)
    assert (group.describe().group_epoch, len(group.describe().members)) == (epoch + 1, 1)
    static = Classic(group, instance="i1")
    static.join()
    assert leave("", "i2") == (UNKNOWN_MEMBER_ID, "")
    assert leave("other", "i1") == (FENCED_INSTANCE_ID, "other")
    assert leave("", "i1") == (NONE, "")
    assert len(group.describe().members) == 1


def test_static_members_change_their_protocol(group: Group) -> None:
    """A member of KIP-848 takes the place of a classic one with its name at once, and the other way round."""
    classic = Classic(group, instance="i1")
    has = classic.start()
    taken = group.ask("m1", instance_id="i1")
    assert (taken.error_code, taken.member_epoch, group.given(taken)) == (NONE, 1, has)
    assert [one.member_id for one in group.describe().members] == ["m1"]
    assert classic.heartbeat() == FENCED_INSTANCE_ID
    assert classic.ask_sync().error_code == FENCED_INSTANCE_ID
    assert classic.ask_join().error_code == FENCED_INSTANCE_ID
    other = Classic(group, instance="i1")
    back = other.join()
    assert (back.generation_id, back.leader) == (1, "")
    assert group.describe().error_code == GROUP_ID_NOT_FOUND, "it was the last of its protocol"
    found = described_classic(group)
    assert (found.group_state, [one.member_id for one in found.members]) == ("Stable", [other.member_id])
    assert other.sync() == has
    assert other.heartbeat() == NONE


def test_what_is_not_upgraded(group: Group) -> None:
    """A group whose protocol is not the consumers', and one that is asked about in an epoch."""
    classic = Classic(group)
    answer = classic.ask_join(protocol_type="connect", member_id="")
    if answer.error_code == MEMBER_ID_REQUIRED:
        answer = classic.ask_join(protocol_type="connect", member_id=answer.member_id)
    assert answer.error_code == NONE
    why = "because the group does not use the consumer embedded protocol."
    assert group.refused("m1") == (
        GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.name} to consumer group {why}",
    )
    assert group.refused("m1", 1) == (GROUP_ID_NOT_FOUND, f"Group {group.name} is not a consumer group.")
    assert described_classic(group).group_state == "CompletingRebalance"
