"""Histories of commits from client processes while the broker is killed: lost, partial, zero, backwards: all 0."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.offset_histories import COMMITS_BEFORE_A_KILL, History, running, verdict, wait_for_commits
from kit.offset_history import Event, judge, read_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOPIC = "flights"
PARTITIONS = 12


def event(kind: str, began: float, *numbers: int, ended: float | None = None) -> Event:
    return Event(kind, began, began + 0.5 if ended is None else ended, numbers)


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([event("commit", 0, 1), event("read", 1, 1, 1)], None),
        ([event("commit", 0, 1), event("commit", 0.2, 2), event("read", 0.3, 0, 0)], None),  # none was answered yet
        ([event("read", 0, -1, -1), event("commit", 1, 1), event("read", 2, 1, 1)], None),
        ([event("commit", 0, 2), event("read", 1, 1, 1)], "lost"),
        ([event("commit", 0, 2), event("read", 1, 2, 3)], "partial"),
        ([event("commit", 0, 1), event("read", 1, -1, -1)], "zero"),
        ([event("commit", 0, 1), event("read", 1, 0, 0)], "zero"),
        ([event("read", 0, 5, 5), event("read", 1, 4, 4)], "backwards"),
        ([event("read", 0, 5, 5), event("read", 0.1, 4, 4)], None),  # sent before the first was answered
        ([Event("commit", 0, None, (9,)), event("read", 1, 3, 3)], None),  # no answer: nothing is known of it
        ([event("commit", 0, 1), event("commit_if", 1, 1, 2), event("read", 2, 2, 2)], None),
        ([event("commit", 0, 1), event("commit_if", 1, 0, 2)], "passed_over"),
        ([event("commit", 0, 1), event("commit_if", 0.1, 0, 2)], None),  # the first was not answered yet
        ([event("read", 0, 5, 5), event("commit_if", 1, 4, 6)], "passed_over"),
        ([event("commit_if", 0, 1, 2), event("read", 1, 1, 1)], "lost"),
        ([event("refused", 0, 1, 2, 0, 0), event("commit_if", 1, 2, 3)], "passed_over"),  # 2 was never committed
        ([event("refused", 0, 1, 2, 1, 1)], "passed_over"),
        ([event("refused", 0, 1, 2, 0, 0), event("read", 1, 0, 0)], None),
        ([event("refused", 0, 1, 2, 1, 3)], "partial"),
        ([event("commit", 0, 4), event("refused", 1, 1, 5, 3, 3)], "lost"),
        ([event("read", 0, 4, 4), event("refused", 1, 1, 5, 3, 3)], "backwards"),
        ([Event("commit_if", 0, None, (9,)), event("read", 1, 3, 3)], None),
    ],
)
def test_the_oracle(events: list[Event], fault: str | None) -> None:
    verdict = judge(events)
    found = {name: getattr(verdict, name) for name in ("lost", "partial", "zero", "backwards", "passed_over")}
    assert {name for name, count in found.items() if count} == ({fault} if fault else set())
    assert verdict.is_faultless is (fault is None)


def test_lines_that_were_cut_off_are_left_out() -> None:
    text = '["commit", 1.0, 2.0, [7]]\n["read", 3.0, 4.0, [7, 7]]\n["read", 5.0, '
    assert read_events(text) == [Event("commit", 1.0, 2.0, (7,)), Event("read", 3.0, 4.0, (7, 7))]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 1), pytest.param(60, 2, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_histories_under_kills(
    tmp_path: Path, kills: int, seed: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(seed)
    histories = [History(tmp_path, group, TOPIC, PARTITIONS) for group in ("a", "b", "c")]
    settings = {"offsets.topic.segment.bytes": "200000"}  # rolls and snapshots while it runs
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({TOPIC: PARTITIONS})
        with running(histories, broker.bootstrap, chance):
            for _ in range(kills):
                wait_for_commits(histories)
                broker.restart()
            wait_for_commits(histories)
        total = verdict(histories, broker.bootstrap)
    record_property("commits", total.commits)
    record_property("reads", total.reads)
    assert total.is_faultless, total
    assert total.commits >= 3 * COMMITS_BEFORE_A_KILL * (kills + 1)
    assert total.reads > kills
