"""What share groups are asked, and answer. Plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.wire import codes

if TYPE_CHECKING:
    from keylane.coordinator.share_groups.partition import Limits
    from keylane.coordinator.share_groups.records import Assigned

JOIN, LEAVE = 0, -1
"""Member epochs that say what a heartbeat is for."""
EARLIEST, LATEST = "earliest", "latest"
"""Where a partition begins for a group that has not read it."""


class HeartbeatRequest(NamedTuple):
    """ShareGroupHeartbeat; None is "as before"."""

    group: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None


class HeartbeatAnswer(NamedTuple):
    error: int
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    """When the next heartbeat is due."""
    assignment: Assigned | None = None
    """What the member is to read from now on; None for "as before"."""


class RefusedError(Exception):
    """A request is refused: an error code and a sentence. Nothing has changed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ShareSettings(NamedTuple):
    """Of one group; in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    """No new assignment is computed before this time has passed since the last."""
    max_size: int
    limits: Limits
    reset: str | int
    """EARLIEST, LATEST, or how far back."""
    is_committed_only: bool
    """Whether records of open and aborted transactions are left out."""
    can_renew: bool


class MemberDescription(NamedTuple):
    member_id: str
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: Assigned


class ShareGroupDescription(NamedTuple):
    group: str
    error: int = codes.NONE
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()
