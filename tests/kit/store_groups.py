"""Models of a consumer group (KIP-848) and of a share group, and their clients: their part of the whole-store machine.

A client knows what it was told last, which may be history when its message arrives. After each step the live groups,
what a restart would read from the journal, and the models are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from keylane.coordinator.consumer_groups.protocol import GroupSettings, HeartbeatRequest
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.coordinator.share_groups.partition import (
    ACCEPT,
    DONE,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Limits,
    State,
)
from keylane.coordinator.share_groups.protocol import EARLIEST, ShareSettings
from keylane.coordinator.share_groups.protocol import HeartbeatRequest as ShareHeartbeatRequest
from keylane.coordinator.share_groups.records import Place
from keylane.coordinator.share_groups.registry import ShareGroups
from keylane.coordinator.share_service import Read
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from uuid import UUID

    from keylane.coordinator.coordinator import Coordinator
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.share_service import ShareService
    from kit.share_world import Topics

MODERN, SHARED = "modern", "shared"
"""The one consumer group, and the one share group."""
MEMBERS = ("m1", "m2")
SUBSCRIBED = "flights"
SESSION_MS = 45_000
LOCK_MS = 10_000
LOG_END = 60
"""Of the subscribed topic's partition 0, whose records are a batch each."""
EITHER = -1000
"""Whether a commit in an older epoch is taken depends on since when its member has the partitions."""
SHARE_SETTINGS = ShareSettings(
    SESSION_MS, 5_000, 0, len(MEMBERS), Limits(LOCK_MS, deliveries=10_000, in_flight=100), EARLIEST, False, True
)
KINDS = ("join", "heartbeat", "heartbeat", "leave", "share join", "share take", "share take", "share say", "share say",
         "share leave", "share delete")  # fmt: skip


@dataclass
class Member:
    """Of the consumer group: what it was told last."""

    epoch: int
    deadline_ms: int
    owned: Mapping[UUID, frozenset[int]] = field(default_factory=dict)


@dataclass
class Modern:
    """The consumer group."""

    members: dict[str, Member] = field(default_factory=dict)
    empty_since_ms = 0
    """Its offsets are as old as their commits."""

    @property
    def is_live(self) -> bool:
        return bool(self.members)

    def check_commit(self, member_id: str, epoch: int) -> int:
        if epoch < 0 and not self.members:
            return codes.NONE
        member = self.members.get(member_id)
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return codes.NONE
        return EITHER if 0 <= epoch < member.epoch else codes.STALE_MEMBER_EPOCH


