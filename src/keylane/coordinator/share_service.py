"""The shell of share groups (KIP-932): makes durable what the pure parts decide, then answers.

Of a group its records are kept in its partition of `__consumer_offsets`, and how far it has got in each partition
in `__share_group_state`, whose records are the whole state each time. Who has which record is in memory alone: a
restart ends all deliveries that are out, and the records are given out again.

An answer waits for all of its group that is not durable yet, since it may tell of it. Where a batch fails, what the
group became by it never was: group and partitions are forgotten, and restored from what is durable; nobody is served
meanwhile.

Dead letters (KIP-1191) are written when it is durable that their records are archiving, and those are archived when
the letters are: a crash between the two writes them again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.deadline_timer import DeadlineTimer
from keylane.coordinator.deadlines import Deadlines
from keylane.coordinator.formats import SHARE_STATE, partition_for
from keylane.coordinator.group_batches import GroupBatches
from keylane.coordinator.share_groups.partition import NOT_BEGUN, RENEW, GivenUp, SharePartition, State
from keylane.coordinator.share_groups.protocol import HeartbeatAnswer, ShareGroupDescription
from keylane.coordinator.share_groups.records import (
    Place,
    PlacedTopic,
    decode_state,
    encode,
    encode_key,
    encode_state,
    encode_state_key,
)
from keylane.coordinator.share_groups.registry import ShareGroups
from keylane.wire import codes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.coordinator.consumer_groups.protocol import Topics
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.share_groups.partition import Acknowledgement, Acquired
    from keylane.coordinator.share_groups.protocol import HeartbeatRequest, ShareSettings
    from keylane.coordinator.share_groups.records import Record
    from keylane.storage.shared_sync import Round


class Read(NamedTuple):
    """What was read of a log for a member."""

    begin: int
    end: int
    """The first offset that was not read."""
    batches: list[tuple[int, int]]
    """First and last offset of those that have records for it."""


WriteLetters = Callable[[Place, GivenUp], Awaitable[int]]
"""Writes dead letters of records from the first on, and logs what is refused; the last offset that is through."""


class ShareService:
    """Requests and time in, answers and records out."""

    def __init__(
        self,
        topics: Topics,
        settings_of: Callable[[str], ShareSettings],
        journal: Journal,
        image: Image,
        offsets_partitions: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.groups = ShareGroups(topics, settings_of)
        self._topics = topics
        self._image = image
        self._offsets_partitions = offsets_partitions
        self._now_ms = now_ms
        self._partitions: dict[Place, SharePartition] = {}
        """Those that were read since the start."""
        self._listeners: dict[Place, set[Callable[[], None]]] = defaultdict(set)
        self.write_letters: WriteLetters | None = None
        """Set before members are served; until then nothing of what they gave up is archived."""
        self._burials: dict[Place, asyncio.Task[None]] = {}
        """Of partitions whose dead letters are being written."""
        self._deadlines: Deadlines[Place] = Deadlines()
        """When members have had records of a partition for too long."""
        self._batches = GroupBatches(
            journal, now_ms, self._restore, "the members and places of share group %s are too many to keep"
        )
        self.timer = DeadlineTimer(self._next_deadline_ms, now_ms, self._tick)

    # Life

    def restore(self) -> None:
        """Become what the journal says."""
        self.groups.restore(self._image.share_groups(), self._now_ms())
        for group in list(self.groups.by_id):
            self._drop_gone(group)
        self.timer.set()

    def close(self) -> None:
        self.timer.close()
        for burial in self._burials.values():
            burial.cancel()

    # Groups

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ShareGroupHeartbeat; it waits until what it changes is durable."""
        group = request.group
        if group in self._batches.broken:
            return HeartbeatAnswer(codes.COORDINATOR_LOAD_IN_PROGRESS)
        answer, records = self.groups.heartbeat(request, self._now_ms())
        error = self._append_records(group, records)
        self.timer.set()
        error = error or await self.settled(group)
        return answer if error == codes.NONE else HeartbeatAnswer(error)

    def describe(self, group: str) -> ShareGroupDescription:
        if group in self._batches.broken:
            return ShareGroupDescription(group, codes.COORDINATOR_LOAD_IN_PROGRESS)
        return self.groups.describe(group)

    def check_empty(self, group: str) -> int:
        """Whether the group is there and has no members: an error code."""
        if group in self._batches.broken:
            return codes.COORDINATOR_LOAD_IN_PROGRESS
        found = self.groups.by_id.get(group)
        if found is None:
            return codes.GROUP_ID_NOT_FOUND
        return codes.NONE if found.is_empty else codes.NON_EMPTY_GROUP

    def delete(self, group: str) -> int | Round:
        """End a group without members, and all that it has: an error code, or what to wait for before answering."""
        error = self.check_empty(group)
        if error != codes.NONE:
            return error
        found = self.groups.by_id[group]
        keys = [encode_key(group, *one) for one in found.record_keys()]
        places = self._places(group, found.topics)
        self.groups.forget(group)
        error = self._append_states(group, dict.fromkeys(places)) or self._batches.append(
            group, partition_for(group, self._offsets_partitions), [(key, None) for key in keys]
        )
        return error or self._batches.last(group)

    # Where it is

    def offsets(self, group: str) -> dict[uuid.UUID, tuple[str, dict[int, State]]]:
        """By topic id: the name, and the state of each partition that the group has a place in."""
        found = self.groups.by_id[group]
        return {
            topic: (name, {one: self.state_of(Place(group, topic, one)) for one in sorted(partitions)})
            for topic, (name, partitions) in found.topics.items()
        }

    async def move(self, group: str, starts: Mapping[uuid.UUID, tuple[str, Mapping[int, int]]]) -> int:
        """Set where a group without members is, by topic id: name, and offset by partition. An error code."""
        more = {topic: PlacedTopic(name, frozenset(offsets)) for topic, (name, offsets) in starts.items()}
        states = {}
        for topic, (_, offsets) in starts.items():
            for one, offset in offsets.items():
                place = Place(group, topic, one)
                states[place] = State(offset, self.state_of(place).epoch + 1)
        error = self._append_states(group, states) or self._append_records(group, self.groups.made(group).place(more))
        return error or await self.settled(group)

    async def drop(self, group: str, topics: Sequence[uuid.UUID]) -> int:
        """A group without members has no place in these topics any more: an error code."""
        error = self._drop(group, topics)
        return error or await self.settled(group)

    def end_topic(self, topic: str) -> None:
        """It is deleted: no group has a place in it any more."""
        for group, found in list(self.groups.by_id.items()):
            self._drop(group, [topic_id for topic_id, placed in found.topics.items() if placed.name == topic])

    def _drop_gone(self, group: str) -> None:
        found = self.groups.by_id[group]
        self._drop(group, [topic for topic in found.topics if self._topics.name_of(topic) is None])

    def _drop(self, group: str, topics: Sequence[uuid.UUID]) -> int:
        found = self.groups.by_id[group]
        placed = {topic: found.topics[topic] for topic in topics if topic in found.topics}
        if not placed:
            return codes.NONE
        places = self._places(group, placed)
        return self._append_records(group, found.drop(placed)) or self._append_states(group, dict.fromkeys(places))

    def _places(self, group: str, topics: Mapping[uuid.UUID, PlacedTopic]) -> list[Place]:
        return [Place(group, topic, one) for topic, placed in topics.items() for one in sorted(placed.partitions)]

    # Records

    def check(self, place: Place) -> int:
        """Whether the group may read this partition: an error code."""
        if place.group in self._batches.broken:
            return codes.COORDINATOR_LOAD_IN_PROGRESS
        group = self.groups.by_id.get(place.group)
        if group is None:
            return codes.GROUP_ID_NOT_FOUND
        if self._topics.name_of(place.topic_id) is None:
            return codes.UNKNOWN_TOPIC_ID
        is_there = group.has_place(place.topic_id, place.partition)
        return codes.NONE if is_there else codes.UNKNOWN_TOPIC_OR_PARTITION

    def partition(self, place: Place) -> SharePartition | None:
        """The partition, to be looked at; None: the group has not begun to read it."""
        found = self._partitions.get(place)
        if found is None:
            state = self.state_of(place)
            if state.start == NOT_BEGUN:
                return None
            found = self._partitions[place] = SharePartition(state)
            self._bury(place)
        return found

    def state_of(self, place: Place) -> State:
        live = self._partitions.get(place)
        if live is not None:
            return live.state
        kept = self._image.kept.get((SHARE_STATE, encode_state_key(place)))
        return State() if kept is None else decode_state(kept.value)

    async def begin(self, place: Place, offset: int) -> int:
        """The group begins to read a partition here, unless it has begun meanwhile: an error code."""
        if self.partition(place) is None:
            epoch = self.state_of(place).epoch
            error = self._append_states(place.group, {place: State(offset, epoch)})
            if error != codes.NONE:
                return error
        return await self.settled(place.group)

    def acquire(
        self, place: Place, partition: SharePartition, member: str, read: Read, most: int, *, is_strict: bool
    ) -> list[Acquired]:
        """What the member has from now on, of what was read of `partition`; nothing if there is another by now."""
        if self._partitions.get(place) is not partition:
            return []
        limits, now_ms = self.groups.settings_of(place.group).limits, self._now_ms()
        found = partition.acquire(
            member, (read.begin, read.end), read.batches, most, limits, now_ms, is_strict=is_strict
        )
        if found:
            self._deadlines.note(place, now_ms + limits.lock_ms)
            self.timer.set()
        return found

    def acknowledge(self, place: Place, member: str, said: Sequence[Acknowledgement]) -> int:
        """What a member says of records that it has: an error code. Before it is told, what changed has to be durable
        (`settled`)."""
        error = self.check(place)
        partition = self.partition(place) if error == codes.NONE else None
        if partition is None:
            return error or codes.INVALID_RECORD_STATE
        settings = self.groups.settings_of(place.group)
        now_ms, renews = self._now_ms(), any(RENEW in one.types for one in said)
        if renews and not settings.can_renew:
            return codes.INVALID_REQUEST
        error, is_other = partition.acknowledge(member, said, settings.limits, now_ms)
        if renews:
            self._deadlines.note(place, now_ms + settings.limits.lock_ms)
        if is_other:
            error = self._keep(place, partition)
        self.timer.set()
        return error

    def release(self, group: str, member: str) -> None:
        """The member's session is over: others may have what it had."""
        limits = self.groups.settings_of(group).limits
        for place, partition in list(self._partitions.items()):
            if place.group == group and partition.release(member, limits):
                self._keep(place, partition)

    def listen(self, place: Place, listener: Callable[[], None]) -> None:
        """Call it when there may be something to acquire, though the log is as it was; until `forget`."""
        self._listeners[place].add(listener)

    def forget(self, place: Place, listener: Callable[[], None]) -> None:
        self._listeners[place].discard(listener)
        if not self._listeners[place]:
            del self._listeners[place]

    async def settled(self, group: str) -> int:
        """Return when all of this group is durable: an error code, when it never will be."""
        return await self._batches.settled(group)

    # Time

    def _next_deadline_ms(self) -> int | None:
        found = (self._deadlines.next_ms, self.groups.next_deadline_ms)
        return min((deadline for deadline in found if deadline is not None), default=None)

    def _tick(self) -> None:
        now_ms = self._now_ms()
        for group, records in self.groups.tick(now_ms):
            self._append_records(group, records)
        for place in self._deadlines.due(now_ms):
            partition = self._partitions.get(place)
            if partition is not None and partition.tick(self.groups.settings_of(place.group).limits, now_ms):
                self._keep(place, partition)
            if partition is not None:
                self._deadlines.note(place, partition.next_deadline_ms)
        self.timer.set()

    def _tell(self, place: Place) -> None:
        for listener in [*self._listeners.get(place, ())]:
            listener()

    # Dead letters

    def _bury(self, place: Place) -> None:
        """Write the letters of what the group has given up here, unless that is under way."""
        partition, write = self._partitions.get(place), self.write_letters
        if partition is None or write is None or place in self._burials or not partition.given_up:
            return
        burial = asyncio.get_running_loop().create_task(self._write_all_letters(place, partition, write))
        self._burials[place] = burial
        burial.add_done_callback(lambda _: self._buried(place, burial))

    async def _write_all_letters(self, place: Place, partition: SharePartition, write: WriteLetters) -> None:
        while await self.settled(place.group) == codes.NONE and self._partitions.get(place) is partition:
            given_up = next(iter(partition.given_up), None)
            if given_up is None:
                return
            last = await write(place, given_up)
            if self._partitions.get(place) is partition:
                partition.archive(given_up.first, last)
                self._keep(place, partition)

    def _buried(self, place: Place, burial: asyncio.Task[None]) -> None:
        del self._burials[place]
        if not burial.cancelled():
            burial.result()
            self._bury(place)  # there may be another partition by now

    # The journal

    def _keep(self, place: Place, partition: SharePartition) -> int:
        """Its state is another one: an error code, when that never will be durable."""
        error = self._append_states(place.group, {place: partition.state})
        self._tell(place)
        self._bury(place)
        return error

    def _append_records(self, group: str, records: Iterable[Record]) -> int:
        pairs = [encode(group, record) for record in records]
        return self._batches.append(group, partition_for(group, self._offsets_partitions), pairs)

    def _append_states(self, group: str, states: Mapping[Place, State | None]) -> int:
        """These hold from now on; None ends one."""
        now_ms = self._now_ms()
        error = codes.NONE
        for place, state in states.items():
            if state is None:
                self._partitions.pop(place, None)
            elif place not in self._partitions or self._partitions[place].state != state:
                self._partitions[place] = SharePartition(state)
            value = None if state is None else encode_state(state, now_ms)
            error = error or self._batches.append(group, SHARE_STATE, [(encode_state_key(place), value)])
        return error

    def _restore(self, group: str) -> None:
        self.groups.forget(group)
        self.groups.restore(self._image.share_groups(group), self._now_ms())
        for place in [place for place in self._partitions if place.group == group]:
            del self._partitions[place]
            self._tell(place)
        self.timer.set()
