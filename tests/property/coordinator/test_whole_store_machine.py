"""The whole offset store against a model: groups of every kind, commits, conditions, deletes, expiry, restarts; in
virtual time. `kit.store_groups` has consumer groups of KIP-848 and share groups.

Clients' requests are messages: sent (with what the client believes at that moment), and delivered later, out of order,
many at once, or twice. After each step the live state, what a restart would read from the journal, and the model's are
the same: offsets with metadata, commit and expiry times, generations and members.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.broker.config import BrokerConfig
from keylane.coordinator.coordinator import Coordinator, DeleteResult
from keylane.coordinator.formats import SHARE_STATE, TRANSACTION_STATE, TopicCommit
from keylane.coordinator.groups.protocol import JoinRequest, Leaver, SyncRequest
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.journal.segments import SEGMENT_SUFFIX, SegmentReader, View
from keylane.coordinator.journal.tail_replay import TailReplay
from keylane.coordinator.offset_service import CommitRequest, CommitResult, ConditionalResult
from keylane.wire import codes
from keylane.wire.conditional_commit import CONDITION_FAILED
from kit.examples import examples
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem
from kit.share_world import Topic, Topics
from kit.store_groups import EITHER, MEMBERS, MODERN, SHARE_SETTINGS, SUBSCRIBED, Modern, NewGroups
from kit.store_groups import KINDS as NEW_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keylane.coordinator.offsets.store import OffsetStore

    Message = Callable[[], Coroutine[Any, Any, None] | None]
    from keylane.storage.shared_sync import Round

T = TypeVar("T")
GROUPS = ("a", "ç", MODERN)
TOPICS = {"flights": 3, "weather": 2}
SUBSCRIPTION = b"\0\0" + b"\0\0\0\x01" + b"\0\x07flights" + b"\xff\xff\xff\xff"
"""What members subscribe to: flights only."""
EPOCH_MS = 1_700_000_000_000
SESSION_MS = 10_000
RETENTION_MS = 60_000
OPTIONS = BrokerConfig(
    offsets_topic_num_partitions=3,
    offsets_topic_segment_bytes=1_000_000,
    offsets_retention_minutes=RETENTION_MS // 60_000,
    offset_metadata_max_bytes=5,
    offsets_retention_check_interval_ms=2**31 - 1,
    group_initial_rebalance_delay_ms=0,
)
TICK_MS = 125
"""All time goes in multiples of this: eighths of a second are exact in floating point."""
STEPS_MS = (TICK_MS, 3_500, 11_000, 55_000)

Rows = dict[tuple[str, int], tuple[int, str]]
Key = tuple[str, str, int]
Entry = tuple[int, int, str, int, int]
"""Offset, leader epoch, metadata, commit and expire timestamp."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time stands still until it is set; timers that are due then fire with the next turn."""

    now_ms = 0

    def time(self) -> float:
        return self.now_ms / 1000


@dataclass
class Group:
    """What the model knows of a group that has, or had, members: one static member at a time."""

    generation: int
    member_id: str | None = None
    deadline_ms: int = 0
    empty_since_ms: int = 0

    @property
    def is_live(self) -> bool:
        return self.member_id is not None


@dataclass
class Model:
    offsets: dict[Key, Entry] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=lambda: dict(TOPICS))
    new: NewGroups = field(init=False)

    def group(self, name: str) -> Group | Modern | None:
        return self.new.modern if name == MODERN else self.groups.get(name)

    def forget(self, name: str) -> None:
        if name == MODERN:
            self.new.modern = None
        else:
            self.groups.pop(name, None)

    def of(self, group: str) -> dict[Key, Entry]:
        return {key: entry for key, entry in self.offsets.items() if key[0] == group}

    def check_commit(self, name: str, member_id: str, instance: str | None, generation: int, now_ms: int) -> int:
        group = self.group(name)
        if isinstance(group, Modern):
            return group.check_commit(member_id, generation)
        if group is None:
            if generation < 0:
                return codes.NONE
            return codes.UNKNOWN_MEMBER_ID if self.of(name) else codes.GROUP_ID_NOT_FOUND
        if group.member_id is None:
            return codes.NONE if generation < 0 else codes.UNKNOWN_MEMBER_ID
        if instance is not None and member_id != group.member_id:
            return codes.FENCED_INSTANCE_ID
        if member_id != group.member_id:
            return codes.UNKNOWN_MEMBER_ID
        if generation != group.generation:
            return codes.ILLEGAL_GENERATION
        group.deadline_ms = now_ms + SESSION_MS
        return codes.NONE

    def time_passes(self, now_ms: int) -> None:
        for group in self.groups.values():
            if group.is_live and group.deadline_ms < now_ms:
                self.ends(group, now_ms)
        self.new.time_passes(now_ms)

    def ends(self, group: Group, now_ms: int) -> None:
        """Its member is gone."""
        group.generation += 1
        group.member_id, group.empty_since_ms = None, now_ms

    def expire(self, now_ms: int) -> None:
        for name in GROUPS:
            group = self.group(name)
            is_live = group is not None and group.is_live
            since = 0 if group is None or is_live else group.empty_since_ms
            for key, entry in self.of(name).items():
                if is_live and key[1] == "flights":
                    continue
                committed, expires = entry[3:]
                is_stale = expires <= now_ms if expires >= 0 else now_ms - max(committed, since) >= RETENTION_MS
                if is_stale:
                    del self.offsets[key]
            if group is not None and not is_live and not self.of(name):
                self.forget(name)


