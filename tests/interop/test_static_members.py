"""Static members on Apache Kafka: a coordinator that restarts before the sync knows them by their earlier ids."""

from __future__ import annotations

import datetime
import logging
import struct
import threading
from typing import TYPE_CHECKING, Any

import peers
import pytest
from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode

from keylane.errors import FencedError
from keylane.pipeline import Commit
from keylane.wire.versions import request_type
from kit.protocol import ProtocolClient
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

JOIN, SYNC = 5, 3
SESSION = datetime.timedelta(seconds=10)
NOT_NOW = (
    ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator
)  # fmt: skip
"""Of a node that begins to coordinate, or that was taken for dead where it had no processor."""


@pytest.fixture
def kafka(jvm_peers: None) -> Iterator[peers.ApacheKafka]:
    """One of our own, as it is killed."""
    with peers.ApacheKafka({"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


class Leader:
    """The group's leader, which asks for its assignment when it is told to. Nobody has one before."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._client = ProtocolClient(stage.servers)
        self._member_id = ""
        self._generation = -1

    def join(self) -> list[str]:
        """Returns the members of the new generation, once all have joined."""
        topics = struct.pack(">hih", 1, 1, len(self._stage.topic)) + self._stage.topic.encode() + struct.pack(">i", -1)
        protocol = _part("join_group", JOIN, "JoinGroupRequestProtocol")(name="range", metadata=topics)
        while True:
            answer = self._client.ask(
                "join_group",
                JOIN,
                group_id=self._stage.group,
                session_timeout=SESSION,
                rebalance_timeout=SESSION * 10,
                member_id=self._member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=(protocol,),
            )
            if answer.error_code in NOT_NOW:
                continue
            self._member_id = answer.member_id
            if answer.error_code != ErrorCode.member_id_required:
                break
        assert (answer.error_code, answer.leader) == (ErrorCode.none, self._member_id)
        self._generation = answer.generation_id
        return [one.member_id for one in answer.members]

    def sync(self, members: list[str]) -> None:
        """Everybody gets nothing."""
        nothing = struct.pack(">hii", 0, 0, -1)
        row = _part("sync_group", SYNC, "SyncGroupRequestAssignment")
        answer = self._client.ask(
            "sync_group",
            SYNC,
            group_id=self._stage.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=None,
            assignments=tuple(row(member_id=one, assignment=nothing) for one in members),
        )
        assert answer.error_code == ErrorCode.none

    def close(self) -> None:
        self._client.close()


def _part(api: str, version: int, name: str) -> Any:
    module = request_type(api, version).__module__
    return getattr(__import__(module, fromlist=[name]), name)


def test_a_member_that_is_fenced_by_an_earlier_id_joins_again(
    kafka: peers.ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(kafka.bootstrap, "static")
    stage.create(2)
    # Far above the 25 s that it takes until the member is heard again: a predecessor that has expired fences nobody.
    settings = {**stage.kafka, "group.instance.id": "one", "session.timeout.ms": 240_000}
    assert stage.admin.committed_offsets(stage.group) == {}, "there is a coordinator, which is asked for here"
    leader = Leader(stage)
    leader.sync(leader.join())
    predecessor = Consumer(settings)
    assigned: list[Any] = []
    predecessor.subscribe([stage.topic], on_assign=lambda _, partitions: assigned.append(partitions))
    joining = threading.Thread(target=lambda: leader.sync(leader.join()))  # when it hears of the rebalance
    while not joining.ident or joining.is_alive():
        predecessor.poll(0.05)
        if not joining.ident and stage.admin.describe_group(stage.group).state != "stable":
            joining.start()
    while not assigned:
        predecessor.poll(0.05)
    predecessor.close()  # which says nothing to the group, as it is a static member

    generation: list[list[str]] = []
    joining = threading.Thread(target=lambda: generation.append(leader.join()))
    joining.start()  # and waits for the predecessor
    until(lambda: stage.admin.describe_group(stage.group).state == "preparing_rebalance", "the group rebalances")
    caplog.set_level(logging.DEBUG, "keylane.kafka")
    pipeline = stage.pipeline(lambda _: None, kafka={**settings, "debug": "cgrp"}, commit=Commit(interval_ms=50))
    one = ThreadMember(pipeline, "client-one")
    try:
        joining.join()
        assert len(generation[0]) == 2
        # One that has not read yet which id it got joins under none, and nobody is fenced.
        until(lambda: "join state wait-join -> wait-sync" in caplog.text, "the member has a new id, and waits")
        leader.close()
        kafka.kill()
        kafka.start()
        until(lambda: "joins again" in caplog.text, "it is fenced", wait_s=180)  # 25 to 40 s on an idle machine
        stage.fill((None, number % 2) for number in range(20))
        until(stage.all_is_committed, "it goes on", wait_s=180)
    finally:
        one.consumer.stop()
        one.end()


def test_of_two_with_one_name_the_older_one_ends(apache_kafka: peers.ApacheKafka) -> None:
    older, newer = two_of_one_name(apache_kafka, "classic")
    try:
        with pytest.raises(FencedError, match="another process has joined"):
            older.end()
        until(lambda: newer.assigned == 2, "the other one has the partitions")
    finally:
        newer.consumer.stop()
        newer.end()


def test_under_kip_848_the_newer_one_waits_until_the_name_is_free(apache_kafka: peers.ApacheKafka) -> None:
    """The group refuses it as long as the older one is there."""
    older, newer = two_of_one_name(apache_kafka, "consumer")
    try:
        assert older.assigned == 2
        assert newer.assigned == 0
        older.consumer.stop()
        older.end()
        until(lambda: newer.assigned == 2, "it has the partitions then")
    finally:
        newer.consumer.stop()
        newer.end()


def two_of_one_name(apache_kafka: peers.ApacheKafka, protocol: str) -> tuple[ThreadMember, ThreadMember]:
    stage = Stage(apache_kafka.bootstrap, f"two-{protocol}")
    stage.create(2)
    settings = {"bootstrap.servers": stage.servers, "group.id": stage.group, "group.instance.id": "one"}
    pipeline = stage.pipeline(lambda _: None, kafka=settings | {"group.protocol": protocol})
    older = ThreadMember(pipeline, "older")
    until(lambda: older.assigned == 2, "it is a member")
    return older, ThreadMember(pipeline, "newer")
