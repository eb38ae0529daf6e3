"""What clients are told of nodes: each id is one address's for ever, and no broker of the log is among them."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from keylane.kafka.group_descriptions import GroupDescription, Member
from keylane.offset_servers.members import leaders_of, member_name, seen, server_of
from keylane.offset_servers.nodes import (
    Cluster,
    Namesakes,
    Node,
    all_nodes,
    in_turn,
    node_at,
    pair,
    same_ids,
    server_for,
    told_metadata,
    told_partitions,
)
from keylane.wire.versions import encode_response, entity, read_response, response_module

SERVERS = (("one", 9192), ("two", 9192), ("two", 9292))
BROKERS = {1: ("kafka1", 9092), 2: ("kafka2", 9092), 7: ("kafka7", 9092)}
addresses = st.tuples(st.sampled_from(("a", "b", "a.b")), st.integers(1, 65_535))


@given(addresses)
def test_an_id_follows_from_the_address(address: tuple[str, int]) -> None:
    node = node_at(address)
    assert node == node_at(address)
    assert (node.host, node.port) == address
    assert 0 <= node.node_id < 2**30, "a coordinator's connection has 2^31 - 1 - id in Java and kafka-python"


def test_the_ids_are_these() -> None:
    """They must not change with a release: a client keeps what it knows of an id."""
    assert [node_at(one).node_id for one in SERVERS] == [1030733251, 135203271, 963643949]


def test_two_nodes_of_one_id_are_found() -> None:
    nodes = all_nodes(SERVERS, BROKERS)
    assert len(nodes) == len(SERVERS) * (1 + len(BROKERS))
    assert same_ids(nodes) is None
    twin = Node(nodes[0].node_id, "elsewhere", 1)
    assert same_ids([*nodes, twin]) == (nodes[0], twin)


@given(st.lists(addresses, min_size=2, max_size=6, unique=True), st.text(max_size=5))
def test_what_a_server_has_moves_only_when_that_server_goes(servers: list[tuple[str, int]], what: str) -> None:
    chosen = server_for(servers, what)
    assert server_for(servers[::-1], what) == chosen
    for gone in servers:
        left = [one for one in servers if one != gone]
        assert (server_for(left, what) == chosen) is (gone != chosen)


@given(addresses, st.lists(addresses, max_size=5, unique=True))
def test_every_broker_has_its_turn(server: tuple[str, int], brokers: list[tuple[str, int]]) -> None:
    assert sorted(in_turn(server, brokers)) == sorted(brokers)


def metadata(version: int) -> Any:
    """A broker's answer, read from its bytes."""
    module = response_module("metadata", version)
    brokers = tuple(
        entity(module.MetadataResponseBroker, node_id=node, host=host, port=port, rack="r")
        for node, (host, port) in BROKERS.items()
    )
    partitions = [
        entity(
            module.MetadataResponsePartition,
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=leader,
            leader_epoch=3,
            replica_nodes=(1, 2, 7),
            isr_nodes=(2, 7),
            offline_replicas=(1,),
        )
        for index, leader in enumerate((1, 2, 7, -1))
    ]
    topic = entity(
        module.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name="flights",
        topic_id=None,
        partitions=tuple(partitions),
    )
    topics = (topic, dataclasses.replace(topic, name="hidden"))
    answer = entity(
        module.MetadataResponse,
        throttle_time=datetime.timedelta(0),
        brokers=brokers,
        cluster_id="c",
        controller_id=7,
        topics=topics,
    )
    frame = (5).to_bytes(4, "big") + (b"\0" if version >= 9 else b"") + encode_response(answer)
    found, start = read_response("metadata", version, frame)
    assert frame[start:] == encode_response(found)
    return found


@pytest.mark.parametrize("version", range(13))
def test_an_answer_tells_of_pairs_only(version: int) -> None:
    answer = told_metadata(metadata(version), SERVERS, frozenset({"hidden"}))
    frame = (5).to_bytes(4, "big") + (b"\0" if version >= 9 else b"") + encode_response(answer)
    told, _ = read_response("metadata", version, frame)
    nodes = {Node(one.node_id, one.host, one.port) for one in told.brokers}
    assert nodes == set(all_nodes(SERVERS, BROKERS))
    assert "kafka" not in {one.host for one in told.brokers}
    assert [one.name for one in told.topics] == ["flights"]
    known = {one.node_id for one in nodes}
    if version >= 1:
        assert told.controller_id in known
    for partition, leader in zip(told.topics[0].partitions, (1, 2, 7, -1), strict=True):
        server = server_for(SERVERS, f"flights-{partition.partition_index}")
        ids = {broker: node_at(pair(server, broker)).node_id for broker in BROKERS} | {-1: -1}
        assert partition.leader_id == ids[leader]
        assert partition.replica_nodes == tuple(ids[one] for one in (1, 2, 7))
        assert partition.isr_nodes == tuple(ids[one] for one in (2, 7))


