"""`Coordinators`: the coordinators of all offsets partitions as one, which is what handlers ask.

A group's is the one of its offsets partition; it answers NOT_COORDINATOR while another server leads that. `Nobody`
answers so always, and `Lost` for one that may have done what it was asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.protocol import JOIN, ConsumerGroupDescription, HeartbeatAnswer
from keylane.coordinator.formats import partition_for
from keylane.coordinator.groups.protocol import GroupDescription, JoinAnswer, SyncAnswer
from keylane.wire import codes
from keylane.wire.conditional_commit import OUTCOME_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from keylane.coordinator.consumer_groups.protocol import HeartbeatRequest
    from keylane.coordinator.coordinator import Coordinator, DeleteResult, ListedGroup
    from keylane.coordinator.groups.protocol import JoinRequest, Leaver, Left, SyncRequest
    from keylane.coordinator.offset_service import (
        CommitRequest,
        CommitResult,
        ConditionalResult,
        FetchedTopic,
        KnownCommit,
    )
    from keylane.offset_servers.known_configs import KnownConfigs
    from keylane.offset_servers.known_topics import KnownTopics
    from keylane.offset_servers.partitions import Partitions
    from keylane.storage.shared_sync import Round

FRESH_S = 5.0
"""How old the topics and configs may be that a member's heartbeat is answered by; its interval is as long. Who joins
waits for what there is now."""


class Coordinators:
    """What `Coordinator` says of each of these."""

    def __init__(self, partitions: Partitions, topics: KnownTopics, configs: KnownConfigs) -> None:
        """`topics` are what groups of KIP-848 are divided by, and `configs` what is set for them."""
        self._partitions = partitions
        self._topics = topics
        self._configs = configs

    def partition_of(self, group: str) -> int:
        return partition_for(group, len(self._partitions))

    def _of(self, group: str) -> Coordinator:
        return self._partitions.coordinator(self.partition_of(group))

    def commit(self, request: CommitRequest) -> int | CommitResult:
        self._expect(request)
        return self._of(request.group).commit(request)

    def _expect(self, request: CommitRequest) -> None:
        self._partitions.expect_commit(self.partition_of(request.group), [one.topic for one in request.topics])

    def know(self, request: CommitRequest) -> KnownCommit | None:
        return self._of(request.group).know(request)

    def commit_known(self, known: KnownCommit, offset: int, leader_epoch: int) -> Round | None:
        return self._of(known.request.group).commit_known(known, offset, leader_epoch)

    def commit_if(self, request: CommitRequest, expected: Sequence[Sequence[int]]) -> int | ConditionalResult:
        self._expect(request)
        return self._of(request.group).commit_if(request, expected)

    must_confirm = True

    def confirm(self, group: str) -> Round | None:
        return self._partitions.confirm(self.partition_of(group), group)

    def fetch(
        self,
        group: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        *,
        require_stable: bool = False,
        member: tuple[str | None, int] = (None, -1),
    ) -> int | Sequence[FetchedTopic]:
        return self._of(group).fetch(group, topics, require_stable=require_stable, member=member)

    def fetch_known(self, group: str, topic: str, partition: int) -> bytes | None:
        return self._of(group).fetch_known(group, topic, partition)

    def delete_group(self, group: str) -> int | Round:
        return self._of(group).delete_group(group)

    def delete_offsets(
        self, group: str, topics: Sequence[tuple[str, Sequence[int]]], *, is_begun: bool = False
    ) -> int | DeleteResult:
        return self._of(group).delete_offsets(group, topics, is_begun=is_begun)

    async def join(self, group: str, request: JoinRequest) -> JoinAnswer:
        return await self._of(group).join(group, request)

    async def sync(self, group: str, request: SyncRequest) -> SyncAnswer:
        return await self._of(group).sync(group, request)

    def heartbeat(self, group: str, member_id: str, instance_id: str | None, generation: int) -> int:
        return self._of(group).heartbeat(group, member_id, instance_id, generation)

    async def leave(self, group: str, leavers: Sequence[Leaver]) -> tuple[int, Sequence[Left]]:
        return await self._of(group).leave(group, leavers)

    async def consumer_heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        within_s = 0.0 if request.epoch == JOIN else FRESH_S
        await asyncio.gather(self._topics.be_fresh(within_s), self._configs.be_fresh((request.group,), within_s))
        return await self._of(request.group).consumer_heartbeat(request)

    def describe_consumer_group(self, group: str) -> ConsumerGroupDescription:
        return self._of(group).describe_consumer_group(group)

    def describe(self, group: str) -> tuple[int, GroupDescription]:
        return self._of(group).describe(group)

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> tuple[int, Sequence[ListedGroup]]:
        """The groups of all partitions that are led here."""
        listed: list[ListedGroup] = []
        for partition in self._partitions.led():
            error, some = self._partitions.coordinator(partition).list_groups(states, types)
            if error != codes.NONE:
                return error, ()
            listed += some
        return codes.NONE, listed


def _refuse(*_: object, **__: object) -> int:
    return codes.NOT_COORDINATOR


class Nobody:
    """What `Coordinator` says of a group that another server leads."""

    commit = commit_if = fetch = delete_group = delete_offsets = heartbeat = staticmethod(_refuse)
    must_confirm = False
    """There is nothing to wait for."""

    @staticmethod
    async def join(_group: str, request: JoinRequest) -> JoinAnswer:
        return JoinAnswer(codes.NOT_COORDINATOR, request.member_id)

    @staticmethod
    async def sync(_group: str, _request: SyncRequest) -> SyncAnswer:
        return SyncAnswer(codes.NOT_COORDINATOR)

    @staticmethod
    async def leave(_group: str, _leavers: Sequence[Leaver]) -> tuple[int, Sequence[Left]]:
        return codes.NOT_COORDINATOR, ()

    @staticmethod
    async def consumer_heartbeat(_request: HeartbeatRequest) -> HeartbeatAnswer:
        return HeartbeatAnswer(codes.NOT_COORDINATOR)

    @staticmethod
    def describe_consumer_group(group: str) -> ConsumerGroupDescription:
        return ConsumerGroupDescription(group, codes.NOT_COORDINATOR)

    @staticmethod
    def describe(group: str) -> tuple[int, GroupDescription]:
        return codes.NOT_COORDINATOR, GroupDescription(group, "", "", "", ())


class Lost(Nobody):
    """What is said of a request that a leader had not answered when it was lost: it may have been done. Whoever commits
    offsets commits them again, as at Apache Kafka; a conditional commit would fail on its own success."""

    @staticmethod
    def commit_if(*_: object, **__: object) -> int:
        return OUTCOME_UNKNOWN
