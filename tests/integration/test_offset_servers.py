"""Offset servers as processes, on the log of one broker: what clients see, and what they keep when a server goes."""

from __future__ import annotations

import datetime
import queue
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode
from peers import free_row

from keylane.broker.config_resources import GROUP
from keylane.broker.process import BrokerProcess
from keylane.coordinator.formats import partition_for
from keylane.coordinator.replicated.batches import encode
from keylane.coordinator.replicated.leadership import Batch
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.kafka.admin import Admin
from keylane.kafka.fenced_log import FencedLog
from keylane.kafka.group_times import ask_group_times
from keylane.kafka.link import Link
from keylane.kafka.login import Login
from keylane.offset_servers.members import GROUP as SERVERS
from keylane.offset_servers.nodes import node_at, pair
from keylane.offset_servers.topic import TOPIC
from keylane.storage.filesystem import now_ms
from keylane.testing import EmbeddedBroker
from keylane.wire.versions import request_type
from kit.either_broker import either_broker
from kit.offset_client import KIP_848
from kit.offset_fail_over import fail_over, in_python
from kit.offset_histories import History, running, verdict, wait_for_commits
from kit.offset_servers import OffsetServer, OffsetServers, pace
from kit.protocol import ProtocolClient, decode_answer
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTITIONS = 4
OPTIONS = ("--allow-unreplicated-log", "--set", f"offsets.topic.num.partitions={PARTITIONS}")
WAIT = {"max_wait": datetime.timedelta(milliseconds=300), "min_bytes": 1_000_000}
HEARTBEAT_MS, SESSION_MS = 300, 6_000
PACE = pace(HEARTBEAT_MS, SESSION_MS)
BROKER = 1
"""The embedded broker's id."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as log:
        yield log


@pytest.fixture
def servers(log: BrokerProcess, tmp_path: Path) -> Iterator[OffsetServers]:
    with OffsetServers(log.bootstrap, tmp_path, 2, *OPTIONS) as servers:
        yield servers


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetServers]:
    """A single server, which leads everything."""
    folder = tmp_path_factory.mktemp("one")
    with BrokerProcess(folder / "data") as log, OffsetServers(log.bootstrap, folder, 1, *OPTIONS) as servers:
        servers.settled()
        yield servers


def group_at(servers: OffsetServers, server: OffsetServer) -> str:
    """A group that this server leads."""
    leads = servers.settled()[server.address]
    return next(name for number in range(1_000) if partition_for(name := f"g{number}", PARTITIONS) in leads)


def wait_until_named(client: ProtocolClient, group: str, leader: str) -> None:
    """Until this server has heard who leads the group."""
    deadline = time.monotonic() + 20  # it looks every second
    while True:
        found = client.ask("find_coordinator", 2, key=group, key_type=0)
        if f"{found.host}:{found.port}" == leader:
            return
        assert time.monotonic() < deadline, f"{found}, and {leader} leads it"
        time.sleep(0.1)


def entities(api: str, version: int) -> Any:
    """kio's module with the request class and its parts."""
    return sys.modules[request_type(api, version).__module__]


def commit_of(group: str, offset: int) -> Any:
    v2 = entities("offset_commit", 2)
    row = v2.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return v2.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(v2.OffsetCommitRequestTopic(name="flights", partitions=(row,)),),
    )


def fetch_of(group: str) -> Any:
    v2 = entities("offset_fetch", 2)
    topics = (v2.OffsetFetchRequestTopic(name="flights", partition_indexes=(0,)),)
    return v2.OffsetFetchRequest(group_id=group, topics=topics)


def committed(client: ProtocolClient) -> ErrorCode:
    _, answer = decode_answer("offset_commit", 2, client.receive())
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def fetched(client: ProtocolClient) -> tuple[ErrorCode, int]:
    _, answer = decode_answer("offset_fetch", 2, client.receive())
    rows = [one for topic in answer.topics for one in topic.partitions]
    return answer.error_code, rows[0].committed_offset if rows else -1


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_clients_of_three_libraries_go_on_when_their_server_goes(
    servers: OffsetServers, tmp_path: Path, how: str, record_property: Callable[[str, object], None]
) -> None:
    outcome = fail_over(servers, "flights", tmp_path, getattr(servers, how))
    record_property("longest silence s", round(outcome.longest_s, 1))


