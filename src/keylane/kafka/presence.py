"""`Presence`: how a member stands with its group, for a readiness probe.

The idea: librdkafka's statistics come every second, whatever the broker does, and say whether the member is steady; and
`Heartbeats` says when the coordinator answered last. Who is steady and not heard of has no coordinator; who is not
steady waits for an assignment, which may take a session timeout: the group waits so long for members that are dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.kafka.heartbeats import interval_ms, session_s

if TYPE_CHECKING:
    from collections.abc import Mapping

STEADY = "steady"
HEARTBEAT_MS = 3_000
"""librdkafka's default for `heartbeat.interval.ms`."""
LEAST_SILENCE_S = 8.0
"""So long a coordinator may be silent: two heartbeats, and what statistics add. A lost one shows within ten seconds."""
UNSERVED_S = 8.0
"""Without statistics for so long, the thread that polls the group's client stands."""


class Presence:
    """Thread safety: `trouble` is for any thread, everything else for the one that polls the client."""

    def __init__(self, kafka: Mapping[str, Any], now: float) -> None:
        heartbeat_s = int(kafka.get("heartbeat.interval.ms", HEARTBEAT_MS)) / 1000
        self._session_s = session_s(kafka)
        self._silence_s = max(LEAST_SILENCE_S, 2 * (heartbeat_s + interval_ms(kafka) / 1000))
        self._read_at = self._since = self._heard_at = self._connected_at = now
        self._is_steady = self._is_lost = False

    def read(self, join_state: str, now: float, *, has_coordinator: bool) -> None:
        """librdkafka's state of the member, and whether the coordinator is connected, from each of its statistics."""
        self._read_at = now
        if has_coordinator:
            self._connected_at = now
        is_steady = join_state == STEADY
        if is_steady is not self._is_steady:
            self._is_steady, self._since = is_steady, now
        if is_steady:
            self._is_lost = False

    def heard(self, heard_at: float) -> None:
        """The coordinator answered then."""
        self._heard_at = max(self._heard_at, heard_at)

    def lost(self, now: float) -> None:
        """The group has given this member's partitions to others."""
        self._is_lost = True
        self._is_steady, self._since = False, now

    def trouble(self, now: float) -> str | None:
        """Why the member is not ready, or None."""
        if (unserved_s := now - self._read_at) > UNSERVED_S:
            return f"the group's client was not polled for {unserved_s:.0f} s"
        if (unconnected_s := now - self._connected_at) > self._silence_s:
            return f"the group's coordinator cannot be reached for {unconnected_s:.0f} s"
        waiting_s = now - self._since
        if self._is_lost:
            return f"the group took this member's partitions away {waiting_s:.0f} s ago, and it has not joined again"
        if self._is_steady:
            silent_s = now - max(self._heard_at, self._since)
            if silent_s > self._silence_s:
                return f"the group's coordinator has not answered for {silent_s:.0f} s"
        elif waiting_s > self._session_s:
            return (
                f"it has waited for an assignment for {waiting_s:.0f} s, and session.timeout.ms is "
                f"{self._session_s * 1000:.0f}"
            )
        return None
