from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from keylane import Pipeline
from keylane.kafka.consumer import KafkaConsumer
from keylane.kafka.presence import UNSERVED_S, Presence
from keylane.pipeline import Partitions

SESSION_S = 45.0


def of_steady(until: float = 10.0) -> Presence:
    presence = Presence({}, 0.0)
    presence.read("wait-join", 1.0, has_coordinator=True)
    for second in range(2, int(until) + 1):
        presence.read("steady", second, has_coordinator=True)
        presence.heard(second)
    return presence


def test_a_steady_member_that_is_heard_is_ready() -> None:
    assert of_steady().trouble(11.0) is None


def test_a_coordinator_that_is_silent_shows_within_ten_seconds() -> None:
    presence = of_steady()
    for second in range(11, 20):
        presence.read("steady", second, has_coordinator=True)
    assert presence.trouble(18.0) is None
    assert presence.trouble(19.0) == "the group's coordinator has not answered for 9 s"


def test_a_coordinator_that_is_not_connected_shows_whatever_the_member_does() -> None:
    presence = of_steady()
    for second in range(11, 20):
        presence.read("wait-join", second, has_coordinator=False)
    assert presence.trouble(19.0) == "the group's coordinator cannot be reached for 9 s"


def test_a_member_may_wait_for_its_assignment_as_long_as_the_group_waits_for_the_dead() -> None:
    presence = of_steady()
    for second in range(11, 70):
        presence.read("wait-join", second, has_coordinator=True)
        expected = second - 11 > SESSION_S
        assert (presence.trouble(second) is not None) is expected, second
    assert "it has waited for an assignment for 58 s, and session.timeout.ms is 45000" in (presence.trouble(69.0) or "")


def test_a_member_that_lost_its_partitions_is_not_ready_before_it_is_steady_again() -> None:
    presence = of_steady()
    presence.lost(11.0)
    assert "took this member's partitions away 1 s ago" in (presence.trouble(12.0) or "")
    presence.read("wait-join", 13.0, has_coordinator=True)
    assert presence.trouble(13.0) is not None
    presence.read("steady", 14.0, has_coordinator=True)
    assert presence.trouble(14.0) is None


def test_a_client_that_nobody_polls_shows() -> None:
    assert of_steady().trouble(10 + UNSERVED_S + 1) == "the group's client was not polled for 9 s"


def test_long_heartbeat_intervals_are_waited_for() -> None:
    presence = Presence({"heartbeat.interval.ms": 20_000, "session.timeout.ms": 60_000}, 0.0)
    presence.heard(0.0)
    for second in range(40):
        presence.read("steady", second, has_coordinator=True)
    assert presence.trouble(39.0) is None


@pytest.mark.parametrize(("reads", "session_s"), [({"topics": ["t"]}, 6.0), ({"topics": Partitions([("t", 0)])}, None)])
def test_who_reads_partitions_by_hand_has_no_session_that_could_end(
    reads: dict[str, Any], session_s: float | None
) -> None:
    """Nobody answers its heartbeats, for it sends none: a lease of its own would end for good."""
    kafka = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "session.timeout.ms": 6_000}
    with closing(KafkaConsumer(Pipeline(kafka=kafka, handler=print, **reads))) as consumer:
        assert consumer.session_s == session_s