@pytest.mark.full
def test_a_member_of_kip_848_goes_on_when_its_server_goes(
    log: BrokerProcess, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with OffsetServers(log.bootstrap, tmp_path, 2, *OPTIONS, *PACE) as servers:
        libraries = {KIP_848: in_python(KIP_848)}
        outcome = fail_over(servers, "flights", tmp_path, servers.kill, libraries=libraries)
        record_property("longest silence s", round(outcome.longest_s, 1))
        (group,) = (one.group for one in outcome.clients)
        (listed,) = (one for one in Admin({"bootstrap.servers": servers.bootstrap}).groups() if one.group == group)
        assert listed.protocol == "consumer"
        assert "Traceback" not in servers.told()


@pytest.mark.full
def test_any_server_takes_members_of_kip_848_and_tells_of_them(log: BrokerProcess, tmp_path: Path) -> None:
    """With topics that come, and the times that the servers have set."""
    with OffsetServers(log.bootstrap, tmp_path, 2, *OPTIONS, *PACE) as servers:
        wrong, right = servers.running
        group = group_at(servers, right)
        Admin({"bootstrap.servers": servers.log}).create_topics({"early": 2})
        with ProtocolClient(wrong.address) as client:

            def heartbeat(epoch: int, **fields: Any) -> Any:
                names = ("group_id", "member_id", "member_epoch", "instance_id", "rack_id", "server_assignor")
                asked: dict[str, Any] = dict.fromkeys(names)
                asked |= {"group_id": group, "member_id": "m", "member_epoch": epoch, "topic_partitions": None}
                asked |= {"subscribed_topic_names": None, "subscribed_topic_regex": None}
                asked |= {"rebalance_timeout": datetime.timedelta(milliseconds=-1)} | fields
                while True:
                    answer = client.ask("consumer_group_heartbeat", 1, **asked)
                    if answer.error_code not in (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator):
                        return answer

            began = {"rebalance_timeout": datetime.timedelta(seconds=60), "topic_partitions": ()}
            joined = heartbeat(0, subscribed_topic_names=("early", "late"), **began)
            assert joined.error_code is ErrorCode.none, joined.error_message
            assert [one.partitions for one in joined.assignment.topic_partitions] == [(0, 1)]
            assert joined.heartbeat_interval == datetime.timedelta(milliseconds=HEARTBEAT_MS)
            Admin({"bootstrap.servers": servers.log}).create_topics({"late": 1})
            deadline = time.monotonic() + 30  # a heartbeat is answered by topics that are some seconds old
            found = joined
            while found.assignment is None or len(found.assignment.topic_partitions) < 2:
                assert time.monotonic() < deadline, found
                time.sleep(0.1)
                found = heartbeat(found.member_epoch)
            (described,) = client.ask(
                "consumer_group_describe", 1, group_ids=(group,), include_authorized_operations=False
            ).groups
            (member,) = described.members
            assert (member.member_id, described.group_state) == ("m", "Stable")
            assert {one.topic_name for one in member.assignment.topic_partitions} == {"early", "late"}
            times = ask_group_times({"group.id": group}, wrong.address, 10)
            assert times == (SESSION_MS / 1000, HEARTBEAT_MS / 1000), "not those of the log's cluster"
            assert heartbeat(-1).error_code is ErrorCode.none
        known = {one.group for one in Admin({"bootstrap.servers": servers.log}).groups()}
        assert group not in known


@pytest.mark.parametrize("kind", ["keylane", pytest.param("apache", marks=pytest.mark.full)])
def test_configs_of_a_group_hold_at_all_servers(kind: str, tmp_path: Path) -> None:
    """They are set through any server, kept by the log's cluster, and told to members by whoever leads the group."""
    slow_ms = SESSION_MS - 500
    with (
        either_broker(kind, tmp_path) as log,
        OffsetServers(log.bootstrap, tmp_path, 2, *OPTIONS, *PACE) as servers,
    ):
        wrong, right = servers.running
        group = group_at(servers, right)
        with ProtocolClient(wrong.address) as client, ProtocolClient(right.address) as other:
            alter = entities("incremental_alter_configs", 1)

            def set_to(value: int | None) -> ErrorCode:
                config = alter.AlterableConfig(
                    name="consumer.heartbeat.interval.ms",
                    config_operation=0 if value else 1,
                    value=str(value) if value else None,
                )
                resource = alter.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=(config,))
                (answer,) = client.ask(
                    "incremental_alter_configs", 1, resources=(resource,), validate_only=False
                ).responses
                code: ErrorCode = answer.error_code
                return code

            def interval() -> datetime.timedelta:
                asked: dict[str, Any] = dict.fromkeys(("instance_id", "rack_id", "server_assignor"))
                asked |= {"group_id": group, "member_id": "m", "member_epoch": 0, "topic_partitions": ()}
                asked |= {"subscribed_topic_names": ("none",), "subscribed_topic_regex": None}
                asked |= {"rebalance_timeout": datetime.timedelta(seconds=60)}
                while True:
                    answer = client.ask("consumer_group_heartbeat", 1, **asked)
                    if answer.error_code not in (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator):
                        break
                assert answer.error_code is ErrorCode.none, answer.error_message
                found: datetime.timedelta = answer.heartbeat_interval
                return found

            for value, holds_ms in ((slow_ms, slow_ms), (SESSION_MS, HEARTBEAT_MS), (None, HEARTBEAT_MS)):
                assert set_to(value) is ErrorCode.none
                for server in servers.running:
                    assert ask_group_times({"group.id": group}, server.address, 10).heartbeat_s == holds_ms / 1000
                assert interval() == datetime.timedelta(milliseconds=holds_ms)
            resource = entities("describe_configs", 4).DescribeConfigsResource(
                resource_type=GROUP, resource_name=group, configuration_keys=None
            )
            (described,) = other.ask(
                "describe_configs", 4, resources=(resource,), include_synonyms=True, include_documentation=False
            ).results
            assert {one.config_source for one in described.configs} <= {4, 5}, "none is the group's own any more"
            assert "what its configs in the log's cluster say has no effect here" in servers.told()