def test_a_description_of_partitions_tells_of_pairs_only() -> None:
    module = response_module("describe_topic_partitions", 0)
    rows = [
        entity(
            module.DescribeTopicPartitionsResponsePartition,
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=leader,
            leader_epoch=3,
            replica_nodes=(1, 2, 7),
            isr_nodes=(2, 7),
            eligible_leader_replicas=eligible,
            last_known_elr=eligible and (7, 1),
            offline_replicas=(1,),
        )
        for index, (leader, eligible) in enumerate(((1, (2,)), (-1, None)))
    ]
    topic = entity(
        module.DescribeTopicPartitionsResponseTopic,
        error_code=ErrorCode.none,
        name="flights",
        topic_id=uuid.UUID(int=1),
        is_internal=False,
        partitions=tuple(rows),
        topic_authorized_operations=0,
    )
    answer = entity(
        module.DescribeTopicPartitionsResponse,
        throttle_time=datetime.timedelta(0),
        topics=(topic, dataclasses.replace(topic, name="hidden")),
        next_cursor=None,
    )
    told = told_partitions(answer, SERVERS, frozenset({"hidden"}))
    assert [one.name for one in told.topics] == ["flights"]
    first, second = told.topics[0].partitions
    ids = {broker: node_at(pair(server_for(SERVERS, "flights-0"), broker)).node_id for broker in BROKERS}
    assert (first.leader_id, second.leader_id) == (ids[1], -1)
    assert (first.eligible_leader_replicas, second.eligible_leader_replicas) == ((ids[2],), None)
    assert (first.last_known_elr, second.last_known_elr) == ((ids[7], ids[1]), None)
    named = (first.replica_nodes, first.isr_nodes, first.offline_replicas)
    assert named == tuple(tuple(ids[one] for one in some) for some in ((1, 2, 7), (2, 7), (1,)))


def test_the_members_say_who_leads_what() -> None:
    assert server_of(member_name(SERVERS[0])) == SERVERS[0]
    assert server_of("rdkafka") is None
    stable = described("stable", {member_name(SERVERS[0]): (0, 2), member_name(SERVERS[1]): (1,), "rdkafka": (3,)})
    assert leaders_of(stable) == {0: SERVERS[0], 2: SERVERS[0], 1: SERVERS[1]}
    known = seen(Cluster("", {}, (SERVERS[2],), {}), "c", BROKERS, stable, SERVERS[2])
    assert known == Cluster("c", BROKERS, SERVERS, {0: SERVERS[0], 2: SERVERS[0], 1: SERVERS[1]})
    assert seen(known, "c", BROKERS, stable, SERVERS[0]).namesakes == (member_name(SERVERS[0]),)
    moving = described("preparing_rebalance", {member_name(SERVERS[0]): ()})
    moved = seen(known, "c", BROKERS, moving, SERVERS[2])
    assert moved.servers == (SERVERS[0], SERVERS[2])
    assert moved.leaders == {0: SERVERS[0], 2: SERVERS[0]}, "nobody is sent to a server that is gone"


def described(state: str, members: dict[str, tuple[int, ...]]) -> GroupDescription:
    found = tuple(
        Member(name, name, "h", None, tuple(("log", partition) for partition in ones)) for name, ones in members.items()
    )
    return GroupDescription("g", state, "classic", "", "", found)


def test_another_member_with_this_address_is_given_time_after_nobody_could_look() -> None:
    """A server that lost its place while the log's cluster was away is beside its own earlier life for a session."""
    namesakes = Namesakes(12.0)
    assert not namesakes.stay(is_there=False, now=0.0)
    for _ in range(3):
        namesakes.unknown()
    assert not namesakes.stay(is_there=True, now=30.0)
    assert not namesakes.stay(is_there=True, now=41.9)
    namesakes.unknown()
    assert not namesakes.stay(is_there=True, now=42.0)
    assert not namesakes.stay(is_there=False, now=50.0)
    assert not namesakes.stay(is_there=True, now=51.0)
    assert namesakes.stay(is_there=True, now=63.0)
