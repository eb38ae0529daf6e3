"""How a member stands with its group's coordinator, from librdkafka's statistics: when that was last heard of
(`Heartbeats`, for the lease), and what keeps the member from being ready (`Presence`, for a probe).

The idea: librdkafka has no callback for heartbeats, but its statistics come every second, whatever the broker does.
They say how long ago each connection last received something, and the coordinator has a connection of its own that
carries heartbeats, joins and commits; and they say whether the member is steady. Who is steady and not heard of has no
coordinator; who is not steady waits for an assignment, which may take a session timeout: the group waits so long for
members that are dead.

Some of what the coordinator's connection receives says nothing:

- What was on its way when the process was frozen is read when it wakes, and looks new. A connection's answers come in
  order, so what is new begins after as many as were awaited then.
- An answer may say that the member was thrown out. In its steady state librdkafka reports that, in order with its
  statistics, before the next ones; so what statistics have seen counts when the next ones come. While it joins or takes
  partitions on or gives them back, it may join anew under another name first, and report a second later; so nothing
  that it receives then counts.
- A new connection begins with questions that any client may ask, and metadata is asked for now and then: as many
  answers as there were such questions do not count.
"""

from __future__ import annotations

import json
from contextlib import closing
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError, UsageError
from keylane.kafka.client_log import Repeats
from keylane.kafka.group_times import GroupTimes, ask_group_times
from keylane.kafka.link import Link, address_of
from keylane.kafka.login import before_login_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logger_of("keylane.kafka")

COORDINATOR = "GroupCoordinator"
"""What librdkafka calls the connection."""

OF_MEMBERS = ("Heartbeat", "JoinGroup", "SyncGroup", "OffsetCommit")
"""Requests that are refused to who is no member. KIP-848's heartbeat is none of those that librdkafka counts."""

MOST_INTERVAL_MS = 1_000
LEAST_INTERVAL_MS = 50
INTERVALS_A_SESSION = 20
"""Statistics in a session timeout: the lease is two thirds of it, and what they say must not be old."""

BELIEVED_INTERVALS = 4
"""Statistics that come later than this many intervals after the ones before say that the process was frozen."""

DEFAULT_SESSION_MS = 45_000
"""librdkafka's default; and the broker's for KIP-848's protocol, where the broker decides, until it is asked."""

CONSUMER_GROUP_HEARTBEAT, HEARTBEAT_VERSION = 68, 1
"""KIP-848's API, and the version of it that librdkafka speaks."""

ASK_S = 2.0
"""How long a broker is asked what it offers: so long the group's thread waits."""


STEADY = "steady"
HEARTBEAT_MS = 3_000
"""librdkafka's default for `heartbeat.interval.ms`."""
LEAST_SILENCE_S = 8.0
"""So long a coordinator may be silent: two heartbeats, and what statistics add. A lost one shows within ten seconds."""
UNSERVED_S = 8.0
"""Without statistics for so long, the thread that polls the group's client stands."""


def session_s(kafka: Mapping[str, Any]) -> float:
    """The session timeout of a group's member."""
    return int(kafka.get("session.timeout.ms", DEFAULT_SESSION_MS)) / 1000


