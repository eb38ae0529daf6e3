"""Members of a consumer group (KIP-848) come, leave, die, are late and subscribe differently: who has what, then?

Each member here believes what it was answered, as a client does: it owns what it was given until it has given it back.
Some are of the classic protocol (cooperative or eager). When no other member is left the group is of that protocol, and
becomes a consumer group again when one comes.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.coordinator.consumer_groups.embedded import encode_assignment, read_assignment
from keylane.coordinator.consumer_groups.migration import upgraded
from keylane.coordinator.consumer_groups.protocol import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    GroupSettings,
    HeartbeatRequest,
)
from keylane.coordinator.consumer_groups.records import CLASSIC_GROUP, Record, decode, encode
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.coordinator.formats import GroupValue
from keylane.coordinator.groups.members import Member
from keylane.coordinator.groups.protocol import JoinRequest, Leaver, SyncRequest
from keylane.wire import codes
from kit.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.coordinator.consumer_groups.group import ConsumerGroup

SESSION_MS, GIVES_BACK_MS = 1_000, 500
REBALANCE_MS = 2 * SESSION_MS + GIVES_BACK_MS + 100
"""A member hears within a session that it is to give back, or its lease ends; then it does so, and says so within the
next session, or its lease ends: only after that it may be taken for one that does not."""
GROUP = "g"


@dataclass
class FakeTopic:
    topic_id: uuid.UUID
    partition_count: int


class FakeTopics:
    def __init__(self, random_: random.Random) -> None:
        self.version = 0
        self._random = random_
        self._topics: dict[str, FakeTopic] = {}

    def put(self, name: str, partitions: int) -> None:
        old = self._topics.get(name)
        topic_id = uuid.UUID(int=self._random.getrandbits(128)) if old is None else old.topic_id
        self._topics[name] = FakeTopic(topic_id, partitions)
        self.version += 1

    def remove(self, name: str) -> None:
        if self._topics.pop(name, None) is not None:
            self.version += 1

    def get(self, name: str) -> FakeTopic | None:
        return self._topics.get(name)

    def names(self) -> Iterable[str]:
        return list(self._topics)

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        return next((name for name, topic in self._topics.items() if topic.topic_id == topic_id), None)


@dataclass
class Client:
    """What a member knows."""

    member_id: str
    topics: tuple[str, ...]
    pattern: str
    assignor: str | None
    instance_id: str | None
    epoch: int = JOIN
    owned: dict[uuid.UUID, frozenset[int]] = field(default_factory=dict)
    """What it uses, as far as it knows."""
    told: dict[uuid.UUID, frozenset[int]] = field(default_factory=dict)
    """What it was last told to have: it gives back the rest when it gets to it."""
    told_ms: int = 0
    is_gone: bool = False
    heard_ms: int = 0
    """When it was last answered: it stops to use anything a session later, as clients with a lease do."""
    is_full: bool = True
    """Whether its next request says everything: the first, and one after an answer that was lost."""

    def request(self) -> HeartbeatRequest:
        common = (GROUP, self.member_id, self.epoch, "client", "/host", self.instance_id)
        if self.epoch == JOIN or self.is_full:
            return HeartbeatRequest(*common, None, REBALANCE_MS, self.topics, self.pattern, self.assignor, self.owned)
        return HeartbeatRequest(*common, owned=self.owned)


@dataclass
class ClassicClient:
    """What a member of the classic protocol knows."""

    is_eager: bool
    topics: tuple[str, ...]
    member_id: str = ""
    epoch: int = -1
    owned: dict[uuid.UUID, frozenset[int]] = field(default_factory=dict)
    is_gone: bool = False
    must_join: bool = True
    heard_ms: int = 0
    told_ms: int = 0
    instance_id: None = None

    def join(self, topics: FakeTopics) -> JoinRequest:
        if self.is_eager:
            self.owned = {}
        names = ((topics.name_of(topic), ones) for topic, ones in self.owned.items())
        owned = encode_assignment(1, {name: ones for name, ones in names if name is not None})[2:-4]
        listed = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in self.topics)
        subscription = b"\0\1" + len(self.topics).to_bytes(4, "big") + listed + b"\xff" * 4 + owned
        assignors = ("range", "sticky") if self.is_eager else ("sticky", "range")
        protocols = tuple((name, subscription) for name in assignors)
        return JoinRequest(self.member_id, None, "client", "/host", SESSION_MS, REBALANCE_MS, "consumer", protocols)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics = FakeTopics(self.random)
        self.settings = GroupSettings(SESSION_MS, 100, self.random.choice((0, 200)), 100)
        self.now_ms = 1
        self.groups = self._new_groups()
        self.clients: list[Client | ClassicClient] = []
        self.classic: GroupValue | None = None
        """The group, while it is of the classic protocol."""
        self.log: list[tuple[bytes, bytes | None]] = []
        self.number = 0
        self.epoch = 0
        for name in ("aa", "ab", "b"):
            self.topics.put(name, self.random.randint(1, 5))

    def _new_groups(self) -> ConsumerGroups:
        return ConsumerGroups(self.topics, lambda _group: self.settings, self._new_id)

    def _new_id(self) -> str:
        self.number += 1
        return f"made-{self.number}"

    @property
    def group(self) -> ConsumerGroup | None:
        return self.groups.by_id.get(GROUP)

    def durable(self, records: list[Record]) -> None:
        self.log += [encode(GROUP, record) for record in records]

        last = records[-1] if records else None
        if last is not None and last.kind == CLASSIC_GROUP and isinstance(last.value, GroupValue):
            self.classic = last.value
            assert self.group is None
            self.rebalance_classic(last.value)

    def rebalance_classic(self, value: GroupValue) -> None:
        """The classic members, which are all that there are, have joined again and have what they are assigned."""
        assigned = {row.member_id: read_assignment(row.assignment) for row in value.members}
        every = [(name, one) for has in assigned.values() for name, ones in has.items() for one in ones]
        assert len(every) == len(set(every)), "no partition is assigned twice"
        self.now_ms += SESSION_MS
        for client in self.clients:
            has = assigned.get(client.member_id, {})
            known = ((self.topics.get(name), ones) for name, ones in has.items())
            client.owned = {topic.topic_id: ones for topic, ones in known if topic is not None and not client.is_gone}
            client.epoch = value.generation if isinstance(client, ClassicClient) else client.epoch
            if not client.is_gone:
                client.heard_ms = self.now_ms

    def upgrade(self) -> None:
        """A member of the consumer protocol comes."""
        value, self.classic = self.classic, None
        if value is not None:
            members = [Member.restored(row, value.protocol, self.now_ms) for row in value.members]
            records = upgraded(value.generation, value.protocol, members, self.topics)
            self.groups.restore([(GROUP, record) for record in records], self.now_ms)
            self.durable([Record(CLASSIC_GROUP, "", None), *records])

    def heartbeat(self, client: Client | ClassicClient, *, answer_is_lost: bool = False) -> int:
        if isinstance(client, ClassicClient):
            return self.heartbeat_of_classic(client)
        if client.epoch == JOIN:
            self.upgrade()
        answer, records = self.groups.heartbeat(client.request(), self.now_ms)
        self.durable(records)
        if answer.error != codes.NONE:
            assert not records
        if answer_is_lost:
            client.is_full = True
            return answer.error
        if answer.error in (codes.FENCED_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND):
            client.epoch, client.owned, client.told, client.is_full = JOIN, {}, {}, True
        elif answer.error == codes.NONE:
            assert client.epoch == JOIN or answer.epoch >= client.epoch, "a member's epoch went back"
            client.epoch, client.heard_ms, client.is_full = answer.epoch, self.now_ms, False
            if answer.assignment is not None:
                told = {topic: frozenset(ones) for topic, ones in answer.assignment.items()}
                if told != client.told:
                    client.told, client.told_ms = told, self.now_ms
                gained = {topic: ones - client.owned.get(topic, frozenset()) for topic, ones in client.told.items()}
                for topic, ones in gained.items():
                    client.owned[topic] = client.owned.get(topic, frozenset()) | ones
        return answer.error

    def heartbeat_of_classic(self, client: ClassicClient) -> int:
        """One step of a client: a join with its sync, or a heartbeat."""
        if self.group is None or self.group.is_empty:
            return codes.NONE  # nothing happens in a group of the classic protocol here
        if not client.must_join:
            error = self.groups.heartbeat_of_classic(GROUP, client.member_id, None, client.epoch, self.now_ms)
            client.must_join = error != codes.NONE
            if error in (codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION):
                client.owned = {}
                client.member_id = client.member_id if error == codes.ILLEGAL_GENERATION else ""
            else:
                client.heard_ms = self.now_ms
            return error
        if self.now_ms >= client.heard_ms + SESSION_MS:
            client.owned = {}  # it has lost what it had, and knows it
        joined, records = self.groups.join(GROUP, client.join(self.topics), self.now_ms)
        self.durable(records)
        client.member_id = joined.member_id
        if joined.error == codes.MEMBER_ID_REQUIRED:
            return self.heartbeat_of_classic(client)
        assert joined.error == codes.NONE
        client.epoch = joined.generation
        request = SyncRequest(client.member_id, None, joined.generation, "consumer", joined.protocol, {})
        synced = self.groups.sync(GROUP, request, self.now_ms)
        client.must_join = synced.error != codes.NONE
        client.heard_ms = self.now_ms
        if synced.error == codes.NONE:
            has = read_assignment(synced.assignment).items()
            known = ((self.topics.get(name), ones) for name, ones in has)
            client.owned = {topic.topic_id: ones for topic, ones in known if topic is not None and ones}
        return synced.error

    def give_back(self, client: Client | ClassicClient) -> None:
        if isinstance(client, ClassicClient):
            return  # it gives back when it joins
        owned = ((topic, ones & client.told.get(topic, frozenset())) for topic, ones in client.owned.items())
        client.owned = {topic: ones for topic, ones in owned if ones}

    def come(self) -> None:
        self.number += 1
        if self.random.random() < 0.4 and self.group is not None:
            topics = self.random.choice((("aa",), ("aa", "b"), ("aa", "ab", "b")))
            self.clients.append(ClassicClient(self.random.random() < 0.5, topics))
            self.heartbeat(self.clients[-1])
            return
        free = [name for name in ("i1", "i2") if all(one.instance_id != name for one in self.clients)]
        client = Client(
            f"m{self.number}",
            self.random.choice((("aa",), ("aa", "b"), ("aa", "ab", "b"), ())),
            self.random.choice(("", "", "a[ab]", ".*")),
            self.random.choice((None, "uniform", "range")),
            self.random.choice([None, *free]),
        )
        self.clients.append(client)
        self.heartbeat(client)

    def leave(self, client: Client | ClassicClient) -> None:
        """For good; a static one perhaps for a while, and comes back under another id."""
        if isinstance(client, ClassicClient):
            if self.group is not None and client.member_id:
                self.clients.remove(client)
                self.durable(self.groups.leave_by_classic(GROUP, [Leaver(client.member_id, None)], self.now_ms)[1])
            return
        self.clients.remove(client)
        if client.epoch == JOIN:
            return
        epoch = LEAVE_FOR_A_WHILE if client.instance_id and self.random.random() < 0.5 else LEAVE
        request = HeartbeatRequest(GROUP, client.member_id, epoch, "client", "/host", client.instance_id)
        answer, records = self.groups.heartbeat(request, self.now_ms)
        self.durable(records)
        if answer.error == codes.NONE and epoch == LEAVE_FOR_A_WHILE and self.random.random() < 0.7:
            self.number += 1
            successor = Client(f"m{self.number}", client.topics, client.pattern, client.assignor, client.instance_id)
            self.clients.append(successor)
            assert self.heartbeat(successor) == codes.NONE

    def tick(self) -> None:
        for group, records in self.groups.tick(self.now_ms):
            assert group == GROUP
            self.durable(records)

    def restart(self) -> None:
        """Another coordinator reads the log."""
        before = self.group
        self.groups = self._new_groups()
        kept: dict[bytes, bytes] = {}
        for key, value in self.log:
            kept.pop(key, None)
            if value is not None:
                kept[key] = value
        rows = list(kept.items())
        self.random.shuffle(rows)
        found = [decode(key, value) for key, value in rows]
        self.groups.restore([one for one in found if one is not None], self.now_ms)
        after = self.group
        if before is None or after is None:
            assert before is after or (before is not None and not before.members)
            return
        assert before.members == after.members
        assert before.currents == after.currents
        assert before.targets == after.targets
        described, again = before.describe(), after.describe()
        assert sorted(described.members) == sorted(again.members)
        assert described._replace(members=()) == again._replace(members=())

    def check(self) -> None:
        """Nobody uses what another one uses; the group's epoch only grows."""
        users: dict[tuple[uuid.UUID, int], str] = {}
        for client in self.clients:
            if self.now_ms >= client.heard_ms + SESSION_MS:
                continue  # its lease is over, and it uses nothing
            for topic, ones in client.owned.items():
                for one in ones:
                    assert users.setdefault((topic, one), client.member_id) == client.member_id, (topic, one)
        if self.group is not None:
            assert self.group.epoch >= self.epoch
            self.epoch = self.group.epoch

    def step(self) -> None:
        kind = self.random.random()
        live = [client for client in self.clients if not client.is_gone]
        if (kind < 0.1 and len(live) < 6) or not live:
            self.come()
        elif kind < 0.14:
            self.leave(self.random.choice(live))
        elif kind < 0.17:
            self.random.choice(live).is_gone = True
        elif kind < 0.2:
            client = self.random.choice(live)
            client.topics = self.random.choice((("aa",), ("ab", "b"), ("nobody",)))
            if isinstance(client, ClassicClient):
                client.must_join = True
            else:
                client.is_full = True
        elif kind < 0.23:
            self.topics.put(self.random.choice(("aa", "ab", "ac", "b")), self.random.randint(5, 8))
        elif kind < 0.25:
            self.topics.remove(self.random.choice(("ab", "ac")))
        elif kind < 0.3:
            self.restart()
        elif kind < 0.45:
            self.give_back(self.random.choice(live))
        else:
            self.heartbeat(self.random.choice(live), answer_is_lost=self.random.random() < 0.1)
        self.now_ms += self.random.choice((1, 10, 50, 200))
        for client in self.clients:
            if isinstance(client, Client) and self.now_ms >= client.told_ms + GIVES_BACK_MS:
                self.give_back(client)  # in time: before it would be fenced for its being late
        self.tick()
        self.check()

    def settle(self) -> None:
        """The members that are left go on: in the end all that they subscribe to is theirs."""
        self.clients = [client for client in self.clients if not client.is_gone]
        self.clients.append(Client("last", ("aa",), "", None, None))
        self.heartbeat(self.clients[-1])
        self.now_ms += 10 * SESSION_MS
        self.tick()
        for _ in range(30):
            self.now_ms += 100
            for client in list(self.clients):
                self.give_back(client)
                self.heartbeat(client)
                self.check()
            self.tick()
        group = self.group
        assert group is not None
        assert group.state == "Stable"
        wanted = {
            (topic.topic_id, one)
            for name in group.subscribed_topics
            if (topic := self.topics.get(name)) is not None
            for one in range(topic.partition_count)
        }
        owned = [(topic, one) for client in self.clients for topic, ones in client.owned.items() for one in ones]
        assert sorted(owned) == sorted(wanted)
        self.restart()


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_who_has_what(seed: int) -> None:
    """At most one member uses a partition at any time, all are used in the end, epochs grow, and the records hold all
    that there is."""
    world = World(seed)
    for _ in range(120):
        world.step()
    world.settle()