def test_who_leads_what_is_divided(servers: OffsetServers) -> None:
    before = servers.settled()
    assert sorted(map(len, before.values())) == [2, 2]
    third = servers.add()
    after = servers.settled()
    assert sorted(map(len, after.values())) == [1, 1, 2]
    moved = set(after[third.address])
    assert all(set(after[name]) == set(ones) - moved for name, ones in before.items()), "what stays does not move"
    for server in servers.running:
        others = [one for one in range(100) if partition_for(f"g{one}", PARTITIONS) not in after[server.address]]
        leader = next(name for name, ones in after.items() if partition_for(f"g{others[0]}", PARTITIONS) in ones)
        with ProtocolClient(server.address) as client:
            wait_until_named(client, f"g{others[0]}", leader)


def test_any_server_answers_any_request(servers: OffsetServers) -> None:
    """A client that never asks who leads what."""
    wrong, right = servers.running
    group, local = group_at(servers, right), group_at(servers, wrong)
    asked: Counter[str] = Counter()
    with ProtocolClient(wrong.address, host="127.0.0.2") as client:
        wait_until_named(client, group, right.address)
        before = counts(servers)

        def ask(api: str, version: int, **fields: Any) -> Any:
            asked[api] += 1
            return client.ask(api, version, **fields)

        join = {
            "group_id": group,
            "session_timeout": datetime.timedelta(seconds=10),
            "rebalance_timeout": datetime.timedelta(seconds=10),
            "protocol_type": "consumer",
            "protocols": (entities("join_group", 3).JoinGroupRequestProtocol(name="range", metadata=b"m"),),
        }
        joined = ask("join_group", 3, member_id="", **join)
        while joined.error_code is ErrorCode.coordinator_load_in_progress:
            joined = ask("join_group", 3, member_id="", **join)
        assert joined.error_code is ErrorCode.none
        member = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        given = entities("sync_group", 2).SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
        assert ask("sync_group", 2, assignments=(given,), **member).assignment == b"all"
        assert ask("heartbeat", 2, **member).error_code is ErrorCode.none
        (described,) = ask("describe_groups", 2, groups=(group,)).groups
        (found,) = described.members
        assert (found.client_id, found.client_host) == ("keylane-testing", "/127.0.0.2")
        assert ask("leave_group", 2, group_id=group, member_id=joined.member_id).error_code is ErrorCode.none
        for name in (group, local):
            client.send("offset_commit", commit_of(name, 4))
            assert committed(client) is ErrorCode.none
        client.send("offset_fetch", fetch_of(group))
        assert fetched(client) == (ErrorCode.none, 4)
        asked["offsets"] += 2
        names = (group, local, "absent")
        both = ask("describe_groups", 2, groups=names).groups
        assert [(one.group_id, one.group_state) for one in both] == [
            (group, "Empty"),
            (local, "Empty"),
            ("absent", "Dead"),
        ]
        deleted = ask("delete_groups", 1, groups_names=names).results
        assert [one.error_code for one in deleted] == [ErrorCode.none] * 2 + [ErrorCode.group_id_not_found]
    after = counts(servers)
    assert after[wrong.address][1] - before[wrong.address][1] == asked.total(), "forwarded"
    assert after[wrong.address][0] - before[wrong.address][0] == 1, "the local group's commit"
    assert after[right.address][0] - before[right.address][0] == asked.total()
    assert after[right.address][1] == 0