def interval_ms(kafka: Mapping[str, Any]) -> int:
    """How often to take statistics."""
    return max(LEAST_INTERVAL_MS, min(MOST_INTERVAL_MS, int(session_s(kafka) * 1000) // INTERVALS_A_SESSION))


class Presence:
    """Thread safety: `trouble` is for any thread, everything else for the one that polls the client."""

    def __init__(self, kafka: Mapping[str, Any], now: float) -> None:
        heartbeat_s = int(kafka.get("heartbeat.interval.ms", HEARTBEAT_MS)) / 1000
        self._session_s = session_s(kafka)
        self._interval_s = interval_ms(kafka) / 1000
        self._silence_s = self._silence_of(heartbeat_s)
        self._read_at = self._since = self._heard_at = self._connected_at = now
        self._is_steady = self._is_lost = False

    def _silence_of(self, heartbeat_s: float) -> float:
        return max(LEAST_SILENCE_S, 2 * (heartbeat_s + self._interval_s))

    def take(self, times: GroupTimes) -> None:
        """What the broker has decided for the group (KIP-848)."""
        self._session_s, self._silence_s = times.session_s, self._silence_of(times.heartbeat_s)

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

    @property
    def session_s(self) -> float:
        """The session timeout, as far as it is known."""
        return self._session_s

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


class Heartbeats:
    """Reads statistics; `heard` is told when the coordinator answered last, in `time.monotonic()`.

    `failed` gets a `PeerError` when the broker lacks the group protocol that was asked for. Thread safety: the thread
    that polls the client.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        heard: Callable[[float], None],
        failed: Callable[[PeerError], None],
        presence: Presence,
        offers: Callable[[Mapping[str, Any], str], bool] | None = None,
        times: Callable[[str], GroupTimes] | None = None,
    ) -> None:
        """`offers` says whether the broker at an address has KIP-848's API (`offers_kip_848`), `times` what it has
        decided for the group (`ask_group_times`)."""
        self._kafka = kafka
        self._presence = presence
        self._offers = offers or offers_kip_848
        self._ask_times = times or (lambda coordinator: ask_group_times(kafka, coordinator, ASK_S))
        self.told: Callable[[GroupTimes], None] = lambda _: None
        """Told of the times of a group of KIP-848's protocol: when its coordinator is connected, and at each
        assignment."""
        self._was_steady = False
        self._repeats = Repeats()
        self._is_kip_848 = kafka.get("group.protocol") == "consumer"
        self._believed_s = BELIEVED_INTERVALS * interval_ms(kafka) / 1000
        self._heard = heard
        self.joins: Callable[[str, float], None] = lambda _, __: None
        """Told of librdkafka's state of the member, and when."""
        self._failed = failed
        self._before = -inf
        self._connects = 0
        """Of the statistics before."""
        self._old = 0
        """How many answers to a member have been counted, or do not count."""
        self._received_at: float | None = None
        """When the coordinator answered last, by the statistics before; None when it did not, or that does not count.
        """
        self._ahead = inf
        """Of our clock before the client's, at least: statistics may have waited for the poll."""
        self._coordinator = ""
        """Whom a member of KIP-848's protocol has not begun to join at, by the statistics before."""
        self._offering: set[str] = set()
        """Brokers that were asked and have KIP-848's API."""

    def read(self, text: str) -> None:
        """librdkafka's statistics callback."""
        statistics = parsed(text)
        self.joins(statistics["cgrp"]["join_state"], monotonic())
        states = (broker["state"] for broker in statistics["brokers"].values() if broker["name"] == COORDINATOR)
        self._presence.read(statistics["cgrp"]["join_state"], monotonic(), has_coordinator="UP" in states)
        made_at = statistics["ts"] / 1e6
        gap, self._before = made_at - self._before, made_at
        self._ahead = min(self._ahead, monotonic() - made_at)
        for broker in statistics["brokers"].values():
            if broker["name"] != COORDINATOR:
                continue
            join_state = statistics["cgrp"]["join_state"]
            answers = broker["rx"] - sum(sent for kind, sent in broker["req"].items() if kind not in OF_MEMBERS)
            connects, self._connects = self._connects, broker["connects"]
            if gap > self._believed_s or join_state != "steady" or connects != broker["connects"]:
                self._old = answers + broker["waitresp_cnt"]
            elif self._received_at is not None:
                self._heard(self._received_at)
            if self._is_kip_848:
                coordinator = broker["nodename"] if broker["state"] == "UP" else ""
                self._hear_times(coordinator, join_state, is_new_connection=connects != broker["connects"])
            is_new = answers > self._old
            self._old = max(self._old, answers)
            self._received_at = made_at + self._ahead - broker["rxidle"] / 1e6 if is_new else None
            if self._is_kip_848:
                self._check_kip_848(join_state, broker["nodename"] if broker["state"] == "UP" else "")

    def _hear_times(self, coordinator: str, join_state: str, *, is_new_connection: bool) -> None:
        """Ask a member's coordinator where what it said may be old: after an assignment, and on a new connection."""
        was_steady, self._was_steady = self._was_steady, join_state == STEADY
        if not self._was_steady or not coordinator or (was_steady and not is_new_connection):
            return
        try:
            times = self._ask_times(coordinator)
        except (OSError, UsageError, PeerError) as error:
            if self._repeats.is_new("times"):
                logger.warning(
                    "the broker at %s does not say how long a member of group %s may be silent, and %.0f s are taken "
                    "(handlers start for two thirds of it): %s",
                    coordinator,
                    self._kafka.get("group.id"),
                    self._presence.session_s,
                    error,
                )
            return
        self._presence.take(times)
        self.told(times)

    def _check_kip_848(self, join_state: str, coordinator: str) -> None:
        """A member that does not begin to join: does its coordinator lack KIP-848's API? librdkafka sends nothing then,
        and says nothing. It does the same for a while when a coordinator moves, so the broker is asked."""
        before, self._coordinator = self._coordinator, coordinator if join_state == "init" else ""
        if not self._coordinator or self._coordinator != before or coordinator in self._offering:
            return
        try:
            if self._offers(self._kafka, coordinator):
                self._offering.add(coordinator)
                return
        except (OSError, UsageError) as error:
            if self._repeats.is_new("offers"):
                logger.warning(
                    "the member has not joined yet, and what the broker at %s offers cannot be asked: %s",
                    coordinator,
                    error,
                )
            return
        self._is_kip_848 = False  # told once
        self._failed(
            PeerError(
                f"the broker at {coordinator} does not offer group.protocol='consumer' (KIP-848): "
                "leave group.protocol out, or use Apache Kafka 4 or the embedded broker"
            )
        )


def parsed(text: str) -> Any:
    """librdkafka's statistics, from their time on. Before it stands the client's id, which librdkafka puts there as it
    is: one with a quote or a backslash makes of the whole what is no JSON."""
    after_id = text.rindex('"ts":', 0, text.rindex('"brokers":'))
    return json.loads(f"{{{text[after_id:]}")


def offers_kip_848(kafka: Mapping[str, Any], coordinator: str) -> bool:
    """Whether the broker at this address has the API of KIP-848's members. Raises `OSError`, and `UsageError` for
    settings of its TLS that are librdkafka's alone."""
    with closing(Link(address_of(coordinator), before_login_of(kafka), ASK_S)) as link:
        return link.offers(CONSUMER_GROUP_HEARTBEAT, HEARTBEAT_VERSION)
