"""Any mixture of members, faults and time against the group protocol: what must hold whatever happens.

- A waiting request is answered once, and never forgotten.
- An assignment of a generation has one owner (a static member's successor takes its place).
- Nobody is out without leaving, being fenced, or having let a timeout pass.
- A group with members always has a deadline, so it cannot hang; left alone, it empties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.broker.config import BrokerConfig
from keylane.wire import codes
from kit.examples import examples
from kit.group_world import GROUP, REBALANCE_MS, SESSION_MS, World

if TYPE_CHECKING:
    from keylane.coordinator.groups.protocol import JoinAnswer, SyncAnswer

CLIENTS = 4
PROTOCOLS = ((("range", b"a"),), (("range", b"b"), ("sticky", b"b")), (("sticky", b"c"), ("range", b"c")))


@dataclass
class Client:
    """A consumer: what it knows of itself."""

    name: str
    instance: str | None
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    must_sync: bool = False
    protocols: int = 0
    join: int | None = None
    sync: int | None = None
    heard_ms: int = 0
    """When the coordinator last had reason to think it alive."""


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 100, 3_000]), static=st.integers(0, CLIENTS))
    def begin(self, delay_ms: int, static: int) -> None:
        self.config = BrokerConfig(group_initial_rebalance_delay_ms=delay_ms)
        self.world = World(self.config)
        self.clients = [Client(f"c{n}", f"i{n}" if n < static else None) for n in range(CLIENTS)]
        self.owners: dict[bytes, str] = {}
        """Who got an assignment: the instance, or the member without one."""
        self.lost: set[int] = set()
        """Requests whose connection broke: their answers reach nobody."""
        self.rebalance_since_ms = 0

    def client(self, index: int) -> Client:
        return self.clients[index]

    def deliver(self) -> None:
        """Every client reads the answers that have come."""
        for client in self.clients:
            if client.join is not None and not self.world.is_waiting(client.join):
                self._read_join(client, self.world.joined(client.join), self.world.answered_ms[client.join])
            if client.sync is not None and not self.world.is_waiting(client.sync):
                self._read_sync(client, self.world.synced(client.sync), self.world.answered_ms[client.sync])

    def _read_join(self, client: Client, answer: JoinAnswer, now_ms: int) -> None:
        client.join = None
        if answer.error == codes.NONE:
            assert answer.member_id, "a member has an id"
            assert answer.leader, "a generation has a leader"
            client.member_id, client.generation = answer.member_id, answer.generation
            client.leads = bool(answer.members) and not answer.skip_assignment
            client.heard_ms = now_ms
            client.must_sync = True
        elif answer.error == codes.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
            client.heard_ms = now_ms
        elif answer.error in (codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID):
            client.member_id, client.generation = "", -1

    def _read_sync(self, client: Client, answer: SyncAnswer, now_ms: int) -> None:
        client.sync = None
        if answer.error == codes.REBALANCE_IN_PROGRESS:
            client.generation = -1
        if answer.error != codes.NONE:
            return
        client.must_sync = False
        client.heard_ms = now_ms
        if answer.assignment:
            owner = client.instance or client.member_id
            assert self.owners.setdefault(answer.assignment, owner) == owner, "two owners in one generation"

    def members(self) -> set[str]:
        return set(self.world.members)

    def places(self) -> set[str]:
        """Members, a static one by its instance id."""
        group = self.world.groups.describe(GROUP, has_offsets=False)
        return {member.instance_id or member.member_id for member in group.members}

    def act(self) -> None:
        self.deliver()
        if self.world.state != "PreparingRebalance":
            self.rebalance_since_ms = self.world.now

    @rule(index=st.integers(0, CLIENTS - 1), protocols=st.integers(0, 2), version=st.sampled_from([3, 5, 9]))
    def join(self, index: int, protocols: int, version: int) -> None:
        client = self.client(index)
        if client.instance is not None:
            version = max(version, 5)
        before = self.places()
        if client.join is not None:
            self.lost.add(client.join)
        client.protocols = protocols
        client.join = self.world.send_join(
            client.name, client.member_id, instance=client.instance, protocols=PROTOCOLS[protocols], version=version
        )
        self.act()
        if client.join is not None:  # one that is refused is no sign of life
            client.heard_ms = self.world.now
        assert before <= self.places(), "a join threw somebody out"

    @rule(indices=st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=8))
    def behave(self, indices: list[int]) -> None:
        """Clients do what clients do next: join, then sync, then heartbeats, and join again when told to."""
        for index in indices:
            client = self.client(index)
            if client.join is not None or client.sync is not None:
                continue
            if client.generation < 0:
                self.join(index, client.protocols, 9)
                self.world.advance(0)
                self.act()
            elif client.must_sync:
                self.sync(index, 0)
            elif self.beat(index) != codes.NONE:
                self.join(index, client.protocols, 9)

    @rule(index=st.integers(0, CLIENTS - 1))
    def restart(self, index: int) -> None:
        """The client's process ends without a word; a new one will know nothing but its instance id."""
        client = self.client(index)
        self.lost |= {token for token in (client.join, client.sync) if token is not None}
        self.clients[index] = Client(client.name, client.instance)

    @precondition(lambda self: any(client.generation >= 0 for client in self.clients))
    @rule(index=st.integers(0, CLIENTS - 1), stale=st.integers(0, 1))
    def sync(self, index: int, stale: int) -> None:
        client = self.client(index)
        if not client.member_id:
            return
        before = self.places()
        if client.sync is not None:
            self.lost.add(client.sync)
        assignments = {}
        if client.leads:
            generation = client.generation
            assignments = {name: f"{generation}:{name}:{self.world.now}".encode() for name in self.members()}
        client.sync = self.world.send_sync(
            client.member_id, client.generation - stale, assignments, instance=client.instance
        )
        self.act()
        assert before <= self.places(), "a sync threw somebody out"

    @rule(index=st.integers(0, CLIENTS - 1))
    def heartbeat(self, index: int) -> None:
        self.beat(index)

    def beat(self, index: int) -> int:
        client = self.client(index)
        before = self.places()
        error = self.world.heartbeat(client.member_id, client.generation, client.instance)
        if error in (codes.NONE, codes.REBALANCE_IN_PROGRESS):
            client.heard_ms = self.world.now
            assert client.member_id in self.members()
        assert before == self.places()
        return error

    @rule(index=st.integers(0, CLIENTS - 1))
    def commit(self, index: int) -> None:
        client = self.client(index)
        error = self.world.commit(client.member_id, client.generation, client.instance)
        if error == codes.NONE and client.member_id and client.generation >= 0:
            client.heard_ms = self.world.now
            group = self.world.groups.describe(GROUP, has_offsets=False)
            assert client.member_id in self.members(), "a commit of a stranger"
            assert group.state in ("Stable", "PreparingRebalance")

    @rule(index=st.integers(0, CLIENTS - 1), as_admin=st.booleans())
    def leave(self, index: int, as_admin: bool) -> None:
        client = self.client(index)
        place = client.instance or client.member_id
        before = self.places()
        self.world.leave(("" if as_admin else client.member_id, client.instance))
        self.act()
        assert before - {place} <= self.places(), "somebody else is out"

    @rule(duration_ms=st.sampled_from([0, 50, 1_000, 5_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def wait(self, duration_ms: int) -> None:
        before = self.places()
        began = self.rebalance_since_ms
        self.world.advance(duration_ms)
        now = self.world.now
        self.deliver()
        for gone in before - self.places():
            heard = max((c.heard_ms for c in self.clients if (c.instance or c.member_id) == gone), default=0)
            assert now - heard >= SESSION_MS or now - began >= REBALANCE_MS, f"{gone} is out too early"
        self.act()

    @rule(is_storing=st.booleans())
    def disk(self, is_storing: bool) -> None:
        """The disk is slow, or has caught up."""
        self.world.is_storing = is_storing
        if is_storing:
            self.store_waiting(codes.NONE)

    @precondition(lambda self: self.world.unstored)
    @rule()
    def disk_fails(self) -> None:
        self.store_waiting(codes.COORDINATOR_NOT_AVAILABLE)

    def store_waiting(self, error: int) -> None:
        while self.world.unstored:
            self.world.store(self.world.unstored.pop(0), error)
        self.act()

    @rule()
    def crash(self) -> None:
        """The broker is killed and starts again: it knows what it had made durable; every connection is broken."""
        old = self.world
        new = World(self.config)
        new.now, new.ids, new.stored = old.now, old.ids, old.stored[-1:]
        new._tokens = old._tokens
        if new.stored:
            new.groups.restore(GROUP, new.stored[0], new.now)
        self.world = new
        self.lost.clear()
        for client in self.clients:
            client.join = client.sync = None
            client.heard_ms = new.now
        self.rebalance_since_ms = new.now

    @invariant()
    def nothing_is_forgotten(self) -> None:
        waiting = {token for c in self.clients for token in (c.join, c.sync) if token is not None}
        waiting |= {token for token in self.lost if self.world.is_waiting(token)}
        group = self.world.groups.by_id.get(GROUP)
        held = set() if group is None else {m.join_token for m in group.roster} | {m.sync_token for m in group.roster}
        assert waiting == held - {None}

    @invariant()
    def time_goes_on(self) -> None:
        if self.world.members:
            # Only the disk may be waited for without a deadline: it answers, or fails.
            assert self.world.groups.next_deadline_ms is not None or self.world.unstored

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.disk(is_storing=True)
        for _ in range(10):
            self.world.advance(10 * REBALANCE_MS)
        assert self.world.state in ("Empty", "Dead")
        waiting = [token for c in self.clients for token in (c.join, c.sync) if token is not None]
        assert not any(map(self.world.is_waiting, waiting)), "left alone, everything is answered"


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
