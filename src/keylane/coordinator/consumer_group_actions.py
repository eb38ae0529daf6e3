"""The shell of consumer groups of KIP-848: makes durable what the pure `ConsumerGroups` decides, then answers.

One heartbeat's records are one batch: durable whole, or not at all. An answer waits for its own records and for all of
its group before them, since it may tell of them. Where a batch fails, what the group became by it never was: the group
is forgotten and restored from what is durable, and its members ask again meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.protocol import HeartbeatAnswer
from keylane.coordinator.consumer_groups.records import encode, encode_key
from keylane.coordinator.deadline_timer import DeadlineTimer
from keylane.coordinator.formats import encode_group_key, encode_records, partition_for
from keylane.coordinator.journal.journal import BatchTooLargeError
from keylane.storage.filesystem import StorageError
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.coordinator.consumer_groups.protocol import HeartbeatRequest
    from keylane.coordinator.consumer_groups.records import Record
    from keylane.coordinator.consumer_groups.registry import ConsumerGroups
    from keylane.coordinator.groups.registry import GroupRegistry
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.storage.shared_sync import Round

logger = logging.getLogger("keylane.coordinator")


class ConsumerGroupActions:
    """Heartbeats and time in, answers and records out."""

    def __init__(
        self,
        groups: ConsumerGroups,
        classic: GroupRegistry,
        journal: Journal,
        image: Image,
        options: CoordinatorOptions,
        now_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._classic = classic
        self._journal = journal
        self._image = image
        self._partitions = options.offsets_topic_num_partitions
        self._now_ms = now_ms
        self.timer = DeadlineTimer(lambda: groups.next_deadline_ms, now_ms, self._tick)
        self._waiting: dict[str, tuple[int, Round]] = {}
        """By group: batches that are not durable yet, and the round of the last."""
        self._broken: set[str] = set()
        """Groups of which a batch failed."""

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        group = request.group
        if group in self._broken:
            return HeartbeatAnswer(codes.COORDINATOR_LOAD_IN_PROGRESS)
        classic = self._classic.by_id.get(group)
        if classic is not None and not classic.is_empty:
            return HeartbeatAnswer(codes.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.")
        answer, records = self._groups.heartbeat(request, self._now_ms())
        pairs = [encode(group, record) for record in records]
        if records and classic is not None:  # it has no members any more: it becomes a group of this protocol
            pairs.insert(0, (encode_group_key(group), None))
            self._classic.forget(group, classic.generation)
        error = self._append(group, pairs)
        self.timer.set()
        if error == codes.NONE and group in self._waiting:
            try:
                await self._waiting[group][1]
            except StorageError:
                error = codes.COORDINATOR_NOT_AVAILABLE
        return answer if error == codes.NONE else HeartbeatAnswer(error)

    def end(self, group: str) -> int:
        """End an empty group, so that a group of the classic protocol can take its id: an error code."""
        if group in self._broken:
            return codes.COORDINATOR_LOAD_IN_PROGRESS
        keys = self._groups.by_id[group].record_keys()
        self._groups.forget(group)
        return self._append(group, [(encode_key(group, *one), None) for one in keys])

    def close(self) -> None:
        self.timer.close()

    def _tick(self) -> None:
        changes: list[tuple[str, list[Record]]] = self._groups.tick(self._now_ms())
        for group, records in changes:
            self._append(group, [encode(group, record) for record in records])
        self.timer.set()

    def _append(self, group: str, pairs: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Make these durable: an error code, when they never will be."""
        if not pairs:
            return codes.NONE
        try:
            durable = self._journal.append(
                partition_for(group, self._partitions),
                encode_records(pairs, self._now_ms()),
                lambda failure, _offset: self._stored(group, failure),
            )
        except BatchTooLargeError as error:
            logger.warning("the members and assignments of group %s are too large to keep: %s", group, error)
            self._break(group)
            return codes.UNKNOWN_SERVER_ERROR
        except StorageError:
            self._break(group)
            return codes.COORDINATOR_NOT_AVAILABLE
        count = self._waiting[group][0] if group in self._waiting else 0
        self._waiting[group] = (count + 1, durable)
        return codes.NONE

    def _stored(self, group: str, failure: StorageError | None) -> None:
        count, durable = self._waiting.pop(group)
        if count > 1:
            self._waiting[group] = (count - 1, durable)
        if failure is not None:
            self._broken.add(group)
        self._mend(group)

    def _break(self, group: str) -> None:
        self._broken.add(group)
        self._mend(group)

    def _mend(self, group: str) -> None:
        """Restore a broken group, when nothing of it is on its way any more: the image holds what is durable."""
        if group not in self._broken or group in self._waiting:
            return
        self._broken.discard(group)
        self._groups.forget(group)
        self._groups.restore(self._image.consumer_groups(group), self._now_ms())
        self.timer.set()