def counts(servers: OffsetServers) -> dict[str, tuple[int, int]]:
    """What each server has answered, and forwarded."""
    return {one["server"]: (one["answered"], one["forwarded"]) for one in servers.status()["servers"]}


@pytest.mark.full
def test_histories_of_clients_at_the_wrong_server_while_leaders_die(
    servers: OffsetServers, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Many commits and reads at once, at a server that lives on: none is lost, partial, or behind an earlier one."""
    chance = random.Random(1)
    wrong, _ = servers.running
    leads = servers.settled()
    Admin({"bootstrap.servers": servers.bootstrap}).create_topics({"flights": 3})
    groups = [f"g{number}" for number in range(100)]
    led_elsewhere = [one for one in groups if partition_for(one, PARTITIONS) not in leads[wrong.address]]
    histories = [History(tmp_path, group, "flights", 3) for group in led_elsewhere[:3]]
    with running(histories, wrong.address, chance):
        for _ in range(2):
            wait_for_commits(histories)
            (victim,) = (one for one in servers.running if one is not wrong)
            servers.kill(victim)
            wait_for_commits(histories)
            servers.add()
            servers.settled()
        wait_for_commits(histories)
    total = verdict(histories, wrong.address)
    record_property("commits", total.commits)
    assert total.is_faultless, total
    assert total.reads > 0
    assert counts(servers)[wrong.address][1] > 0
    assert "Traceback" not in servers.told()


@pytest.mark.full
def test_a_server_that_was_frozen_is_believed_no_more(servers: OffsetServers) -> None:
    old, new = servers.running
    group = group_at(servers, old)
    with ProtocolClient(old.address) as asked, ProtocolClient(new.address) as other:
        asked.send("offset_commit", commit_of(group, 5))
        assert committed(asked) is ErrorCode.none
        asked.send("offset_fetch", fetch_of(group))
        assert fetched(asked) == (ErrorCode.none, 5)
        old.freeze()
        servers.remove(old)
        # What is forwarded to it is refused when it has left the group, and then led elsewhere.
        other.send("offset_commit", commit_of(group, 6))
        assert committed(other) is ErrorCode.not_coordinator
        servers.settled()
        other.send("offset_commit", commit_of(group, 7))
        while (code := committed(other)) is ErrorCode.coordinator_load_in_progress:
            other.send("offset_commit", commit_of(group, 7))
        assert code is ErrorCode.none
        # What waits for it when it wakes is answered before it hears that the group has given its partitions away.
        asked.send("offset_fetch", fetch_of(group))
        asked.send("offset_commit", commit_of(group, 6))
        old.wake()
        assert fetched(asked) == (ErrorCode.not_coordinator, -1)
        assert committed(asked) is ErrorCode.not_coordinator
        other.send("offset_fetch", fetch_of(group))
        assert fetched(other) == (ErrorCode.none, 7)
    servers.running.append(old)
    assert all(servers.settled().values()), "it has not come back"


def test_who_is_refused_by_the_log_is_given_the_partition_anew_by_the_group(one: OffsetServers) -> None:
    (server,) = one.running
    group = group_at(one, server)
    partition = partition_for(group, PARTITIONS)
    with ProtocolClient(server.address) as client:
        client.send("offset_commit", commit_of(group, 3))
        assert committed(client) is ErrorCode.none
        fence(one.log, partition)
        client.send("offset_fetch", fetch_of(group))
        assert fetched(client) == (ErrorCode.not_coordinator, -1), "it has another leader, for all that it knows"
        deadline = time.monotonic() + 30
        while True:
            client.send("offset_fetch", fetch_of(group))
            code, offset = fetched(client)
            if code is ErrorCode.none:
                break
            assert code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert offset == 3
    assert "was refused by the log: asking the group anew" in one.told()


def fence(log: str, partition: int) -> None:
    """Another leader of this partition, and nothing more."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    other = FencedLog({"bootstrap.servers": log}, TOPIC, partition, f"{TOPIC}-{partition}", lambda told: told())
    try:
        other.init(None, answers.put)
        producer = answers.get(timeout=20)
        assert isinstance(producer, Producer)
        batch = Batch()
        batch.send(producer, 0)
        other.append(encode(batch, "another", now_ms(), 0), answers.put)
        assert isinstance(answers.get(timeout=20), int)
    finally:
        other.close()
        assert other.join(20)


@pytest.mark.full
def test_what_was_committed_outlives_all_servers(servers: OffsetServers) -> None:
    servers.settled()
    admin = Admin({"bootstrap.servers": servers.bootstrap})
    admin.create_topics({"flights": 3})
    wanted = {f"g{number}": number for number in range(12)}
    for group, offset in wanted.items():
        admin.commit_offsets(group, {("flights", 1): offset})
    for one in list(servers.running):
        servers.kill(one)
    servers.add()
    servers.settled()
    admin = Admin({"bootstrap.servers": servers.bootstrap})
    assert {one.group for one in admin.groups()} == set(wanted)
    for group, offset in wanted.items():
        assert admin.committed_offsets(group)["flights", 1].offset == offset
    admin.delete_group("g3")
    assert {one.group for one in admin.groups()} == set(wanted) - {"g3"}


def test_answers_keep_their_order_where_some_come_from_elsewhere(one: OffsetServers) -> None:
    """A fetch that waits, a commit that is refused at once, a produce that wants no answer: on one connection."""
    (server,) = one.running
    Admin({"bootstrap.servers": one.bootstrap}).create_topics({"ordered": 1})
    fetch, produce = entities("fetch", 4), entities("produce", 3)
    row = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    waits = fetch.FetchRequest(
        **WAIT,
        topics=(fetch.FetchTopic(topic="ordered", partitions=(row,)),),
    )
    unanswered = produce.ProduceRequest(
        transactional_id=None, acks=0, timeout=datetime.timedelta(seconds=1), topic_data=()
    )
    with ProtocolClient(f"127.0.0.1:{server.port + 1 + BROKER}") as client:
        sent = [
            client.send("fetch", waits),
            client.send("offset_fetch", fetch_of("ordered")),
        ]
        client.send("produce", unanswered)
        metadata = request_type("metadata", 5)
        sent.append(client.send("metadata", metadata(topics=None, allow_auto_topic_creation=False)))
        sent.append(client.send("offset_fetch", fetch_of("ordered")))
        answered = [int.from_bytes(client.receive()[:4], "big") for _ in sent]
    assert answered == sent


def test_clients_are_told_of_servers_only(one: OffsetServers) -> None:
    (server,) = one.running
    own = ("127.0.0.1", server.port)
    Admin({"bootstrap.servers": one.bootstrap}).create_topics({"told": 3})
    nodes = {(node.node_id, node.host, node.port) for node in map(node_at, (own, pair(own, BROKER)))}
    leader = node_at(pair(own, BROKER)).node_id
    with ProtocolClient(server.address) as client:
        for version in (1, 5, 9, 12):
            extra = {} if version < 4 else {"allow_auto_topic_creation": False}
            if version == 9:
                extra |= {"include_cluster_authorized_operations": False}
            if version >= 8:
                extra |= {"include_topic_authorized_operations": False}
            answer = client.ask("metadata", version, topics=None, **extra)
            assert {(one.node_id, one.host, one.port) for one in answer.brokers} == nodes
            assert answer.controller_id == leader
            assert {one.name for one in answer.topics} >= {"told"}
            assert "__keylane_offsets" not in {one.name for one in answer.topics}
            found = [one for topic in answer.topics for one in topic.partitions]
            assert {one.leader_id for one in found} == {leader}
            assert {node for one in found for node in (*one.replica_nodes, *one.isr_nodes)} == {leader}
        described = client.ask("describe_topic_partitions", 0, topics=(), response_partition_limit=1_000, cursor=None)
        assert "told" in {one.name for one in described.topics}
        assert "__keylane_offsets" not in {one.name for one in described.topics}
        found = [one for topic in described.topics for one in topic.partitions]
        assert {node for one in found for node in (one.leader_id, *one.replica_nodes, *one.isr_nodes)} == {leader}
        cluster = client.ask("describe_cluster", 0, include_cluster_authorized_operations=False)
        assert {(one.broker_id, one.host, one.port) for one in cluster.brokers} == nodes
        found = client.ask("find_coordinator", 2, key="g", key_type=0)
        assert (found.node_id, found.host, found.port) == node_at(own)
        of_a_transaction = client.ask("find_coordinator", 2, key="t", key_type=1)
        assert (of_a_transaction.node_id, of_a_transaction.host, of_a_transaction.port) == node_at(pair(own, BROKER))
        of_any = {"state_filters": (), "producer_id_filters": ()}
        assert client.ask("list_transactions", 0, **of_any).transaction_states == (), "a server has none"
        with ProtocolClient(f"{of_a_transaction.host}:{of_a_transaction.port}") as its_broker:
            producer = {"transactional_id": "listed", "transaction_timeout": datetime.timedelta(minutes=1)}
            producer |= {"producer_id": -1, "producer_epoch": -1}
            assert its_broker.ask("init_producer_id", 4, **producer).error_code is ErrorCode.none
            listed = its_broker.ask("list_transactions", 0, **of_any).transaction_states
            assert [one.transactional_id for one in listed] == ["listed"]


def test_versions_whose_answers_name_brokers_are_not_offered(one: OffsetServers) -> None:
    (server,) = one.running
    link = Link(("127.0.0.1", server.port), Login(), 10.0)
    offered = link.offered()
    link.close()
    assert offered[0][1] <= 9
    assert offered[1][1] <= 10
    assert not offered.keys() & {25, 28}, "offsets in transactions"
    assert {8, 9, 11, 27_500} <= offered.keys()
    fetch = entities("fetch", 11)
    with ProtocolClient(server.address) as client:
        client.send("fetch", fetch.FetchRequest(topics=(), forgotten_topics_data=(), rack_id="", **WAIT))
        with pytest.raises(EOFError):
            client.receive()
    assert "fetch version 11 is not offered" in one.told()


def test_a_server_tells_its_metrics_and_whether_it_is_ready(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as log:
        one = OffsetServer(log.bootstrap, tmp_path / "one.log", *OPTIONS, "--metrics-port", "0")
        try:
            with ProtocolClient(one.address) as client:
                client.send("offset_commit", commit_of("g", 5))
                while (code := committed(client)) is not ErrorCode.none:
                    assert code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
                    client.send("offset_commit", commit_of("g", 5))
                url = one.second_line().removeprefix("metrics at ")
                until(lambda: scraped(url)["keylane_ready"] == 1, "it has loaded the other partitions too")
                found = scraped(url)
                assert found['keylane_offset_server_partitions{role="leading"}'] == PARTITIONS
                assert found['keylane_offset_server_partitions{role="loading"}'] == 0
                assert found['keylane_offset_server_requests_total{way="answered"}'] >= 1
                assert found["keylane_offset_server_append_seconds_count"] >= PARTITIONS + 1, "marks, and the commit"
                assert found["keylane_offset_server_partitions_without_leader"] == 0
                assert found["keylane_offset_server_servers"] == 1
                assert found["keylane_offset_server_connections"] >= 1
                fence(log.bootstrap, partition_for("g", PARTITIONS))
                client.send("offset_commit", commit_of("g", 6))
                assert committed(client) is ErrorCode.not_coordinator
            after = scraped(url)
            assert after["keylane_offset_server_appends_refused_total"] == 1
            assert after["keylane_offset_server_deposed_total"] == 1
            with urllib.request.urlopen(url.replace("/metrics", "/healthz")) as answer:
                assert answer.read() == b"alive\n"
        finally:
            one.kill()


def scraped(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "offsets.topic.num.partitions=7", "--allow-unreplicated-log"), "has 4 partitions, and"),
        ((), "it has 1 replicas: give it 3"),
        (("--listen", "127.0.0.1:65534", "--allow-unreplicated-log"), "needs port 65536"),
        (("--listen", "0.0.0.0:9192", "--allow-unreplicated-log"), "is every address of this machine"),
    ],
)
def test_a_start_that_is_refused_says_why(one: OffsetServers, arguments: tuple[str, ...], said: str) -> None:
    port = () if "--listen" in arguments else ("--listen", f"127.0.0.1:{free_row(5)}")
    command = [sys.executable, "-m", "keylane", "offsets", "serve", "--log", one.log, *port, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_server_joins_when_it_has_read_the_log(tmp_path: Path) -> None:
    """A member is given partitions at once, and groups would wait while it read them."""
    with EmbeddedBroker() as log, OffsetServers(log.bootstrap_servers, tmp_path, 1, *OPTIONS) as servers:
        servers.settled()
        admin = Admin({"bootstrap.servers": log.bootstrap_servers})
        fault = log.fault("Fetch", times=None, error="NOT_LEADER_OR_FOLLOWER")
        second = servers.add()
        until(lambda: fault.met > 30, "it has asked for what the log has")
        assert len(admin.describe_group(SERVERS).members) == 1
        fault.remove()
        assert all(servers.settled().values())
        assert second.address in servers.settled()


@pytest.mark.full
def test_a_second_server_with_the_same_address_is_refused_and_a_restart_is_not(
    log: BrokerProcess, tmp_path: Path
) -> None:
    """A copied unit file, a load balancer's name: groups would wait for whichever of the two leads them, and is not
    reached."""
    with OffsetServers(log.bootstrap, tmp_path, 1, *OPTIONS) as servers:
        (first,) = servers.running
        servers.settled()
        second = [sys.executable, "-m", "keylane", "offsets", "serve", "--log", log.bootstrap, *OPTIONS]
        places = ["--listen", f"127.0.0.1:{free_row(5)}", "--advertise", first.address]
        ran = subprocess.run([*second, *places], capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert re.search(rf"has the address {first.address} already: give each server an --advertise", ran.stderr)
        assert ran.stderr.count("\n") == 1
        servers.kill(first)  # it is a member still, for a session
        servers.add(first.port)
        assert servers.settled().keys() == {first.address}
