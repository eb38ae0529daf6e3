"""A share group under any mixture of members and topics: it is what its records amount to, and everything is read."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keylane.coordinator.share_groups.group import ShareGroup
from keylane.coordinator.share_groups.protocol import HeartbeatRequest, RefusedError
from keylane.coordinator.share_groups.records import decode, encode
from keylane.wire import codes
from kit.share_world import SETTINGS, Topic, Topics

if TYPE_CHECKING:
    from keylane.coordinator.share_groups.records import Assigned, Record

GROUP = "g"
NAMES = ["a", "b", "c", "d"]
MEMBERS, TOPICS = st.sampled_from(NAMES), st.frozensets(st.sampled_from("tuv"), min_size=1)
SESSION_MS = SETTINGS.session_timeout_ms


class Groups(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.topics = Topics()
        self.topics.by_name = {"t": Topic(uuid.UUID(int=1), 2)}
        self.group = ShareGroup(GROUP)
        self.journal: list[Record] = []
        self.now_ms = 0
        self.epochs: dict[str, int] = {}
        self.told: dict[str, Assigned] = {}
        """What each member knows that it reads."""
        self.heard: dict[str, int] = {}
        self.last = 0

    def keep(self, records: list[Record]) -> None:
        """As bytes, as the journal has them."""
        for record in records:
            found = decode(*encode(GROUP, record))
            assert found == (GROUP, record)
            self.journal.append(record)
        assert self.group.epoch >= self.last
        self.last = self.group.epoch

    def ask(self, member: str, epoch: int, topics: frozenset[str] | None = None) -> None:
        wanted = None if topics is None else tuple(topics)
        request = HeartbeatRequest(GROUP, member, epoch, "c", "/host", None, wanted)
        before = self.group.epoch
        answer, records = self.group.heartbeat(request, self.topics, SETTINGS, self.now_ms)
        assert answer.error == codes.NONE
        assert self.group.epoch in (before, before + 1)
        self.keep(records)
        self.epochs[member], self.heard[member] = answer.epoch, self.now_ms
        if answer.assignment is not None:
            self.told[member] = answer.assignment
        assert self.told[member] == self.group.currents[member].partitions

    @rule(member=MEMBERS, topics=TOPICS)
    def join(self, member: str, topics: frozenset[str]) -> None:
        if member in self.group.members or len(self.group.members) < SETTINGS.max_size:
            self.ask(member, 0, topics)
            return
        with pytest.raises(RefusedError) as refused:
            self.ask(member, 0, topics)
        assert refused.value.code == codes.GROUP_MAX_SIZE_REACHED

    @rule(member=MEMBERS, topics=st.none() | TOPICS)
    def go_on(self, member: str, topics: frozenset[str] | None) -> None:
        if member in self.epochs:
            self.ask(member, self.epochs[member], topics)

    @rule(member=MEMBERS, off=st.integers(1, 3))
    def one_in_another_epoch_is_refused(self, member: str, off: int) -> None:
        before = (dict(self.group.members), self.group.epoch)
        request = HeartbeatRequest(GROUP, member, self.epochs.get(member, 0) + off, "c", "/host")
        with pytest.raises(RefusedError) as refused:
            self.group.heartbeat(request, self.topics, SETTINGS, self.now_ms)
        wanted = codes.FENCED_MEMBER_EPOCH if member in self.epochs else codes.UNKNOWN_MEMBER_ID
        assert refused.value.code == wanted
        assert (dict(self.group.members), self.group.epoch) == before

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        if member in self.epochs:
            self.keep(self.group.leave(HeartbeatRequest(GROUP, member, -1, "c", "/host"), self.topics)[1])
            self.forget(member)

    @rule(passes_ms=st.sampled_from([1, SESSION_MS // 2, SESSION_MS]))
    def tick(self, passes_ms: int) -> None:
        self.now_ms += passes_ms
        self.keep(self.group.tick(self.topics, self.now_ms))
        for member in [one for one, heard in self.heard.items() if heard + SESSION_MS <= self.now_ms]:
            self.forget(member)

    def forget(self, member: str) -> None:
        for known in (self.epochs, self.told, self.heard):
            known.pop(member, None)

    @rule(name=st.sampled_from("tuv"), count=st.integers(1, 4))
    def topics_change(self, name: str, count: int) -> None:
        old = self.topics.by_name.get(name)
        if old is None or old.partition_count < count:
            self.topics.by_name[name] = Topic(uuid.UUID(int=ord(name)) if old is None else old.topic_id, count)
        else:
            del self.topics.by_name[name]
        self.topics.version += 1

    @rule()
    def restart(self) -> None:
        self.group = self.replayed()
        self.group.begin(SETTINGS, self.now_ms)
        self.heard = dict.fromkeys(self.heard, self.now_ms)

    @rule()
    def all_settle(self) -> None:
        """One heartbeat of each finds what has changed, the next what that means for it: then everything is read."""
        for _ in range(2):
            for member in [*self.epochs]:
                self.ask(member, self.epochs[member])
        assert set(self.epochs.values()) <= {self.group.epoch}
        for name, topic in self.topics.by_name.items():
            readers = [one for one, member in self.group.members.items() if name in member.topics]
            read = {index for one in readers for index in self.told[one].get(topic.topic_id, ())}
            assert read == (set(range(topic.partition_count)) if readers else set())
            assert not readers or all(self.group.has_place(topic.topic_id, index) for index in read)

    def replayed(self) -> ShareGroup:
        group = ShareGroup(GROUP)
        for record in self.journal:
            group.apply(record)
        return group

    @invariant()
    def it_is_what_its_records_amount_to(self) -> None:
        if not hasattr(self, "group"):
            return
        assert self.group.members.keys() == self.epochs.keys() == self.heard.keys()
        again = self.replayed()
        for field in ("epoch", "assignment_epoch", "members", "targets", "currents", "topics", "state"):
            assert getattr(again, field) == getattr(self.group, field), field
        assert sorted(again.record_keys()) == sorted(self.group.record_keys())
        deadlines = [heard + SESSION_MS for heard in self.heard.values()]
        assert self.group.next_deadline_ms == min(deadlines, default=None)


TestGroups = Groups.TestCase