@dataclass
class Shared:
    """The share group, and how far it has got in partition 0."""

    members: dict[str, int] = field(default_factory=dict)
    """Until when each has to be heard of."""
    is_placed: bool = False
    done: set[int] = field(default_factory=set)
    out: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Who has which record, and until when."""


class NewGroups:
    """Both, and what is sent to them."""

    def __init__(self, topics: Topics, now_ms: Callable[[], int]) -> None:
        self.modern: Modern | None = None
        self.shared: Shared | None = None
        self.told: dict[str, int] = {}
        """The epoch that each client of the consumer group believes in."""
        self._topics = topics
        self._now_ms = now_ms

    # What happens around them

    def opened(self, coordinator: Coordinator) -> None:
        """After a start: sessions begin anew, and what was out is free."""
        self._coordinator = coordinator
        if self.modern is not None:
            for member in self.modern.members.values():
                member.deadline_ms = self._now_ms() + SESSION_MS
        if self.shared is not None:
            self.shared.out.clear()
            self.shared.members = dict.fromkeys(self.shared.members, self._now_ms() + SESSION_MS)

    def time_passes(self, now_ms: int) -> None:
        if self.modern is not None:
            silent = [name for name, member in self.modern.members.items() if member.deadline_ms < now_ms]
            for name in silent:
                del self.modern.members[name]
        if self.shared is not None:
            self.shared.members = {name: until for name, until in self.shared.members.items() if until >= now_ms}
            self.shared.out = {offset: held for offset, held in self.shared.out.items() if held[1] >= now_ms}

    def topic_ended(self) -> None:
        if self.shared is not None:
            self.shared.is_placed = False
            self.shared.done.clear()
            self.shared.out.clear()

    # What clients send

    def message(self, kind: str, name: str, variant: int) -> Callable[[], Coroutine[Any, Any, None]]:
        """What a client sends now; it is done when it arrives."""
        if kind == "join":
            return partial(self._join, name)
        if kind in ("heartbeat", "leave"):
            return partial(self._heartbeat if kind == "heartbeat" else self._leave, name, self.told.get(name, 1))
        if kind == "share say":
            return partial(self._say, name, (ACCEPT, RELEASE, REJECT, RENEW)[variant % 4], 1 + variant % 3)
        found = {"share join": self._share_join, "share take": self._take, "share leave": self._share_leave}
        return partial(found[kind], name) if kind in found else self._share_delete

    async def _join(self, name: str) -> None:
        request = HeartbeatRequest(
            MODERN, name, 0, "client", "/host", rebalance_timeout_ms=10**9, topics=(SUBSCRIBED,), owned={}
        )
        answer = await self._coordinator.consumer_heartbeat(request)
        assert answer.error == codes.NONE, answer
        if self.modern is None:
            self.modern = Modern()
        before = self.modern.members.get(name)
        assert answer.epoch >= (1 if before is None else before.epoch)
        self.modern.members[name] = Member(answer.epoch, 0)
        self._was_told(name, answer)

    async def _heartbeat(self, name: str, epoch: int) -> None:
        known = None if self.modern is None else self.modern.members.get(name)
        owned = {} if known is None else known.owned
        request = HeartbeatRequest(MODERN, name, epoch, "client", "/host", owned=owned)
        answer = await self._coordinator.consumer_heartbeat(request)
        if self.modern is None:
            assert answer.error == codes.GROUP_ID_NOT_FOUND
        elif known is None:
            assert answer.error == codes.UNKNOWN_MEMBER_ID
        elif answer.error == codes.FENCED_MEMBER_EPOCH:
            assert epoch != known.epoch
        else:
            assert answer.error == codes.NONE
            assert epoch <= known.epoch <= answer.epoch
            self._was_told(name, answer)

    def _was_told(self, name: str, answer: Any) -> None:
        assert self.modern is not None
        member = self.modern.members[name]
        member.epoch, member.deadline_ms = answer.epoch, self._now_ms() + SESSION_MS
        self.told[name] = answer.epoch
        if answer.assignment is not None:
            member.owned = {topic: frozenset(ones) for topic, ones in answer.assignment.items()}

    async def _leave(self, name: str, _epoch: int) -> None:
        answer = await self._coordinator.consumer_heartbeat(HeartbeatRequest(MODERN, name, -1, "client", "/host"))
        if self.modern is None:
            assert answer.error == codes.GROUP_ID_NOT_FOUND
        elif name not in self.modern.members:
            assert answer.error == codes.UNKNOWN_MEMBER_ID
        else:
            assert answer.error == codes.NONE
            del self.modern.members[name]

    @property
    def _share(self) -> ShareService:
        assert self._coordinator.share is not None
        return self._coordinator.share

    async def _share_join(self, name: str) -> None:
        request = ShareHeartbeatRequest(SHARED, name, 0, "client", "/host", None, (SUBSCRIBED,))
        assert (await self._coordinator.share_heartbeat(request)).error == codes.NONE
        self.shared = self.shared or Shared()
        self.shared.members[name] = self._now_ms() + SESSION_MS
        self.shared.is_placed = SUBSCRIBED in self._topics.by_name

    async def _share_leave(self, name: str) -> None:
        answer = await self._coordinator.share_heartbeat(ShareHeartbeatRequest(SHARED, name, -1, "client", "/host"))
        if self.shared is None:
            assert answer.error == codes.GROUP_ID_NOT_FOUND
        elif name not in self.shared.members:
            assert answer.error == codes.UNKNOWN_MEMBER_ID
        else:
            assert answer.error == codes.NONE
            del self.shared.members[name]

    def _place(self) -> Place | None:
        """Where the group reads, if it may."""
        topic = self._topics.by_name.get(SUBSCRIBED)
        if topic is None:
            return None
        place = Place(SHARED, topic.topic_id, 0)
        error = self._share.check(place)
        if self.shared is None:
            assert error == codes.GROUP_ID_NOT_FOUND
        else:
            assert error == (codes.NONE if self.shared.is_placed else codes.UNKNOWN_TOPIC_OR_PARTITION)
        return place if error == codes.NONE else None

    async def _take(self, name: str) -> None:
        """Up to three records."""
        place = self._place()
        if place is None or self.shared is None:
            return
        assert await self._share.begin(place, 0) == codes.NONE
        found = self._share.partition(place)
        assert found is not None
        at = found.next_offset
        batches = [(offset, offset) for offset in range(at, min(at + 6, LOG_END))]
        read = Read(at, at + len(batches), batches)
        for run in self._share.acquire(place, found, name, read, 3, is_strict=True):
            for offset in range(run.first, run.last + 1):
                assert offset not in self.shared.done, "it comes back"
                assert offset not in self.shared.out, "two have it"
                self.shared.out[offset] = (name, self._now_ms() + LOCK_MS)

    async def _say(self, name: str, kind: int, count: int) -> None:
        place = self._place()
        if place is None or self.shared is None:
            return
        held = sorted(offset for offset, (member, _) in self.shared.out.items() if member == name)[:count]
        said = [Acknowledgement(offset, offset, (kind,)) for offset in held or [LOG_END + 1]]
        error = self._share.acknowledge(place, name, said)
        assert (error == codes.NONE) == bool(held)
        assert await self._share.settled(SHARED) == codes.NONE
        for offset in held:
            if kind == RENEW:
                self.shared.out[offset] = (name, self._now_ms() + LOCK_MS)
            else:
                del self.shared.out[offset]
            if kind in (ACCEPT, REJECT):
                self.shared.done.add(offset)

    async def _share_delete(self) -> None:
        result = self._coordinator.delete_group(SHARED)
        if self.shared is None:
            assert result == codes.GROUP_ID_NOT_FOUND
        elif self.shared.members:
            assert result == codes.NON_EMPTY_GROUP
        else:
            assert not isinstance(result, int)
            await result
            self.shared = None

    # What must hold

    def check(self, replayed: Image) -> None:
        """`replayed`: what a restart would read."""
        live = self._coordinator._consumer_groups
        again = ConsumerGroups(self._topics, lambda _: GroupSettings(SESSION_MS, 5_000, 0, 9), str)
        again.restore(replayed.consumer_groups(), self._now_ms())
        modern = {} if self.modern is None else {MODERN: set(self.modern.members)}
        for found in (live, again):
            assert {name: set(group.members) for name, group in found.by_id.items()} == modern
        assert live.describe(MODERN) == again.describe(MODERN)
        for name, member in ({} if self.modern is None else self.modern.members).items():
            assert live.by_id[MODERN].currents[name].epoch == member.epoch
        self._check_shared(replayed)

    def _check_shared(self, replayed: Image) -> None:
        again = ShareGroups(self._topics, lambda _: SHARE_SETTINGS)
        again.restore(replayed.share_groups(), self._now_ms())
        shared = {} if self.shared is None else {SHARED: set(self.shared.members)}
        for found in (self._share.groups, again):
            assert {name: set(group.members) for name, group in found.by_id.items()} == shared
        assert self._share.describe(SHARED) == again.describe(SHARED)
        topic = self._topics.by_name.get(SUBSCRIBED)
        states = dict(replayed.share_states())
        if topic is None or self.shared is None:
            assert not states
            return
        place = Place(SHARED, topic.topic_id, 0)
        state = self._share.state_of(place)
        assert states.pop(place, State()) == state
        assert all(one == State() for one in states.values()), "only partition 0 was read"
        done = {one for batch in state.batches if batch.state in DONE for one in range(batch.first, batch.last + 1)}
        assert done | set(range(max(state.start, 0))) == self.shared.done
