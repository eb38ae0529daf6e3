"""One share group as a state machine: heartbeats and the time in, answers and records out.

There is no clock, socket, thread or log here. As a consumer group of KIP-848 (docs/adr/0096), it is what its records
amount to (`apply`), and nothing else but deadlines; an event that is refused (`RefusedError`) has changed nothing.

The group's epoch grows when members, their subscriptions or the topics change. A target assignment is computed for an
epoch, and a member has its target from its next heartbeat on: nobody has to give anything back before, since members
may read the same partition. What becomes of the records is each partition's (`partition`).

The group has a place in every partition of the topics that its members ever subscribed to (`topics`), which it keeps
when it is empty.

Sources: KIP-932; Apache Kafka's `GroupMetadataManager` and `ShareGroup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.assignors import metadata_hash
from keylane.coordinator.share_groups import assignor
from keylane.coordinator.share_groups.protocol import (
    JOIN,
    HeartbeatAnswer,
    MemberDescription,
    RefusedError,
    ShareGroupDescription,
)
from keylane.coordinator.share_groups.records import (
    CURRENT,
    GROUP,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    TOPICS,
    Current,
    Group,
    Member,
    PlacedTopic,
    Record,
    Target,
    TargetEpoch,
)
from keylane.coordinator.share_groups.records import Topics as PlacedTopics
from keylane.wire import codes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping

    from keylane.coordinator.consumer_groups.assignors import Topic
    from keylane.coordinator.consumer_groups.protocol import Topics
    from keylane.coordinator.share_groups.protocol import HeartbeatRequest, ShareSettings
    from keylane.coordinator.share_groups.records import Assigned, Value

NOTHING = Current(0, 0, {})
"""What a member has that has just come."""
SHARE_PROTOCOL_TYPE = "share"


class ShareGroup:
    """A group's members, epochs and timers."""

    protocol_type = SHARE_PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assigned] = {}
        self.currents: dict[str, Current] = {}
        self.topics: dict[uuid.UUID, PlacedTopic] = {}
        """Those that it has a place in."""
        self._metadata_hash = 0
        self._assigned_at_ms: int | None = None
        self._kinds: set[int] = set()
        """Of the records without a name that there are."""
        self._seen_version: int | None = None
        """Of the topics, when they were looked at last."""
        self._sessions: dict[str, int] = {}
        """By member: until when it must be heard of."""
        self._records: list[Record] = []

    # The state

    def apply(self, record: Record) -> None:
        """A record is true from now on, whatever came before it."""
        kind, name, value = record
        if kind in (GROUP, TARGET_EPOCH, TOPICS):
            (self._kinds.discard if value is None else self._kinds.add)(kind)
        if kind == GROUP:
            self.epoch, self._metadata_hash = value if isinstance(value, Group) else Group(0)
        elif kind == TARGET_EPOCH:
            found = value if isinstance(value, TargetEpoch) else TargetEpoch(0)
            self.assignment_epoch, self._assigned_at_ms = found.epoch, found.timestamp_ms or None
        elif kind == TOPICS:
            self.topics = dict(value.by_id) if isinstance(value, PlacedTopics) else {}
        elif kind == MEMBER:
            self.members.pop(name, None)
            if isinstance(value, Member):
                self.members[name] = value
        elif kind == TARGET:
            self.targets.pop(name, None)
            if isinstance(value, Target):
                self.targets[name] = value.partitions
        elif kind == CURRENT:
            self.currents.pop(name, None)
            if isinstance(value, Current):
                self.currents[name] = value

    def _emit(self, kind: int, name: str = "", value: Value | None = None) -> None:
        record = Record(kind, name, value)
        self.apply(record)
        self._records.append(record)

    def _take(self) -> list[Record]:
        records, self._records = self._records, []
        return records

    @property
    def state(self) -> str:
        """As DescribeShareGroups and ListGroups name it."""
        return "Stable" if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        return not self.members

    def has_place(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Whether it may read this partition."""
        topic = self.topics.get(topic_id)
        return topic is not None and partition in topic.partitions

    @property
    def next_deadline_ms(self) -> int | None:
        return min(self._sessions.values(), default=None)

    def record_keys(self) -> list[tuple[int, str]]:
        """Kinds and names of the records that there are: what to remove when the group ends."""
        return [
            *((CURRENT, name) for name in self.currents),
            *((TARGET, name) for name in self.targets),
            *((MEMBER, name) for name in self.members),
            *((kind, "") for kind in sorted(self._kinds, reverse=True)),
        ]

    # Events

    def heartbeat(
        self, request: HeartbeatRequest, topics: Topics, settings: ShareSettings, now_ms: int
    ) -> tuple[HeartbeatAnswer, list[Record]]:
        """A member joins (epoch 0), or is still there. Raises `RefusedError`."""
        name = request.member_id
        self._check(request, settings)
        before = self.members.get(name)
        said = () if before is None else before.topics
        member = Member(
            request.rack_id or (None if before is None else before.rack_id),
            request.client_id,
            request.client_host,
            said if request.topics is None else tuple(sorted(set(request.topics))),
        )
        if member != before:
            self._emit(MEMBER, name, member)
        is_new = before is None or member.topics != before.topics
        if is_new or self._seen_version != topics.version:
            self._look_at(topics, is_new_epoch=is_new)
        is_due = self._assigned_at_ms is None or now_ms - self._assigned_at_ms >= settings.assignment_interval_ms
        if self.epoch > self.assignment_epoch and is_due:
            self._assign(topics, now_ms)
        old = self.currents.get(name, NOTHING)
        new = self._current(old, member, self.targets.get(name, {}), topics)
        if new != old or name not in self.currents:
            self._emit(CURRENT, name, new)
        self._sessions[name] = now_ms + settings.session_timeout_ms
        has_to_say = request.epoch == JOIN or request.topics is not None or new.partitions != old.partitions
        answer = HeartbeatAnswer(
            codes.NONE,
            None,
            name,
            new.epoch,
            settings.heartbeat_interval_ms,
            new.partitions if has_to_say else None,
        )
        return answer, self._take()

    def leave(self, request: HeartbeatRequest, topics: Topics) -> tuple[HeartbeatAnswer, list[Record]]:
        """A member leaves. Raises `RefusedError`."""
        self._check_known(request.member_id)
        self._fence(request.member_id, topics)
        return HeartbeatAnswer(codes.NONE, None, request.member_id, request.epoch), self._take()

    def tick(self, topics: Topics, now_ms: int) -> list[Record]:
        """Remove the members whose session is over."""
        for name in [name for name, until in self._sessions.items() if until <= now_ms]:
            self._fence(name, topics)
        return self._take()

    def begin(self, settings: ShareSettings, now_ms: int) -> None:
        """After the replay of its records: every member has a session from now on."""
        self._sessions = dict.fromkeys(self.members, now_ms + settings.session_timeout_ms)

    def place(self, more: Mapping[uuid.UUID, PlacedTopic]) -> list[Record]:
        """An administrator sets where it is in these topics: it has a place there."""
        self._emit_topics(self.topics | {topic: self._merged(topic, new) for topic, new in more.items()})
        if GROUP not in self._kinds:
            self._emit(GROUP, value=Group(self.epoch))
        return self._take()

    def drop(self, gone: Iterable[uuid.UUID]) -> list[Record]:
        """It has no place in these topics any more."""
        left = {topic: placed for topic, placed in self.topics.items() if topic not in set(gone)}
        self._emit_topics(left)
        return self._take()

    # What is asked

    def describe(self, topics: Topics) -> ShareGroupDescription:
        members = tuple(
            MemberDescription(
                name,
                member.rack_id,
                self.currents.get(name, NOTHING).epoch,
                member.client_id,
                member.client_host,
                member.topics,
                {
                    topic: ones
                    for topic, ones in self.currents.get(name, NOTHING).partitions.items()
                    if topics.name_of(topic) is not None
                },
            )
            for name, member in self.members.items()
        )
        return ShareGroupDescription(
            self.group_id,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=assignor.NAME,
            members=members,
        )

    # Checks

    def _check(self, request: HeartbeatRequest, settings: ShareSettings) -> None:
        name = request.member_id
        if request.epoch == JOIN:
            if name not in self.members and len(self.members) >= settings.max_size:
                raise RefusedError(
                    codes.GROUP_MAX_SIZE_REACHED,
                    f"The share group has reached its maximum capacity of {settings.max_size} members.",
                )
            return
        self._check_known(name)
        current = self.currents.get(name, NOTHING)
        if request.epoch in (current.epoch, current.previous_epoch):
            return  # the answer to its last heartbeat may not have reached it
        which = "greater" if request.epoch > current.epoch else "smaller"
        raise RefusedError(
            codes.FENCED_MEMBER_EPOCH,
            f"The share group member has a {which} member epoch ({request.epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )

    def _check_known(self, name: str) -> None:
        if name not in self.members:
            raise RefusedError(codes.UNKNOWN_MEMBER_ID, f"Member {name} is not a member of group {self.group_id}.")

    # Changes

    def _current(self, old: Current, member: Member, target: Assigned, topics: Topics) -> Current:
        """What the member has next: its target, of the topics that it still subscribes to."""
        wanted = {topic: ones for topic, ones in target.items() if topics.name_of(topic) in member.topics}
        if old.epoch == self.assignment_epoch and old.partitions == wanted:
            return old
        previous = old.epoch if old.epoch != self.assignment_epoch else old.previous_epoch
        return Current(self.assignment_epoch, previous, wanted)

    def _look_at(self, topics: Topics, *, is_new_epoch: bool) -> None:
        """Begin a new epoch if members, or the topics that they subscribe to, are others; take a place in each."""
        self._seen_version = topics.version
        known = self._known(topics)
        wanted = {
            topic.topic_id: self._merged(topic.topic_id, PlacedTopic(name, frozenset(range(topic.partition_count))))
            for name, topic in known.items()
        }
        if any(self.topics.get(topic) != placed for topic, placed in wanted.items()):
            self._emit_topics(self.topics | wanted)
        digest = metadata_hash(known)
        if is_new_epoch or digest != self._metadata_hash:
            self._emit(GROUP, value=Group(self.epoch + 1, digest))

    def _merged(self, topic: uuid.UUID, new: PlacedTopic) -> PlacedTopic:
        old = self.topics.get(topic)
        return new if old is None else PlacedTopic(new.name, old.partitions | new.partitions)

    def _emit_topics(self, by_id: dict[uuid.UUID, PlacedTopic]) -> None:
        if by_id != self.topics:
            self._emit(TOPICS, value=PlacedTopics(by_id))

    def _known(self, topics: Topics) -> dict[str, Topic]:
        """The topics that members subscribe to and that exist."""
        names = sorted({name for member in self.members.values() for name in member.topics})
        found = ((name, topics.get(name)) for name in names)
        return {name: topic for name, topic in found if topic is not None}

    def _assign(self, topics: Topics, now_ms: int) -> None:
        members = {name: frozenset(member.topics) for name, member in self.members.items()}
        for name, target in assignor.assign(members, self._known(topics)).items():
            if self.targets.get(name) != target:
                self._emit(TARGET, name, Target(target))
        self._emit(TARGET_EPOCH, value=TargetEpoch(self.epoch, now_ms))

    def _fence(self, name: str, topics: Topics) -> None:
        """Begin a new epoch without the member. The group takes a place in new topics when a member asks, not when one
        goes."""
        for kind in (CURRENT, TARGET, MEMBER):
            self._emit(kind, name)
        self._sessions.pop(name, None)
        self._emit(GROUP, value=Group(self.epoch + 1, metadata_hash(self._known(topics))))
