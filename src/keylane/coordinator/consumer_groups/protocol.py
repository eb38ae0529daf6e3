"""What consumer groups of KIP-848 are asked, and answer. Plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from keylane.wire import codes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping

    from keylane.coordinator.consumer_groups.assignors import Topic
    from keylane.coordinator.consumer_groups.records import Owned, Target

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
"""Member epochs that say what a heartbeat is for; the last is a static member's, which keeps its partitions."""


class HeartbeatRequest(NamedTuple):
    """ConsumerGroupHeartbeat; None, and -1 for the timeout, is "as before"."""

    group: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    """A regular expression for topics."""
    assignor: str | None = None
    owned: Mapping[uuid.UUID, frozenset[int]] | None = None
    """The partitions that the member has."""
    makes_own_id: bool = True
    """From version 1 on: a member comes with an id of its own making."""


class HeartbeatAnswer(NamedTuple):
    error: int
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    """When the next heartbeat is due."""
    assignment: Owned | None = None
    """What the member has from now on; None for "as before"."""


class RefusedError(Exception):
    """A heartbeat is refused: an error code and a sentence. Nothing has changed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def answer(self) -> HeartbeatAnswer:
        return HeartbeatAnswer(self.code, str(self))


class Topics(Protocol):
    """The topics of the node."""

    @property
    def version(self) -> int:
        """Another one after each change."""
        ...

    def get(self, name: str) -> Topic | None: ...
    def names(self) -> Iterable[str]: ...
    def name_of(self, topic_id: uuid.UUID | None) -> str | None: ...


class NoTopics:
    """Where there are none."""

    version = 0

    def get(self, name: str) -> Topic | None:  # noqa: ARG002
        return None

    def names(self) -> Iterable[str]:
        return ()

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:  # noqa: ARG002
        return None


class GroupSettings(NamedTuple):
    """Of one group; in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    """No new assignment is computed before this time has passed since the last (KIP-1263)."""
    max_size: int
    can_upgrade: bool = True
    """Whether a group of the classic protocol with members becomes a consumer group when one joins."""
    can_downgrade: bool = True
    """Whether a consumer group becomes one of the classic protocol when the last of its own protocol goes."""
    classic_max_size: int = 2**31 - 1
    """Of groups of the classic protocol."""


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assigned: Owned
    target: Target
    is_classic: bool
    """Whether it uses the classic protocol."""


class ConsumerGroupDescription(NamedTuple):
    group: str
    error: int = codes.NONE
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()
