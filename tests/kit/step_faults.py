"""Faults of members with steps, and of their brokers, and what has to hold after them: no call is repeated whose answer
was acknowledged, and no step has two answers.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from kit.stage import Stage, until
from kit.step_service import StepService

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 2
MEMBERS = 2
THREADS = 4
SESSION_MS = 3_000
FILL = 24
"""Records that come before each fault, which waits until half of them are through."""
SETTLE_S = 120.0
KINDS = ["kill", "freeze", "kill", "broker", "kill", "kill"]
"""Of faults, by turns: four members are killed for one that is frozen and one broker."""


class Group:
    """Its members, each in a process."""

    def __init__(self, stage: Stage, service: StepService) -> None:
        self._stage, self._service = stage, service
        self.members: dict[str, subprocess.Popen[str]] = {}
        self.frozen: list[str] = []
        self.were_frozen: set[str] = set()
        self._count = 0

    def start(self) -> None:
        self._count += 1
        name = f"m{self._count}"
        options: dict[str, Any] = {
            "kafka": self._stage.kafka | {"session.timeout.ms": SESSION_MS},
            "topic": self._stage.topic,
            "service": self._service.address,
            "name": name,
        }
        command = [sys.executable, "-m", "kit.step_member", json.dumps(options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.members[name] = process

    def kill(self, name: str) -> None:
        process = self.members.pop(name)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        if name in self.frozen:
            self.frozen.remove(name)

    def freeze(self, name: str) -> None:
        self.members[name].send_signal(signal.SIGSTOP)
        self.frozen.append(name)
        self.were_frozen.add(name)

    def wake(self) -> None:
        if self.frozen:
            self.members[self.frozen.pop(0)].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for name in list(self.members):
            self.kill(name)


def fill(stage: Stage) -> None:
    stage.fill((b"%d" % number, number % PARTITIONS) for number in range(FILL))


def check_faults(
    stage: Stage, fault_of_broker: Callable[[], None], faults: int, record_property: Callable[[str, object], None]
) -> None:
    """Of a topic with `PARTITIONS`, which is there."""
    chance = random.Random(faults)
    with StepService() as service:
        records = FILL * (faults + 1)
        group = Group(stage, service)
        try:
            for _ in range(MEMBERS):
                group.start()
            for number in range(faults):
                fill(stage)
                service.wait_for(FILL * number + FILL // 2, SETTLE_S)
                kind = KINDS[number % len(KINDS)]
                awake = [name for name in group.members if name not in group.frozen]
                if kind == "broker":
                    fault_of_broker()
                elif kind == "freeze":
                    group.freeze(chance.choice(awake))
                    group.start()
                else:
                    group.kill(chance.choice(awake))
                    group.start()
                    if number % len(KINDS) == 4:
                        group.wake()
            fill(stage)
            group.wake()
            service.wait_for(records, SETTLE_S)
            until(stage.all_is_committed, "all is committed", SETTLE_S)
        finally:
            group.end()
        repeated = service.calls.total() - len(service.calls)
        record_property("calls", service.calls.total())
        record_property("repeated", repeated)
        again = {name: count for name, count in service.again.items() if count and name not in group.were_frozen}
        assert again == {}, f"calls whose answer had been acknowledged, by member: {again}"
        late = sum(service.again[name] for name in group.were_frozen)
        assert late <= THREADS * len(group.were_frozen), "calls that were about to begin when a member was frozen"
        assert len(service.calls) == 2 * records
        assert set(map(len, service.given.values())) == {1}, "a step has two answers"
        assert repeated <= THREADS * faults * MEMBERS, f"{repeated} calls are repeated after {faults} faults"
