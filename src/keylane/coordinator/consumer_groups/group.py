"""One consumer group of KIP-848 as a state machine: heartbeats and the time in, answers and records out.

There is no clock, socket, thread or log here. The state is what the group's records amount to (`apply`), and nothing
else but deadlines: each event decides, and changes the state only by records that it hands back to be made durable. So
what a restart replays is what was served. An event that is refused (`RefusedError`) has changed nothing.

The group's epoch grows when members, their subscriptions or the topics change. A target assignment is computed for an
epoch; each member comes to it by its own heartbeats (`reconciliation`).

Members of the classic protocol are members like others: what they say in a JoinGroup is a heartbeat to the group, and
its epoch is their generation. Their heartbeats change nothing: they only tell them to join again. When no other member
is left the group becomes one of the classic protocol: then all its records end, and the last of the change is that
group's (`records.CLASSIC_GROUP`).

Sources: KIP-848; Apache Kafka's `GroupMetadataManager`, `ConsumerGroup` and `TargetAssignmentBuilder`; KIP-1251 and
KIP-1263. Kafka resolves regular expressions in the background, so that a member gets its topics a heartbeat later; here
they are resolved at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.assignors import ASSIGNORS, Subscriber, metadata_hash
from keylane.coordinator.consumer_groups.embedded import encode_assignment, read_subscription
from keylane.coordinator.consumer_groups.migration import downgraded
from keylane.coordinator.consumer_groups.protocol import (
    JOIN,
    LEAVE_FOR_A_WHILE,
    ConsumerGroupDescription,
    HeartbeatAnswer,
    MemberDescription,
    RefusedError,
)
from keylane.coordinator.consumer_groups.reconciliation import reconcile
from keylane.coordinator.consumer_groups.records import (
    CLASSIC_GROUP,
    CURRENT,
    GROUP,
    MEMBER,
    PARTITION_METADATA,
    PATTERN,
    STABLE,
    TARGET,
    TARGET_EPOCH,
    UNRELEASED,
    UNREVOKED,
    ClassicMember,
    Current,
    Group,
    Member,
    Pattern,
    Record,
    TargetAssignment,
    TargetEpoch,
)
from keylane.coordinator.formats import RecordFormatError
from keylane.coordinator.groups.protocol import UNKNOWN_MEMBER_ID, JoinAnswer, Left, SyncAnswer
from keylane.coordinator.patterns import PatternError, matcher
from keylane.wire import codes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from keylane.coordinator.consumer_groups.assignors import Topic
    from keylane.coordinator.consumer_groups.protocol import GroupSettings, HeartbeatRequest, Topics
    from keylane.coordinator.consumer_groups.records import Owned, Target, Value
    from keylane.coordinator.groups.protocol import JoinRequest, Leaver, SyncRequest

FIRST_EPOCH = 1
NOTHING = Current(0, 0, STABLE, {}, {})
"""What a member has that has just come."""
CONSUMER_PROTOCOL_TYPE = "consumer"


class ConsumerGroup:
    """A group's members, epochs and timers."""

    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.currents: dict[str, Current] = {}
        self._metadata_hash = 0
        self._assigned_at_ms: int | None = None
        self._patterns: dict[str, Pattern] = {}
        self._static_ids: dict[str, str] = {}
        self._owners: dict[tuple[uuid.UUID, int], str] = {}
        self._kinds: set[int] = set()
        """Of the records without a name that there are."""
        self._seen_version: int | None = None
        """Of the topics, when they were looked at last."""
        self._sessions: dict[str, int] = {}
        """By member: until when it must be heard of."""
        self._revocations: dict[str, tuple[int, int]] = {}
        """By member that is to give something back: until when, and in which epoch it is till then."""
        self._joins: dict[str, int] = {}
        """By member of the classic protocol that was told to join again: until when."""
        self._syncs: dict[str, int] = {}
        """By one that has joined: until when it must ask for its assignment."""
        self._records: list[Record] = []

    # The state

    def apply(self, record: Record) -> None:
        """A record is true from now on, whatever came before it."""
        kind, name, value = record
        if kind in (GROUP, TARGET_EPOCH, PARTITION_METADATA):
            (self._kinds.discard if value is None else self._kinds.add)(kind)
        if kind == GROUP:
            self.epoch, self._metadata_hash = value if isinstance(value, Group) else Group(FIRST_EPOCH)
        elif kind == TARGET_EPOCH:
            found = value if isinstance(value, TargetEpoch) else TargetEpoch(0)
            self.assignment_epoch, self._assigned_at_ms = found.epoch, found.timestamp_ms or None
        elif kind == MEMBER:
            self._apply_member(name, value if isinstance(value, Member) else None)
        elif kind == TARGET:
            self.targets.pop(name, None)
            if isinstance(value, TargetAssignment):
                self.targets[name] = value.partitions
        elif kind == CURRENT:
            self._apply_current(name, value if isinstance(value, Current) else None)
        elif kind == PATTERN:
            self._patterns.pop(name, None)
            if isinstance(value, Pattern):
                self._patterns[name] = value

    def _apply_member(self, name: str, value: Member | None) -> None:
        old = self.members.pop(name, None)
        if old is not None and old.instance_id is not None and self._static_ids.get(old.instance_id) == name:
            del self._static_ids[old.instance_id]
        if value is not None:
            self.members[name] = value
            if value.instance_id is not None:
                self._static_ids[value.instance_id] = name

    def _apply_current(self, name: str, value: Current | None) -> None:
        for one in _partitions(self.currents.pop(name, NOTHING)):
            if self._owners.get(one) == name:
                del self._owners[one]
        if value is not None:
            self.currents[name] = value
            self._owners |= dict.fromkeys(_partitions(value), name)

    def _emit(self, kind: int, name: str = "", value: Value | None = None) -> None:
        record = Record(kind, name, value)
        self.apply(record)
        self._records.append(record)

    def _take(self) -> list[Record]:
        records, self._records = self._records, []
        return records

    @property
    def state(self) -> str:
        """As DescribeConsumerGroups and ListGroups name it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        currents = (self.currents.get(name, NOTHING) for name in self.members)
        is_stable = all((one.epoch, one.state) == (self.assignment_epoch, STABLE) for one in currents)
        return "Stable" if is_stable else "Reconciling"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """By name, or by a regular expression when it was resolved last."""
        return frozenset().union(*(self._topics_of(member) for member in self.members.values()))

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    def _topics_of(self, member: Member) -> frozenset[str]:
        found = self._patterns.get(member.pattern)
        return frozenset(member.topics).union(found.topics if found is not None else ())

    def owner_of(self, topic_id: uuid.UUID, partition: int) -> str | None:
        """The member that has a partition, or still has to give it back."""
        return self._owners.get((topic_id, partition))

    # Events

    def heartbeat(
        self, request: HeartbeatRequest, topics: Topics, settings: GroupSettings, now_ms: int
    ) -> tuple[HeartbeatAnswer, list[Record]]:
        """A member joins (epoch 0), or is still there. Raises `RefusedError`."""
        member_id = request.member_id
        replaced = self._check(request, settings)
        before = self._before(member_id, replaced)
        old, new = self._come(
            member_id, replaced, before, _said(request, before), request.owned, topics, settings, now_ms
        )
        self._sessions[member_id] = now_ms + settings.session_timeout_ms
        for timer in (self._joins, self._syncs):  # it may have been one of the classic protocol
            timer.pop(member_id, None)
        is_full = request.epoch == JOIN or (
            request.rebalance_timeout_ms != -1
            and (request.topics is not None or request.pattern is not None)
            and request.owned is not None
        )
        is_other = _names(new.assigned) != _names(old.assigned)
        answer = HeartbeatAnswer(
            codes.NONE,
            None,
            member_id,
            new.epoch,
            settings.heartbeat_interval_ms,
            new.assigned if is_full or is_other else None,
        )
        return answer, self._take()

    def leave(
        self, request: HeartbeatRequest, topics: Topics, settings: GroupSettings, now_ms: int
    ) -> tuple[HeartbeatAnswer, list[Record]]:
        """A member leaves for good, or (a static one) for a while. Raises `RefusedError`."""
        member_id = request.member_id
        if request.instance_id is not None:
            self._check_static(member_id, request.instance_id)
        else:
            self._check_known(member_id)
        if request.epoch == LEAVE_FOR_A_WHILE:
            # It keeps its partitions, and its session goes on from its last heartbeat: a successor takes them over.
            current = self.currents.get(member_id, NOTHING)
            kept = {topic: dict.fromkeys(ones, 0) for topic, ones in current.assigned.items()}
            # Kafka leaves the previous epoch as it is.
            self._emit(CURRENT, member_id, Current(LEAVE_FOR_A_WHILE, current.epoch, STABLE, kept, {}))
            self._revocations.pop(member_id, None)
        else:
            self._fence([member_id], topics, settings, now_ms)
        return HeartbeatAnswer(codes.NONE, None, member_id, request.epoch), self._take()

    def tick(self, topics: Topics, settings: GroupSettings, now_ms: int) -> list[Record]:
        """Remove the members whose session is over, and those that did not give back, join again or ask for their
        assignment in time."""
        timers = (self._sessions, self._joins, self._syncs)
        late = list(dict.fromkeys(name for timer in timers for name, until in timer.items() if until <= now_ms))
        for name, (deadline, epoch) in list(self._revocations.items()):
            if deadline <= now_ms:
                del self._revocations[name]
                if self.currents.get(name, NOTHING).epoch == epoch and name not in late:
                    late.append(name)
        for name in late:
            if name in self.members:
                self._fence([name], topics, settings, now_ms)
        return self._take()

    def begin(self, settings: GroupSettings, now_ms: int) -> None:
        """After the replay of its records: every member has a session from now on."""
        for name, member in self.members.items():
            session_ms = settings.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
            self._sessions[name] = now_ms + session_ms
            self._watch_revocation(name, self.currents.get(name, NOTHING), member, now_ms)

    # Events of members of the classic protocol

    def join(
        self, request: JoinRequest, topics: Topics, settings: GroupSettings, new_id: Callable[[], str], now_ms: int
    ) -> tuple[JoinAnswer, list[Record]]:
        """JoinGroup: a member of the classic protocol joins, or joins again. Raises `RefusedError`."""
        is_new = request.member_id == UNKNOWN_MEMBER_ID
        member_id = new_id() if is_new else request.member_id
        replaced = self._static_ids.get(request.instance_id or "") if is_new else None
        if replaced is None:
            self._check_size(member_id, settings)
        self._check_protocols(request)
        if is_new and request.instance_id is None and request.requires_known_member_id:
            return JoinAnswer(codes.MEMBER_ID_REQUIRED, member_id), []
        if request.instance_id is not None and not is_new:
            self._check_static(member_id, request.instance_id)
        before = self._before(member_id, replaced)
        member, owned = _said_in_join(request, before, topics)
        becomes_classic = replaced is not None and self._can_downgrade([replaced], settings, joining=1)
        _, current = self._come(member_id, replaced, before, member, owned, topics, settings, now_ms)
        if becomes_classic:
            self._downgrade((), topics, now_ms)
        else:
            self._joins.pop(member_id, None)
            self._sessions[member_id] = now_ms + request.session_timeout_ms
            self._syncs[member_id] = now_ms + request.rebalance_timeout_ms
        protocol = request.protocols[0][0]
        answer = JoinAnswer(codes.NONE, member_id, current.epoch, CONSUMER_PROTOCOL_TYPE, protocol)
        return answer, self._take()

    def sync(self, request: SyncRequest, topics: Topics, now_ms: int) -> SyncAnswer:
        """SyncGroup: what the member has. Raises `RefusedError`."""
        name = request.member_id
        member, classic = self._classic(name, request.instance_id, request.generation)
        protocol, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol not in (None, protocol):
            raise RefusedError(
                codes.INCONSISTENT_GROUP_PROTOCOL,
                f"The protocol {request.protocol_type}/{request.protocol} of member {name} is not the one that it "
                f"joined with, {CONSUMER_PROTOCOL_TYPE}/{protocol}.",
            )
        current = self.currents.get(name, NOTHING)
        if self.epoch > current.epoch and current.state != UNREVOKED:
            self._tell_to_join(name, member, now_ms)
            raise RefusedError(codes.REBALANCE_IN_PROGRESS, f"Member {name} has to join again.")
        self._syncs.pop(name, None)
        self._sessions[name] = now_ms + classic.session_timeout_ms
        named = ((topics.name_of(topic), ones) for topic, ones in current.assigned.items())
        assignment = {topic: ones for topic, ones in named if topic is not None}
        data = encode_assignment(read_subscription(metadata).version, assignment)
        return SyncAnswer(codes.NONE, request.protocol_type, request.protocol, data)

    def heartbeat_of_classic(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """Heartbeat: an error code, which may tell the member to join again: the group has a new epoch, it has
        something to give back, or what it waits for is free. Raises `RefusedError`."""
        member, classic = self._classic(member_id, instance_id, generation)
        self._sessions[member_id] = now_ms + classic.session_timeout_ms
        current = self.currents.get(member_id, NOTHING)
        is_free = current.state == UNRELEASED and not self._waits_for_others(member_id, current)
        if current.epoch >= self.epoch and current.state != UNREVOKED and not is_free:
            return codes.NONE
        self._tell_to_join(member_id, member, now_ms)
        return codes.REBALANCE_IN_PROGRESS

    def leave_by_classic(
        self, leavers: Sequence[Leaver], topics: Topics, settings: GroupSettings, now_ms: int
    ) -> tuple[list[Left], list[Record]]:
        """LeaveGroup: members of the classic protocol leave, or an administrator removes members of either."""
        results, names = [], []
        for member_id, instance_id in leavers:
            try:
                name = self._leaver(member_id, instance_id)
            except RefusedError as error:
                results.append(Left(member_id, instance_id, error.code))
                continue
            results.append(Left(member_id, instance_id))
            if name not in names:
                names.append(name)
        if names:
            self._fence(names, topics, settings, now_ms)
        return results, self._take()

    def _leaver(self, member_id: str, instance_id: str | None) -> str:
        """The member that leaves. Raises `RefusedError`."""
        if instance_id is None:
            self._check_known(member_id)
        elif member_id:
            self._check_static(member_id, instance_id)
        else:
            owner = self._static_ids.get(instance_id)
            if owner is None:
                raise RefusedError(codes.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            return owner
        return member_id

    def _classic(self, member_id: str, instance_id: str | None, generation: int) -> tuple[Member, ClassicMember]:
        """A member of the classic protocol in its generation. Raises `RefusedError`."""
        if instance_id is None:
            self._check_known(member_id)
        else:
            self._check_static(member_id, instance_id)
        classic = self._check_classic(member_id)
        epoch = self.currents.get(member_id, NOTHING).epoch
        if generation != epoch:
            raise RefusedError(
                codes.ILLEGAL_GENERATION, f"Generation {generation} is not the epoch {epoch} of member {member_id}."
            )
        return self.members[member_id], classic

    def _tell_to_join(self, name: str, member: Member, now_ms: int) -> None:
        self._joins.setdefault(name, now_ms + member.rebalance_timeout_ms)

    def _waits_for_others(self, name: str, current: Current) -> bool:
        """Whether others still have something that the member is to have."""
        return any(
            (topic, one) in self._owners
            for topic, wanted in self.targets.get(name, {}).items()
            for one in wanted - current.assigned.get(topic, {}).keys()
        )

    @property
    def next_deadline_ms(self) -> int | None:
        timers = (self._sessions, self._joins, self._syncs)
        deadlines = [deadline for timer in timers for deadline in timer.values()]
        deadlines += (deadline for deadline, _ in self._revocations.values())
        return min(deadlines, default=None)

    def record_keys(self) -> list[tuple[int, str]]:
        """Kinds and names of the records that there are: what to remove when the group ends."""
        return [
            *((CURRENT, name) for name in self.currents),
            *((TARGET, name) for name in self.targets),
            *((MEMBER, name) for name in self.members),
            *((PATTERN, name) for name in self._patterns),
            *((kind, "") for kind in sorted(self._kinds, reverse=True)),
        ]

    # What is asked

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[tuple[uuid.UUID | None, int]],
        *,
        has_epochs: bool = True,
    ) -> int:
        """Whether this member may commit offsets of these partitions now: an error code. One in an older epoch may
        where it has had the partition since (KIP-1251). `has_epochs`: whether the request can carry a member epoch."""
        if epoch < 0 and self.is_empty:
            return codes.NONE  # an administrator, or a consumer without group membership
        if member_id not in self.members:
            return codes.UNKNOWN_MEMBER_ID
        current = self.currents.get(member_id, NOTHING)
        if self.members[member_id].classic is not None:
            return codes.NONE if epoch == current.epoch else codes.ILLEGAL_GENERATION
        if not has_epochs:
            return codes.UNSUPPORTED_VERSION
        if epoch == current.epoch:
            return codes.NONE
        if epoch > current.epoch or epoch < 0:
            return codes.STALE_MEMBER_EPOCH
        for topic, one in partitions:
            given = None if topic is None else current.assigned.get(topic, {}).get(one)
            if given is None or given > epoch:
                return codes.STALE_MEMBER_EPOCH
        return codes.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> int:
        """Whether this member may fetch offsets: an error code. Who names none (an administrator) may."""
        if member_id is None and epoch < 0:
            return codes.NONE
        if member_id not in self.members:
            return codes.UNKNOWN_MEMBER_ID
        if epoch == self.currents.get(member_id, NOTHING).epoch:
            return codes.NONE
        return codes.STALE_MEMBER_EPOCH if self.members[member_id].classic is None else codes.ILLEGAL_GENERATION

    def describe(self) -> ConsumerGroupDescription:
        members = tuple(
            MemberDescription(
                name,
                member.instance_id,
                member.rack_id,
                self.currents.get(name, NOTHING).epoch,
                member.client_id,
                member.client_host,
                member.topics,
                member.pattern,
                self.currents.get(name, NOTHING).assigned,
                self.targets.get(name, {}),
                member.classic is not None,
            )
            for name, member in self.members.items()
        )
        return ConsumerGroupDescription(
            self.group_id,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self._assignor(),
            members=members,
        )

    # Checks

    def _check(self, request: HeartbeatRequest, settings: GroupSettings) -> str | None:
        """Whether this heartbeat is one of a member, or of one that may join; the id of the static member that it
        takes the place of, if it does. Raises `RefusedError`."""
        member_id, instance_id = request.member_id, request.instance_id
        if request.epoch == JOIN:
            owner = None if instance_id is None else self._static_ids.get(instance_id)
            is_free = owner is None or self.members[owner].classic is not None
            if owner is not None and not is_free and self.currents.get(owner, NOTHING).epoch != LEAVE_FOR_A_WHILE:
                raise RefusedError(
                    codes.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {owner} member.",
                )
            if owner is None:
                self._check_size(member_id, settings)
            return owner
        if instance_id is not None:
            self._check_static(member_id, instance_id)
        else:
            self._check_known(member_id)
        self._check_epoch(request)
        return None

    def _check_size(self, member_id: str, settings: GroupSettings) -> None:
        if member_id not in self.members and len(self.members) >= settings.max_size:
            raise RefusedError(
                codes.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {settings.max_size} members.",
            )

    def _check_known(self, member_id: str) -> None:
        if member_id not in self.members:
            raise RefusedError(codes.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")

    def _check_static(self, member_id: str, instance_id: str) -> None:
        owner = self._static_ids.get(instance_id)
        if owner is None:
            raise RefusedError(codes.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if owner != member_id:
            raise RefusedError(
                codes.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {owner}.",
            )

    def _check_classic(self, member_id: str) -> ClassicMember:
        classic = self.members[member_id].classic
        if classic is None:
            raise RefusedError(codes.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        return classic

    def _check_protocols(self, request: JoinRequest) -> None:
        """All members of the classic protocol have to have one in common."""
        others = [{name for name, _ in one.classic.protocols} for one in self.members.values() if one.classic]
        names = {name for name, _ in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names.intersection(*others):
            raise RefusedError(
                codes.INCONSISTENT_GROUP_PROTOCOL, f"Member {request.member_id}'s protocols are not supported."
            )

    def _check_epoch(self, request: HeartbeatRequest) -> None:
        """A member may repeat its last request, if it has nothing that it was not given."""
        current = self.currents.get(request.member_id, NOTHING)
        if request.epoch == current.epoch:
            return
        which = "greater" if request.epoch > current.epoch else "smaller"
        is_repetition = request.epoch == current.previous_epoch and _is_part(request.owned, current.assigned)
        if which == "greater" or not is_repetition:
            raise RefusedError(
                codes.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a {which} member epoch ({request.epoch}) than the one known by the "
                f"group coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
            )

    # Changes

    def _before(self, member_id: str, replaced: str | None) -> Member | None:
        """The member as it was: itself, or the static member that it takes the place of."""
        return self.members.get(replaced or member_id)

    def _come(
        self,
        member_id: str,
        replaced: str | None,
        before: Member | None,
        member: Member,
        owned: Mapping[uuid.UUID, frozenset[int]] | None,
        topics: Topics,
        settings: GroupSettings,
        now_ms: int,
    ) -> tuple[Current, Current]:
        """A member comes, or says something anew: what it had, and what it has now. Raises `RefusedError` before
        anything has changed."""
        if member.pattern not in self._patterns and member.pattern:
            _matcher(member.pattern)
        if replaced is not None:
            self._replace(replaced, member_id)
        if member != before:
            self._emit(MEMBER, member_id, member)
        has_changed = (member.topics, member.pattern) != ((before.topics, before.pattern) if before else ((), ""))
        if has_changed or self._seen_version != topics.version:
            self._look_at(topics, now_ms, is_new_epoch=has_changed)
        is_due = self._assigned_at_ms is None or now_ms - self._assigned_at_ms >= settings.assignment_interval_ms
        if self.epoch > self.assignment_epoch and (is_due or not self.assignment_epoch):
            self._assign(topics, now_ms)
        old = self.currents.get(member_id, NOTHING)
        new = reconcile(
            old,
            self.targets.get(member_id, {}),
            self.assignment_epoch,
            owned,
            lambda topic, one: self._owners.get((topic, one), member_id) == member_id,
        )
        if new != old or member_id not in self.currents:
            self._emit(CURRENT, member_id, new)
            self._watch_revocation(member_id, new, member, now_ms)
        return old, new

    def _can_downgrade(self, leaving: Collection[str], settings: GroupSettings, joining: int = 0) -> bool:
        """Whether no member of the group's own protocol is left without these, and a group of the classic one is to go
        on with the others, and with those that join."""
        others = [member for name, member in self.members.items() if name not in leaving]
        return (
            settings.can_downgrade
            and 1 <= len(others) + joining <= settings.classic_max_size
            and any(self.members[name].classic is None for name in leaving)
            and all(member.classic is not None for member in others)
        )

    def _downgrade(self, leaving: Collection[str], topics: Topics, now_ms: int) -> None:
        """Go on, without these, as a group of the classic protocol: this one ends."""
        members = {name: member for name, member in self.members.items() if name not in leaving}
        value = downgraded(self.epoch, members, self.targets, topics, now_ms)
        for kind, name in self.record_keys():
            self._emit(kind, name)
        self._emit(CLASSIC_GROUP, value=value)

    def _replace(self, old_id: str, new_id: str) -> None:
        """A static member is back under a new id: it has what it had."""
        member, target, current = self.members[old_id], self.targets.get(old_id, {}), self.currents[old_id]
        self._remove(old_id)
        self._emit(MEMBER, new_id, member)
        self._emit(TARGET, new_id, TargetAssignment(target))
        self._emit(CURRENT, new_id, Current(0, 0, STABLE, current.assigned, {}))

    def _remove(self, name: str) -> None:
        self._emit(CURRENT, name)
        self._emit(TARGET, name)
        self._emit(MEMBER, name)
        for timers in (self._sessions, self._joins, self._syncs, self._revocations):
            timers.pop(name, None)

    def _fence(self, names: Collection[str], topics: Topics, settings: GroupSettings, now_ms: int) -> None:
        if self._can_downgrade(names, settings):
            self._downgrade(names, topics, now_ms)
            return
        for name in names:
            self._remove(name)
        self._look_at(topics, now_ms, is_new_epoch=True)

    def _look_at(self, topics: Topics, now_ms: int, *, is_new_epoch: bool) -> None:
        """Resolve expressions, and begin a new epoch if the topics that members subscribe to are others."""
        used = {member.pattern for member in self.members.values() if member.pattern}
        for pattern in [one for one in self._patterns if one not in used]:
            self._emit(PATTERN, pattern)
        for pattern in sorted(used):
            found = self._patterns.get(pattern)
            if found is None or self._seen_version != topics.version:
                matches = _matcher(pattern)
                matching = tuple(sorted(name for name in topics.names() if matches(name) is not None))
                if found is None or found.topics != matching:
                    self._emit(PATTERN, pattern, Pattern(matching, topics.version, now_ms))
        self._seen_version = topics.version
        digest = metadata_hash(self._known(topics))
        if is_new_epoch or digest != self._metadata_hash:
            self._emit(GROUP, value=Group(self.epoch + 1, digest))

    def _known(self, topics: Topics) -> dict[str, Topic]:
        """The topics that members subscribe to and that exist."""
        found = ((name, topics.get(name)) for name in self.subscribed_topics)
        return {name: topic for name, topic in found if topic is not None}

    def _assign(self, topics: Topics, now_ms: int) -> None:
        known = self._known(topics)
        subscribers = {
            name: Subscriber(
                member.instance_id, self._topics_of(member).intersection(known), self.targets.get(name, {})
            )
            for name, member in self.members.items()
        }
        targets = ASSIGNORS[self._assignor()](subscribers, known)
        for name, target in targets.items():
            if self.targets.get(name, {}) != target:
                self._emit(TARGET, name, TargetAssignment(target))
        self._emit(TARGET_EPOCH, value=TargetEpoch(self.epoch, now_ms))

    def _assignor(self) -> str:
        """The one that most members ask for."""
        wanted = Counter(member.assignor for member in self.members.values() if member.assignor)
        return max(ASSIGNORS, key=lambda name: wanted[name])  # the first of those that are wanted alike

    def _watch_revocation(self, name: str, current: Current, member: Member, now_ms: int) -> None:
        if current.state == UNREVOKED and member.classic is None:
            self._revocations[name] = (now_ms + member.rebalance_timeout_ms, current.epoch)
        else:
            self._revocations.pop(name, None)


def _said(request: HeartbeatRequest, before: Member | None) -> Member:
    """What the member says of itself now; what it leaves out is as before."""
    old = before or Member(None, None, "", "", (), "", -1, None)
    return Member(
        old.instance_id if request.instance_id is None else request.instance_id,
        old.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        old.topics if request.topics is None else tuple(sorted(set(request.topics))),
        old.pattern if request.pattern is None else request.pattern,
        old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        old.assignor if request.assignor is None else request.assignor,
    )


def _said_in_join(
    request: JoinRequest, before: Member | None, topics: Topics
) -> tuple[Member, dict[uuid.UUID, frozenset[int]]]:
    """What a member of the classic protocol says of itself, and the partitions that it says it has. Raises
    `RefusedError`."""
    try:
        said = read_subscription(request.protocols[0][1])
    except RecordFormatError as error:
        raise RefusedError(codes.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
    old = before or Member(None, None, "", "", (), "", -1, None)
    found = ((topics.get(name), ones) for name, ones in said.owned.items())
    member = Member(
        old.instance_id if request.instance_id is None else request.instance_id,
        old.rack_id if said.rack_id is None else said.rack_id,
        request.client_id,
        request.client_host,
        tuple(sorted(set(said.topics))),
        old.pattern,
        request.rebalance_timeout_ms,
        old.assignor,
        ClassicMember(request.session_timeout_ms, request.protocols),
    )
    return member, {topic.topic_id: ones for topic, ones in found if topic is not None}


def _matcher(pattern: str) -> Callable[[str], object]:
    """What a member's expression matches. Raises `RefusedError`."""
    try:
        return matcher(pattern)
    except PatternError as error:
        raise RefusedError(
            codes.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
        ) from error


def _partitions(current: Current) -> list[tuple[uuid.UUID, int]]:
    """What a member has, and what it has to give back."""
    return [(topic, one) for has in (current.assigned, current.revoking) for topic, ones in has.items() for one in ones]


def _names(owned: Owned) -> dict[uuid.UUID, set[int]]:
    return {topic: set(ones) for topic, ones in owned.items()}


def _is_part(owned: Mapping[uuid.UUID, frozenset[int]] | None, assigned: Owned) -> bool:
    return owned is not None and all(ones <= assigned.get(topic, {}).keys() for topic, ones in owned.items())
