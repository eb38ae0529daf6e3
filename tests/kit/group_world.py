"""Drives the pure group protocol in virtual time: for tests that need many members and no sockets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from keylane.coordinator.groups.protocol import (
    Action,
    Answer,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Left,
    Persist,
    SyncAnswer,
    SyncRequest,
)
from keylane.coordinator.groups.registry import GroupRegistry, check_commit_without_group
from keylane.wire import codes

if TYPE_CHECKING:
    from keylane.coordinator.formats import GroupValue
    from keylane.coordinator.options import CoordinatorOptions

GROUP = "weather"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class World:
    """One coordinator's groups, a clock, and whoever talks to them. Requests are named by numbers."""

    def __init__(self, options: CoordinatorOptions) -> None:
        self.now = 1_000_000
        self.ids: Counter[str] = Counter()
        self.groups = GroupRegistry(options, self._member_id)
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self.answered_ms: dict[int, int] = {}
        self.stored: list[GroupValue] = []
        self.unstored: list[Persist] = []
        """What is to be made durable, while `is_storing` is False."""
        self.is_storing = True
        self._tokens = 0

    def _member_id(self, prefix: str) -> str:
        self.ids[prefix] += 1
        return f"{prefix}-{self.ids[prefix]}"

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Answer):
                token = action.token
                assert isinstance(token, int)
                assert token not in self.answers, f"request {token} was answered twice"
                self.answers[token] = action.response
                self.answered_ms[token] = self.now
            elif self.is_storing:
                self.store(action)
            else:
                self.unstored.append(action)

    def store(self, action: Persist, error: int = codes.NONE) -> None:
        if error == codes.NONE:
            self.stored.append(action.value)
        self.perform(self.groups.stored(action.group, action.ticket, error, self.now))

    def send_join(
        self,
        client: str = "a",
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"sub"),),
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        group: str = GROUP,
    ) -> int:
        """The token of a JoinGroup."""
        self._tokens += 1
        request = JoinRequest(
            member_id,
            instance,
            client,
            "/host",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            version >= 4,
            version >= 9,
        )
        self.perform(self.groups.join(group, request, self._tokens, self.now))
        return self._tokens

    def send_sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol: str | None = None,
        protocol_type: str | None = None,
    ) -> int:
        """The token of a SyncGroup."""
        self._tokens += 1
        request = SyncRequest(member_id, instance, generation, protocol_type, protocol, assignments or {})
        self.perform(self.groups.sync(GROUP, request, self._tokens, self.now))
        return self._tokens

    def joined(self, token: int) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, token: int) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def is_waiting(self, token: int) -> bool:
        return token not in self.answers

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        return self.groups.heartbeat(GROUP, member_id, instance, generation, self.now)

    def commit(self, member_id: str = "", generation: int = -1, instance: str | None = None) -> int:
        group = self.groups.by_id.get(GROUP)
        if group is None:
            return check_commit_without_group(GROUP, generation)
        return group.check_commit(member_id, instance, generation, self.now)

    def leave(self, *leavers: tuple[str, str | None]) -> list[Left]:
        results, actions = self.groups.leave(GROUP, [Leaver(*leaver) for leaver in leavers], self.now)
        self.perform(actions)
        return results

    def advance(self, duration_ms: int) -> None:
        """Let time pass, acting on every deadline on the way."""
        end = self.now + duration_ms
        while (deadline := self.groups.next_deadline_ms) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.perform(self.groups.tick(self.now))
        self.now = end

    @property
    def state(self) -> str:
        return self.groups.describe(GROUP, has_offsets=False).state

    @property
    def members(self) -> list[str]:
        return [member.member_id for member in self.groups.describe(GROUP, has_offsets=False).members]

    def new_id(self, client: str = "a") -> str:
        """What a new dynamic member is told first (KIP-394)."""
        answer = self.joined(self.send_join(client))
        assert answer.error == codes.MEMBER_ID_REQUIRED
        return answer.member_id

    def stable(self, *clients: str) -> list[str]:
        """A stable group of these members, of which the first leads; in generation 1 when the group was new."""
        ids = [self.new_id(client) for client in clients]
        tokens = [self.send_join(client, member_id) for client, member_id in zip(clients, ids, strict=True)]
        self.advance(0)
        self.sync_all([self.joined(token) for token in tokens])
        assert self.state == "Stable"
        return ids

    def sync_all(self, answers: list[JoinAnswer]) -> list[SyncAnswer]:
        """Every member of a generation syncs, the leader last; each is assigned its own id."""
        for answer in answers:
            assert answer.error == codes.NONE, answer
        ids = [answer.member_id for answer in answers]
        rest = [answer for answer in answers if answer.member_id != answer.leader]
        (leader,) = [answer for answer in answers if answer.member_id == answer.leader]
        tokens = [self.send_sync(answer.member_id, answer.generation) for answer in rest]
        tokens.append(self.send_sync(leader.member_id, leader.generation, {name: name.encode() for name in ids}))
        return [self.synced(token) for token in tokens]
