"""What librdkafka's statistics say of the coordinator."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import pytest

from keylane.errors import PeerError
from keylane.kafka.group_times import GroupTimes
from keylane.kafka.presence import Heartbeats, Presence, interval_ms, parsed, session_s


class Clients:
    """Statistics of a client whose clock is a second behind ours."""

    def __init__(self, **kafka: Any) -> None:
        self.heard: list[float] = []
        self.failures: list[PeerError] = []
        self.asked: list[str] = []
        self.answer: bool | OSError = False
        self.times: GroupTimes | Exception = GroupTimes(9.0, 2.0)
        self.told: list[GroupTimes] = []
        self.presence = Presence(kafka, 0.0)
        self.heartbeats = Heartbeats(
            kafka, self.heard.append, self.failures.append, self.presence, self._offers, self._times
        )
        self.heartbeats.told = self.told.append
        self.now = monotonic()
        self.answers = 0
        self.metadata = 0

    def _offers(self, _: Any, coordinator: str) -> bool:
        self.asked.append(coordinator)
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def _times(self, coordinator: str) -> GroupTimes:
        assert coordinator == "here:1"
        if isinstance(self.times, Exception):
            raise self.times
        return self.times

    def taken(
        self,
        wait_s: float,
        idle_s: float,
        *,
        answers: int = 1,
        awaited: int = 0,
        metadata: int = 0,
        connects: int = 1,
        state: str = "UP",
        joining: str = "steady",
        at: str = "here:1",
    ) -> None:
        """Statistics after a while: how many more answers there were, how many are awaited, and how many questions
        were for metadata."""
        self.now += wait_s
        self.answers += answers
        self.metadata += metadata
        coordinator = {
            "name": "GroupCoordinator",
            "nodename": at,
            "state": state,
            "rxidle": idle_s * 1e6,
            "rx": self.answers,
            "waitresp_cnt": awaited,
            "connects": connects,
            "req": {"Heartbeat": self.answers + awaited - self.metadata, "Metadata": self.metadata},
        }
        brokers = {"1": {"name": "here:1/1", "rxidle": 0}, "GroupCoordinator": coordinator}
        taken = {"ts": (self.now - 1.0) * 1e6, "brokers": brokers, "cgrp": {"join_state": joining}}
        self.heartbeats.read(json.dumps(taken))


@pytest.mark.parametrize("client_id", ['app "one"', "dom\\app", '","brokers":{"ts":1}'])
def test_a_client_id_that_is_no_json_is_passed_over(client_id: str) -> None:
    """librdkafka writes it as it is."""
    rest = '"ts":5,"time":1,"brokers":{"b":{"name":"here:1/1"}},"topics":{},"cgrp":{"join_state":"steady"}}'
    text = f'{{ "name": "{client_id}#consumer-1", "client_id": "{client_id}", "type": "consumer", {rest}'
    found = parsed(text)
    assert (found["ts"], found["cgrp"]["join_state"], [*found["brokers"]]) == (5, "steady", ["b"])


def test_it_was_heard_as_long_ago_as_its_connection_was_idle() -> None:
    clients = Clients()
    clients.taken(0, 0.5)
    clients.taken(0.5, 0.3)
    assert clients.heard == [], "it may have said that this member is out of the group"
    clients.taken(0.5, 0.1)
    [heard] = clients.heard
    before = clients.now - 0.5
    assert heard == pytest.approx(before - 0.3 - 0.5, abs=0.4), "in our clock, or somewhat before"
    assert heard <= monotonic()


def test_what_was_on_its_way_when_the_process_was_frozen_is_not_believed() -> None:
    """It reads the old answer when it wakes, and takes it for a new one."""
    clients = Clients(**{"session.timeout.ms": 6_000})
    for _ in range(3):
        clients.taken(0.3, 0)
    assert len(clients.heard) == 1
    clients.taken(10, 10, answers=0, awaited=2)
    clients.taken(0.3, 0, answers=2, awaited=1)
    clients.taken(0.3, 0.3, answers=0, awaited=1)
    clients.taken(0.3, 0.6, answers=0, awaited=1)
    assert len(clients.heard) == 1
    clients.taken(0.3, 0.1)
    clients.taken(0.3, 0.1)
    assert len(clients.heard) == 2


def test_what_was_read_before_the_first_statistics_after_it_is_not_believed_either() -> None:
    clients = Clients(**{"session.timeout.ms": 6_000})
    clients.taken(0, 0)
    clients.taken(10, 0)
    clients.taken(0.3, 0.3, answers=0)
    clients.taken(0.3, 0.6, answers=0)
    assert clients.heard == []


@pytest.mark.parametrize("joining", ["init", "wait-join", "wait-sync", "wait-unassign-call", "wait-assign-call"])
def test_what_it_hears_while_it_joins_may_be_that_it_is_out(joining: str) -> None:
    """JoinGroup is refused for an unknown member, and librdkafka joins under another name a second later."""
    clients = Clients()
    clients.taken(0, 0)
    for _ in range(3):
        clients.taken(0.5, 0, joining=joining)
    clients.taken(0.5, 0.5, answers=0)
    clients.taken(0.5, 1.0, answers=0)
    assert clients.heard == []
    clients.taken(0.5, 0)
    clients.taken(0.5, 0)
    assert len(clients.heard) == 1


def test_what_any_client_may_ask_says_nothing_of_the_member() -> None:
    clients = Clients()
    for _ in range(3):
        clients.taken(0.5, 0)
    assert len(clients.heard) == 1
    clients.taken(0.5, 0, connects=2, metadata=2, answers=2)
    clients.taken(0.5, 0, connects=2, metadata=1, answers=0, awaited=1)
    clients.taken(0.5, 0, connects=2, answers=1)
    clients.taken(0.5, 0, connects=2, answers=0)
    assert len(clients.heard) == 1, "the connection is new, and asked for metadata"
    clients.taken(0.5, 0, connects=2)
    clients.taken(0.5, 0, connects=2)
    assert len(clients.heard) == 2


def test_a_connection_that_never_received_anything_says_nothing() -> None:
    clients = Clients()
    for _ in range(3):
        clients.taken(0.5, -1e-6, answers=0)
    assert clients.heard == []


def test_a_member_that_does_not_begin_to_join_asks_its_coordinator_what_it_offers() -> None:
    clients = Clients(**{"group.protocol": "consumer"})
    clients.taken(0, 0, joining="init")
    assert not clients.asked, "it has only just connected"
    clients.taken(0.5, 0, state="CONNECT", joining="init")
    clients.taken(0.5, 0, joining="init")
    assert not clients.asked, "the connection was away"
    clients.taken(0.5, 0, joining="init")
    clients.taken(0.5, 0, joining="init")
    assert clients.asked == ["here:1"]
    [failure] = clients.failures
    assert "the broker at here:1 does not offer group.protocol='consumer' (KIP-848)" in str(failure)


def test_a_member_whose_coordinator_moves_waits_however_long_that_takes() -> None:
    clients = Clients(**{"group.protocol": "consumer"})
    clients.answer = True
    for _ in range(100):
        clients.taken(0.5, 0, joining="init")
    for _ in range(2):
        clients.taken(0.5, 0, joining="init", at="there:1")
    assert clients.asked == ["here:1", "there:1"]
    assert not clients.failures


def test_a_coordinator_that_does_not_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    clients = Clients(**{"group.protocol": "consumer"})
    clients.answer = ConnectionRefusedError("refused")
    for _ in range(4):
        clients.taken(0.5, 0, joining="init")
    assert len(clients.asked) == 3
    assert not clients.failures
    assert caplog.messages == [
        "the member has not joined yet, and what the broker at here:1 offers cannot be asked: refused"
    ]
    clients.answer = False
    clients.taken(0.5, 0, joining="init")
    assert len(clients.failures) == 1


@pytest.mark.parametrize(("protocol", "joining"), [("consumer", "steady"), ("classic", "init")])
def test_nobody_else_asks(protocol: str, joining: str) -> None:
    clients = Clients(**{"group.protocol": protocol})
    for _ in range(4):
        clients.taken(0.5, 0, joining=joining)
    assert not clients.asked
    assert not clients.failures


@pytest.mark.parametrize(
    ("kafka", "session", "interval"),
    [({}, 45.0, 1_000), ({"session.timeout.ms": 6_000}, 6.0, 300), ({"session.timeout.ms": 200}, 0.2, 50)],
)
def test_intervals_follow_the_session(kafka: dict[str, Any], session: float, interval: int) -> None:
    assert (session_s(kafka), interval_ms(kafka)) == (session, interval)


def test_a_member_of_kip_848_hears_what_the_broker_has_decided() -> None:
    clients = Clients(**{"group.protocol": "consumer"})
    clients.taken(0, 0, joining="wait-assign-call")
    assert clients.told == [], "it has nothing yet"
    clients.taken(0.5, 0)
    clients.taken(0.5, 0)
    assert clients.told == [GroupTimes(9.0, 2.0)]
    assert clients.presence.session_s == 9.0
    clients.times = GroupTimes(6.0, 2.0)
    clients.taken(0.5, 0, joining="wait-unassign-call")
    clients.taken(0.5, 0)
    assert clients.presence.session_s == 6.0, "it is asked after each assignment"
    clients.taken(0.5, 0, connects=2)
    assert len(clients.told) == 3, "and on a new connection"


def test_a_broker_that_does_not_tell_is_named(caplog: pytest.LogCaptureFixture) -> None:
    clients = Clients(**{"group.protocol": "consumer", "group.id": "g"})
    clients.times = PeerError("error 29 of DescribeConfigs: None")
    for connects in (1, 2):
        clients.taken(0.5, 0, connects=connects)
    assert clients.told == []
    assert clients.presence.session_s == 45.0
    (record,) = caplog.records
    assert "the broker at here:1 does not say how long a member of group g may be silent, and 45 s are taken" in (
        record.getMessage()
    )


def test_a_member_of_the_classic_protocol_decides_itself() -> None:
    clients = Clients(**{"session.timeout.ms": 12_000})
    for _ in range(3):
        clients.taken(0.5, 0)
    assert clients.told == []
    assert clients.presence.session_s == 12.0
