"""Histories of commits from client processes while the broker is killed: lost, partial, zero, backwards: all 0."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.offset_history import NOTHING, Event, Verdict, judge, read_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOPIC = "flights"
PARTITIONS = 12
COMMITS_BEFORE_A_KILL = 60
DEADLINE_S = 60.0
"""How long a phase may take on a busy machine."""


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
    ],
)
def test_the_oracle(events: list[Event], fault: str | None) -> None:
    verdict = judge(events)
    found = {name: getattr(verdict, name) for name in ("lost", "partial", "zero", "backwards")}
    assert {name for name, count in found.items() if count} == ({fault} if fault else set())
    assert verdict.is_faultless is (fault is None)


def test_lines_that_were_cut_off_are_left_out() -> None:
    text = '["commit", 1.0, 2.0, [7]]\n["read", 3.0, 4.0, [7, 7]]\n["read", 5.0, '
    assert read_events(text) == [Event("commit", 1.0, 2.0, (7,)), Event("read", 3.0, 4.0, (7, 7))]


class History:
    """One group's client, over all its lives."""

    def __init__(self, folder: Path, group: str) -> None:
        self.group = group
        self.path = folder / f"{group}.jsonl"
        self.path.touch()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, bootstrap: str, seed: int) -> None:
        first = max((event.numbers[0] for event in self.events() if event.kind == "commit"), default=0)
        arguments = [bootstrap, self.group, TOPIC, str(PARTITIONS), str(seed), str(first)]
        command = [sys.executable, "-m", "kit.offset_history", *arguments]
        with self.path.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)

    def stop(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE_S) == 0, "the client saw an error that it must not see"

    def events(self) -> list[Event]:
        return read_events(self.path.read_text())

    def acknowledged(self) -> int:
        return sum(event.kind == "commit" and event.ended is not None for event in self.events())


def wait_for_commits(histories: list[History]) -> None:
    """Until every client has had so many more commits acknowledged."""
    goals = {history.group: history.acknowledged() + COMMITS_BEFORE_A_KILL for history in histories}
    deadline = time.monotonic() + DEADLINE_S
    while any(history.acknowledged() < goals[history.group] for history in histories):
        assert time.monotonic() < deadline, "the clients do not come forward"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 1), pytest.param(60, 2, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_histories_under_kills(
    tmp_path: Path, kills: int, seed: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(seed)
    histories = [History(tmp_path, group) for group in ("a", "b", "c")]
    settings = {"offsets.topic.segment.bytes": "200000"}  # rolls and snapshots while it runs
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({TOPIC: PARTITIONS})
        for history in histories:
            history.start(broker.bootstrap, chance.randrange(10**6))
        try:
            for _ in range(kills):
                wait_for_commits(histories)
                broker.restart()
            wait_for_commits(histories)
        finally:
            for history in histories:
                history.stop()
        total = NOTHING
        for history in histories:
            total += judge([*history.events(), last_read(broker, history.group)])
    record_property("commits", total.commits)
    record_property("reads", total.reads)
    assert total == Verdict(total.commits, total.reads, 0, 0, 0, 0)
    assert total.commits >= 3 * COMMITS_BEFORE_A_KILL * (kills + 1)
    assert total.reads > kills


def last_read(broker: BrokerProcess, group: str) -> Event:
    """What the broker says in the end, to everybody."""
    found = Admin({"bootstrap.servers": broker.bootstrap}).committed_offsets(group)
    offsets = tuple(found[TOPIC, one].offset for one in range(PARTITIONS))
    return Event("read", time.monotonic(), time.monotonic(), offsets)