@dataclass
class Commit:
    """A commit as a client sent it."""

    group: str
    rows: Rows
    """By topic and partition: offset and metadata."""
    member_id: str
    instance: str | None
    generation: int
    retention_ms: int
    expected: dict[tuple[str, int], int] | None
    """Of a conditional one."""

    def request(self) -> tuple[CommitRequest, list[list[int]]]:
        topics = sorted({topic for topic, _ in self.rows})
        commits, expected = [], []
        for topic in topics:
            rows = {partition: row for (name, partition), row in self.rows.items() if name == topic}
            texts = [text for _, text in rows.values()]
            offsets = [offset for offset, _ in rows.values()]
            # Requests that can ask for a retention know no leader epochs, nor does the record that they become.
            epochs = [7 if self.retention_ms < 0 else -1] * len(rows)
            commits.append(TopicCommit(topic, list(rows), offsets, epochs, texts if any(texts) else None))
            expected.append([(self.expected or {}).get((topic, partition), -1) for partition in rows])
        member = (self.member_id, self.instance, self.generation)
        return CommitRequest(self.group, commits, *member, self.retention_ms), expected


def rows_of_commits() -> list[Rows]:
    """What commits hold, from one plain offset to several of which some are refused. (A fixed choice: drawing each
    anew would take most of the time.)"""
    random = Random(1)
    commits: list[Rows] = [{("flights", 0): (1, "")}, {("flights", 0): (2, ""), ("flights", 1): (3, "map")}]
    for _ in range(8):
        names = [(random.choice(("flights", "weather")), random.randrange(3)) for _ in range(random.randint(1, 4))]
        commits.append({name: (random.randrange(9), random.choice(("", "", "map"))) for name in names})
    commits.append({("flights", 3): (1, ""), ("weather", 0): (2, "")})
    commits.append({("flights", 2): (1, "too long"), ("weather", 1): (2, "")})
    return commits


KINDS = (*["commit"] * 6, *["condition"] * 3, *["join"] * 3, "heartbeat", "leave", "delete offset", "delete group")


class WholeStoreMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = VirtualLoop()
        self.filesystem = SimulatedFileSystem()
        self.model = Model()
        self.topics = Topics()
        self.topics.by_name.clear()
        self.topic_ids = itertools.count(1)
        self.model.new = self.new = NewGroups(self.topics, lambda: self.now_ms)
        self.make_topics()
        self.messages: list[Message] = []
        """What each does when it arrives: at once (commits), or as a coroutine that has the coordinator to itself."""
        self.waiting: list[Round] = []
        self.members: dict[str, tuple[str, int]] = {}
        """By group: the member id and generation that its client was told last."""
        self.replayed = Image()
        self.tail = TailReplay(
            self.replayed, {partition: View() for partition in (*range(3), TRANSACTION_STATE, SHARE_STATE)}
        )
        self.read_bytes = 0
        self.open()

    # The machinery

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + self.loop.now_ms

    def open(self) -> None:
        async def start() -> Coordinator:
            coordinator = Coordinator(
                journal=on_files(self.filesystem, "/coordinator", InlineExecutor(), may_sync_inline=True),
                options=OPTIONS,
                partition_count=self.model.topics.get,
                topics=self.topics,
                share_settings=lambda _: SHARE_SETTINGS,
                clock=lambda: self.now_ms,
            )
            await coordinator.start()
            return coordinator

        self.coordinator = self.run(start())
        for group in self.model.groups.values():
            group.deadline_ms = self.now_ms + SESSION_MS
        self.new.opened(self.coordinator)

    def make_topics(self) -> None:
        """Those that there are not; each is another one than before."""
        for name, count in TOPICS.items():
            if name not in self.topics.by_name:
                self.model.topics[name] = count
                self.topics.by_name[name] = Topic(UUID(int=next(self.topic_ids)), count)
                self.topics.version += 1

    def settle(self) -> None:
        """All that waits becomes durable, in the order in which it was sent."""

        async def wait() -> None:
            for durable in self.waiting:
                await durable
            await self.coordinator._journal.flush()
            await asyncio.sleep(0)

        self.run(wait())
        self.waiting = []

    # What clients send

    @rule(
        group=st.sampled_from(GROUPS),
        kind=st.sampled_from(KINDS),
        rows=st.sampled_from(rows_of_commits()),
        variant=st.integers(0, 11),
    )
    def send(self, group: str, kind: str, rows: Rows, variant: int) -> None:
        if group == MODERN:
            name = MEMBERS[variant // 2 % 2]
            if kind in ("join", "heartbeat", "leave"):
                self.messages.append(self.new.message(kind, name, variant))
                return
            member_id, generation = name, self.new.told.get(name, 1)
        else:
            member_id, generation = self.members.get(group, ("nobody", 1))
        topic, partition = next(iter(rows))
        message: Message
        if kind == "commit":
            retention_ms = (-1, -1, -1, 0, 5_000, 100_000)[variant % 6]
            # As a simple consumer, as a member, or as the static member that it is.
            member = ("", None, -1) if variant < 4 else (member_id, "i" if variant < 8 else None, generation)
            message = partial(self.deliver_commit, Commit(group, rows, *member, retention_ms, None))
        elif kind == "condition":
            # What the client sees now, or (sometimes) something else; when it arrives, that may be history.
            expected = {name: self.model.offsets.get((group, *name), (-1,))[0] for name in rows}
            expected[topic, partition] += variant == 0
            message = partial(self.deliver_condition, Commit(group, rows, "", None, -1, -1, expected))
        elif kind == "join":
            message = partial(self.deliver_join, group)
        elif kind == "delete offset":
            message = partial(self.deliver_delete_offset, group, topic, partition)
        elif kind == "delete group":
            message = partial(self.deliver_delete_group, group)
        else:
            deliver = self.deliver_heartbeat if kind == "heartbeat" else self.deliver_leave
            message = partial(deliver, group, member_id, generation)
        self.messages.append(message)

    @rule(kind=st.sampled_from(NEW_KINDS), name=st.sampled_from(MEMBERS), variant=st.integers(0, 11))
    def send_to_new_groups(self, kind: str, name: str, variant: int) -> None:
        self.messages.append(self.new.message(kind, name, variant))

    @precondition(lambda self: self.messages)
    @rule(count=st.integers(1, 6), index=st.integers(0, 30), again=st.integers(0, 15))
    def deliver(self, count: int, index: int, again: int) -> None:
        """Some messages arrive, in any order, before the disk has synced any of them; some come again later."""

        async def turn(message: Message) -> Coroutine[Any, Any, None] | None:
            return message()

        for number in range(count):
            if self.messages:
                at = (index + number * 7) % len(self.messages)
                message = self.messages[at] if again >> number & 1 else self.messages.pop(at)
                alone = self.run(turn(message))
                if alone is not None:
                    self.settle()
                    self.run(alone)
        self.settle()

    # What happens around them

    @rule(duration_ms=st.sampled_from(STEPS_MS), is_checked=st.booleans())
    def time_passes(self, duration_ms: int, is_checked: bool) -> None:
        self.make_topics()
        self.loop.now_ms += duration_ms
        self.run(asyncio.sleep(0))  # timers that are due
        self.settle()
        self.model.time_passes(self.now_ms)
        if is_checked:
            self.run(self.coordinator.expire())
            self.model.expire(self.now_ms)

    @rule(event=st.sampled_from(["restart", "restart", "crash", "end flights", "end weather"]))
    def something_happens(self, event: str) -> None:
        if event in ("restart", "crash"):
            self.restart(is_clean=event == "restart")
        else:
            topic = event.removeprefix("end ")
            self.model.topics.pop(topic, None)
            if self.topics.by_name.pop(topic, None) is not None:
                self.topics.version += 1
            if topic == SUBSCRIBED:
                self.new.topic_ended()
            self.run(self.coordinator.delete_topic_offsets(topic))
            self.model.offsets = {key: entry for key, entry in self.model.offsets.items() if key[1] != topic}

    def restart(self, *, is_clean: bool) -> None:
        if is_clean:
            self.run(self.coordinator.close())
        else:
            self.filesystem = self.filesystem.after_crash()
            now_ms = self.loop.now_ms
            self.loop.close()
            self.loop = VirtualLoop()
            self.loop.now_ms = now_ms
        self.open()

    # What must hold

    @invariant()
    def live_replayed_and_expected_are_the_same(self) -> None:
        self.replay_the_rest()
        expected = dict(self.model.offsets)
        assert rows_of(self.coordinator._image.store) == expected, "live"
        assert rows_of(self.replayed.store) == expected, "replayed"
        groups = {
            name: (group.generation, () if group.member_id is None else (group.member_id,))
            for name, group in self.model.groups.items()
        }
        live = self.coordinator._groups.by_id
        assert {name: (group.generation, tuple(group.roster.members)) for name, group in live.items()} == groups, "live"
        kept = {
            name: (value.generation, tuple(member.member_id for member in value.members))
            for name, value in self.replayed.groups()
        }
        assert kept == groups, "replayed"
        self.new.check(self.replayed)

    def replay_the_rest(self) -> None:
        path = f"/coordinator/{1:010d}{SEGMENT_SUFFIX}"
        reader = SegmentReader(self.filesystem.read(path), path, number=1, partitions=3, may_be_torn=True)
        reader.end = max(reader.end, self.read_bytes)
        assert not self.tail.replay(reader, 1, stop=sys.maxsize)
        self.read_bytes = reader.end

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.run(self.coordinator.close())
            self.loop.close()

    # What the coordinator makes of it

    def deliver_commit(self, commit: Commit) -> None:
        request, _ = commit.request()
        member = (commit.member_id, commit.instance, commit.generation)
        if (durable := self.commit_known(request)) is not None:
            assert self.model.check_commit(commit.group, *member, self.now_ms) in (codes.NONE, EITHER)
            assert [self.error_of(name, text) for name, (_, text) in commit.rows.items()] == [codes.NONE]
            self.apply(commit, set(commit.rows), durable)
            return
        result = self.coordinator.commit(request)
        error = self.model.check_commit(commit.group, *member, self.now_ms)
        if error == EITHER:
            error = codes.STALE_MEMBER_EPOCH if isinstance(result, int) else codes.NONE
        if error != codes.NONE:
            # Whether the group has offsets makes the difference; some may be on their way.
            alike = (codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND)
            assert result == error or (self.waiting and {result, error} == set(alike))
            return
        assert isinstance(result, CommitResult)
        errors = {name: self.error_of(name, text) for name, (_, text) in commit.rows.items()}
        told = {
            (topic.topic, partition): code
            for topic, found in zip(request.topics, result.errors, strict=True)
            for partition, code in zip(topic.partitions, found or [codes.NONE] * len(topic.partitions), strict=True)
        }
        assert told == errors
        self.apply(commit, {name for name, code in errors.items() if code == codes.NONE}, result.durable)

    def commit_known(self, request: CommitRequest) -> Round | None:
        """Commits of one even offset take the short way, as far as they can; those of odd ones the long one."""
        known = self.coordinator.know(request) if request.retention_ms < 0 else None
        if known is None or request.topics[0].offsets[0] % 2:
            return None
        return self.coordinator.commit_known(known, request.topics[0].offsets[0], 7)

    def deliver_condition(self, commit: Commit) -> None:
        result = self.coordinator.commit_if(*commit.request())
        error = self.model.check_commit(commit.group, "", None, -1, self.now_ms)
        if error != codes.NONE:
            assert result == error
            return
        assert isinstance(result, ConditionalResult)
        bad = [self.error_of(name, text) for name, (_, text) in sorted(commit.rows.items(), key=lambda row: row[0][0])]
        assert commit.expected is not None
        holds = all(
            self.model.offsets.get((commit.group, *name), (-1,))[0] == offset
            for name, offset in commit.expected.items()
        )
        if any(bad):
            assert result.error == next(code for code in bad if code)
        elif not holds:
            assert result.error == CONDITION_FAILED
        else:
            assert result.error == codes.NONE
            self.apply(commit, set(commit.rows), result.durable)

    def error_of(self, name: tuple[str, int], text: str) -> int:
        if name[1] >= self.model.topics.get(name[0], 0):
            return codes.UNKNOWN_TOPIC_OR_PARTITION
        return codes.OFFSET_METADATA_TOO_LARGE if len(text) > 5 else codes.NONE

    def apply(self, commit: Commit, names: set[tuple[str, int]], durable: Round | None) -> None:
        assert (durable is None) is (not names)
        self.note(commit, names)
        if durable is not None:
            self.waiting.append(durable)

    def note(self, commit: Commit, names: set[tuple[str, int]]) -> None:
        expires = self.now_ms + commit.retention_ms if commit.retention_ms >= 0 else -1
        for name in names:
            offset, text = commit.rows[name]
            epoch = 7 if commit.retention_ms < 0 else -1
            self.model.offsets[commit.group, *name] = (offset, epoch, text, self.now_ms, expires)

    async def deliver_join(self, name: str) -> None:
        """A static member: in a stable group it takes the place of the one before."""
        protocols = (("range", SUBSCRIPTION),)
        request = JoinRequest("", "i", "client", "/host", SESSION_MS, 1_000, "consumer", protocols)
        joining = asyncio.ensure_future(self.coordinator.join(name, request))
        group = self.model.groups.get(name) or Group(0)
        if group.member_id is None:
            await asyncio.sleep(0)
            self.loop.now_ms += TICK_MS  # the joining of an empty group ends with the next tick of the clock
            self.model.time_passes(self.now_ms)
            group.generation += 1
        joined = await joining
        assert (joined.error, joined.generation) == (codes.NONE, group.generation)
        if not joined.skip_assignment:
            sync = SyncRequest(joined.member_id, "i", joined.generation, None, None, {joined.member_id: b"all"})
            assert (await self.coordinator.sync(name, sync)).error == codes.NONE
        group.member_id, group.deadline_ms = joined.member_id, self.now_ms + SESSION_MS
        self.model.groups[name] = group
        self.members[name] = (joined.member_id, joined.generation)

    async def deliver_heartbeat(self, name: str, member_id: str, generation: int) -> None:
        error = self.coordinator.heartbeat(name, member_id, None, generation)
        group = self.model.groups.get(name)
        if group is None or group.member_id != member_id:
            assert error == codes.UNKNOWN_MEMBER_ID
        elif group.generation != generation:
            assert error == codes.ILLEGAL_GENERATION
        else:
            assert error == codes.NONE
            group.deadline_ms = self.now_ms + SESSION_MS

    async def deliver_leave(self, name: str, member_id: str, _generation: int) -> None:
        _, (left,) = await self.coordinator.leave(name, [Leaver(member_id, None)])
        group = self.model.groups.get(name)
        if group is None or group.member_id != member_id:
            assert left.error == codes.UNKNOWN_MEMBER_ID
        else:
            assert left.error == codes.NONE
            self.model.ends(group, self.now_ms)

    async def deliver_delete_offset(self, name: str, topic: str, partition: int) -> None:
        result = self.coordinator.delete_offsets(name, [(topic, [partition])])
        group = self.model.group(name)
        if group is None and not self.model.of(name):
            assert result == codes.GROUP_ID_NOT_FOUND
            return
        assert isinstance(result, DeleteResult)
        if partition >= self.model.topics.get(topic, 0):
            assert result.errors == [[codes.UNKNOWN_TOPIC_OR_PARTITION]]
        elif group is not None and group.is_live and topic == SUBSCRIBED:
            assert result.errors == [[codes.GROUP_SUBSCRIBED_TO_TOPIC]]
        else:
            assert result.errors == [[codes.NONE]]
            self.model.offsets.pop((name, topic, partition), None)
        if result.durable is not None:
            await result.durable

    async def deliver_delete_group(self, name: str) -> None:
        result = self.coordinator.delete_group(name)
        group = self.model.group(name)
        if group is None and not self.model.of(name):
            assert result == codes.GROUP_ID_NOT_FOUND
        elif group is not None and group.is_live:
            assert result == codes.NON_EMPTY_GROUP
        else:
            assert not isinstance(result, int)
            await result
            self.model.forget(name)
            for key in self.model.of(name):
                del self.model.offsets[key]


def rows_of(store: OffsetStore) -> dict[Key, Entry]:
    """Every offset with all that is kept of it."""
    rows: dict[Key, Entry] = {}
    for group in store.groups:
        for topic, partitions in store.partitions_of(group):
            for partition in partitions:
                value = store.get(group, topic, partition)
                assert value is not None
                rows[group, topic, partition] = (*value,)
    return rows


class LongMachine(WholeStoreMachine):
    """The same with more examples: a class of its own, as settings belong to one."""


SETTINGS = settings(stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))

TestWholeStore = WholeStoreMachine.TestCase
TestWholeStore.settings = settings(SETTINGS, max_examples=examples(200))

TestWholeStoreForLong = pytest.mark.soak(LongMachine.TestCase)
TestWholeStoreForLong.settings = settings(SETTINGS, max_examples=2_000)
