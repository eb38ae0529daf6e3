"""The shell of consumer groups of KIP-848: makes durable what the pure `ConsumerGroups` decides, then answers.

One event's records are one batch: durable whole, or not at all. An answer waits for its own records and for all of
its group before them, since it may tell of them. Where a batch fails, what the group became by it never was: the group
is forgotten and restored from what is durable, and its members ask again meanwhile.

A group with members may change its protocol (docs/adr/0097): a batch then ends the records of the one and begins those
of the other. Upwards members are answered at once, as members of the consumer group. Downwards the group of the classic
protocol begins when the batch is durable, since it makes records of its own without being asked; until then the group
is `unsettled`, and who asks is told to ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.migration import CONSUMER_PROTOCOL_TYPE, upgraded
from keylane.coordinator.consumer_groups.protocol import JOIN, HeartbeatAnswer
from keylane.coordinator.consumer_groups.records import CLASSIC_GROUP, Record, encode
from keylane.coordinator.deadline_timer import DeadlineTimer
from keylane.coordinator.formats import GroupValue, RecordFormatError, partition_for
from keylane.coordinator.group_batches import GroupBatches
from keylane.coordinator.groups.protocol import JoinAnswer, SyncAnswer
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.coordinator.consumer_groups.protocol import HeartbeatRequest, Topics
    from keylane.coordinator.consumer_groups.registry import ConsumerGroups
    from keylane.coordinator.group_actions import GroupActions
    from keylane.coordinator.groups.group import Group
    from keylane.coordinator.groups.protocol import JoinRequest, Leaver, Left, SyncRequest
    from keylane.coordinator.groups.registry import GroupRegistry
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.options import CoordinatorOptions

logger = logger_of("keylane.coordinator")


class _NotUpgradedError(Exception):
    """Why a group stays one of the classic protocol."""


class ConsumerGroupActions:
    """Requests and time in, answers and records out."""

    def __init__(
        self,
        groups: ConsumerGroups,
        classic: GroupRegistry,
        classic_actions: GroupActions,
        topics: Topics,
        journal: Journal,
        image: Image,
        options: CoordinatorOptions,
        now_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._classic = classic
        self._classic_actions = classic_actions
        self._topics = topics
        self._image = image
        self._partitions = options.offsets_topic_num_partitions
        self._now_ms = now_ms
        self.timer = DeadlineTimer(lambda: groups.next_deadline_ms, now_ms, self._tick)
        self._batches = GroupBatches(
            journal, now_ms, self._restore, "the members and assignments of group %s are too large to keep"
        )
        self._downgrading: set[str] = set()
        """Groups that are about to be of the classic protocol."""

    def is_unsettled(self, group: str) -> bool:
        """Whether nobody may be told of this group now."""
        return group in self._downgrading or group in self._batches.broken

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat."""
        group = request.group
        classic = self._classic.by_id.get(group)
        before: list[Record] = []
        if classic is not None:
            if not classic.is_empty:
                found = self._upgrade(request, classic)
                if isinstance(found, HeartbeatAnswer):
                    return found
                before = found
            before.insert(0, Record(CLASSIC_GROUP, "", None))
        answer, records = self._groups.heartbeat(request, self._now_ms())
        if classic is not None and not records:
            self._groups.forget(group)  # it is refused, and the group of the classic protocol goes on
            return answer
        if classic is not None:
            if classic.is_empty:
                self._classic.forget(group, classic.generation)
            else:
                logger.info("group %s is a consumer group now, with %d classic members", group, len(classic.roster))
                self._classic_actions.give_way(group)
        error = await self._store(group, [*before, *records])
        return answer if error == codes.NONE else HeartbeatAnswer(error)

    def _upgrade(self, request: HeartbeatRequest, classic: Group) -> list[Record] | HeartbeatAnswer:
        """The records of a group of the classic protocol as a consumer group, which there is from now on; or why it
        does not become one."""
        group, settings = request.group, self._groups.settings_of(request.group)
        if request.epoch != JOIN:
            return HeartbeatAnswer(codes.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.")
        try:
            if not settings.can_upgrade:
                raise _NotUpgradedError("the online upgrade is disabled")
            if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
                raise _NotUpgradedError("the group does not use the consumer embedded protocol")
            if len(classic.roster) > settings.max_size:
                raise _NotUpgradedError("the group size exceeds the consumer group maximum size")
            records = upgraded(classic.generation, classic.protocol, classic.roster, self._topics)
        except (_NotUpgradedError, RecordFormatError) as error:
            why = (
                f"the embedded consumer protocol is malformed: {error}"
                if isinstance(error, RecordFormatError)
                else error
            )
            return HeartbeatAnswer(
                codes.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group} to consumer group because {why}."
            )
        self._groups.restore(((group, record) for record in records), self._now_ms())
        return records

    async def join(self, group: str, request: JoinRequest) -> JoinAnswer:
        """JoinGroup to a consumer group that has members."""
        error = self._classic.check_join(group, request)
        if error == codes.NONE:
            answer, records = self._groups.join(group, request, self._now_ms())
            error = await self._store(group, records, is_rebalancing=False)
        return answer if error == codes.NONE else JoinAnswer(error, request.member_id)

    async def sync(self, group: str, request: SyncRequest) -> SyncAnswer:
        answer = self._groups.sync(group, request, self._now_ms())
        error = await self._store(group, ())
        return answer if error == codes.NONE else SyncAnswer(error)

    def heartbeat_of_classic(self, group: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat: an error code."""
        error = self._groups.heartbeat_of_classic(group, member_id, instance_id, generation, self._now_ms())
        self.timer.set()
        return error

    async def leave(self, group: str, leavers: Sequence[Leaver]) -> tuple[int, Sequence[Left]]:
        results, records = self._groups.leave_by_classic(group, leavers, self._now_ms())
        error = await self._store(group, records)
        return (codes.NONE, results) if error == codes.NONE else (error, ())

    def end(self, group: str) -> int:
        """End an empty group, so that a group of the classic protocol can take its id: an error code."""
        keys = self._groups.by_id[group].record_keys()
        self._groups.forget(group)
        return self._append(group, [Record(*one, None) for one in keys])

    def close(self) -> None:
        self.timer.close()

    def _tick(self) -> None:
        changes: list[tuple[str, list[Record]]] = self._groups.tick(self._now_ms())
        for group, records in changes:
            self._append(group, records)
        self.timer.set()

    async def _store(self, group: str, records: Sequence[Record], *, is_rebalancing: bool = True) -> int:
        """Return when these, and what the group became before them, are durable: an error code, when they never will
        be."""
        error = self._append(group, records, is_rebalancing=is_rebalancing)
        self.timer.set()
        return error or await self._batches.settled(group)

    def _append(self, group: str, records: Sequence[Record], *, is_rebalancing: bool = True) -> int:
        """Make these durable: an error code, when they never will be."""
        last = records[-1].value if records else None
        became = last if isinstance(last, GroupValue) else None
        if became is not None:
            self._downgrading.add(group)

        def stored() -> None:
            if became is not None:
                logger.info("group %s is of the classic protocol now, with %d members", group, len(became.members))
                self._downgrading.discard(group)
                self._classic_actions.adopt(group, became, is_rebalancing=is_rebalancing)

        pairs = [encode(group, record) for record in records]
        return self._batches.append(group, partition_for(group, self._partitions), pairs, stored)

    def _restore(self, group: str) -> None:
        self._downgrading.discard(group)
        self._groups.forget(group)
        self._groups.restore(self._image.consumer_groups(group), self._now_ms())
        if group not in self._classic.by_id:
            for _, value in self._image.groups(group):
                self._classic_actions.adopt(group, value, is_rebalancing=False)
        self.timer.set()
