"""Members that are killed, frozen, started and stopped at random, and a broker that restarts meanwhile.

Each member is a process; what handlers ran is in a ledger outside all of them. Nothing may be lost, no two records of a
key may overlap or change places, and what an acknowledged commit had complete may not begin again. A handler that was
running when its member was frozen may end beside its successor's, and one that was about to run may begin: these are
counted apart (docs/adr/0009).
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from typing import TYPE_CHECKING

import pytest

from keylane.broker.process import BrokerProcess
from kit.ledger import Ledger
from kit.stage import Member, Stage, until

if TYPE_CHECKING:
    from pathlib import Path

    from kit.ledger import Look

PARTITIONS = 8
KEYS = 64
SESSION_MS = 1_500
WORK_S = 0.01
FILL = 1_000


class Storm:
    """Members of one group, and what was acknowledged at which place in the ledger."""

    def __init__(self, broker: BrokerProcess, folder: Path, seed: int, most: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.stage = Stage(broker.bootstrap, f"storm-{seed}")
        self.stage.create(PARTITIONS)
        self.ledger = Ledger(folder / "ledger")
        self._most = most
        self._members: list[Member] = []
        self._frozen: list[Member] = []
        self._looks: list[Look] = []
        self._filled = 0
        self.kills = self.freezes = self.restarts = 0

    def step(self) -> None:
        """Something happens, and some work is done after it."""
        if self._lag() < FILL:
            self._fill()
        actions = [self._start, self._kill, self._kill, self._kill, self._freeze, self._wake, self._stop]
        self.random.choice(actions)()
        if self.random.random() < 0.05:
            self.broker.restart()
            self.restarts += 1
        done = len(self.ledger.done_times())
        if self._members:
            with contextlib.suppress(AssertionError):  # all partitions may be a frozen or killed member's for a while
                until(lambda: len(self.ledger.done_times()) > done + 20, "work is done", SESSION_MS / 1000 * 2)

    def finish(self) -> None:
        """Let everything that is left run, and check."""
        while self._frozen:
            self._wake()
        while len(self._members) < 2:
            self._start()
        until(self.stage.all_is_committed, "all is committed", 120)
        for member in self._members:
            member.kill()
        self.check()

    def check(self) -> None:
        sources = self.stage.sources()
        lost = {source for source, _ in sources} - self.ledger.done_times().keys()
        again = self.ledger.run_again(self._looks, "key")
        assert lost == set(), f"lost: {sorted(lost)[:10]}"
        assert again == [], f"acknowledged, and run again: {again[:10]}"
        disorders = self.ledger.disorders("key", sources)
        assert disorders == [], f"{len(disorders)} disorders: {disorders[:10]}"
        runs, fenced = sum(self.ledger.done_times().values()), self.ledger.overlaps_of_fenced("key")
        sys.stdout.write(
            f"{self.kills} kills, {self.freezes} freezes, {self.restarts} broker restarts: {len(sources):,} records, "
            f"{runs:,} runs; lost 0, disorders 0, acknowledged and run again 0 ({len(self._looks)} looks); "
            f"{fenced} handlers of fenced members ended beside their successor's, "
            f"{len(self.ledger.late('key'))} that had been about to begin ran again\n"
        )

    def close(self) -> None:
        for member in [*self._members, *self._frozen]:
            if member.process.poll() is None:
                member.kill()
            assert member.process.stdout is not None
            member.process.stdout.close()
        self.ledger.close()

    # --- what happens ---

    def _start(self) -> None:
        if len(self._members) + len(self._frozen) < self._most:
            kafka = self.stage.kafka | {
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": "cooperative-sticky",
            }
            options = {"topic": self.stage.topic, "ledger": str(self.ledger.path), "work_s": WORK_S, "ends": False}
            self._members.append(Member(kafka=kafka, **options))

    def _kill(self) -> None:
        if not self._members:
            self._start()
            return
        member = self._members.pop(self.random.randrange(len(self._members)))
        member.kill()
        assert member.process.stdout is not None
        member.process.stdout.close()
        self.ledger.died(member.name)
        self.kills += 1
        self._note_acknowledged()

    def _freeze(self) -> None:
        if len(self._members) > 1:
            member = self._members.pop(self.random.randrange(len(self._members)))
            member.freeze()
            self.freezes += 1
            self.ledger.died(member.name)
            self._frozen.append(member)

    def _wake(self) -> None:
        if self._frozen:
            member = self._frozen.pop(0)
            self.ledger.woke(member.name)
            member.wake()
            self._members.append(member)

    def _stop(self) -> None:
        if len(self._members) > 1:
            member = self._members.pop(0)
            member.process.terminate()
            member.process.wait(60)
            assert member.process.stdout is not None
            member.process.stdout.close()
            self.ledger.died(member.name)

    def _note_acknowledged(self) -> None:
        """What another client reads of the group's commits, right after a kill."""
        with contextlib.suppress(Exception):  # the broker may be restarting
            maps = self.stage.committed()
            self._looks.append((self.ledger.length(), maps))

    def _fill(self) -> None:
        numbers = range(self._filled, self._filled + FILL)
        self.stage.fill((b"%d" % (number % KEYS), number % KEYS % PARTITIONS) for number in numbers)
        self._filled += FILL

    def _lag(self) -> int:
        return self._filled - len(self.ledger.done_times())


def storm(tmp_path: Path, seed: int, kills: int, most: int, within_s: float) -> Storm:
    with BrokerProcess(tmp_path / "data", settings={"group.min.session.timeout.ms": "1000"}) as broker:
        running = Storm(broker, tmp_path, seed, most)
        give_up_at = time.monotonic() + within_s
        try:
            while running.kills < kills and time.monotonic() < give_up_at:
                running.step()
            running.finish()
        finally:
            running.close()
    return running


@pytest.mark.full
def test_a_short_storm_loses_nothing_and_repeats_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert storm(tmp_path, 1, kills=4, most=3, within_s=40).kills >= 1


@pytest.mark.soak
def test_a_long_storm_of_up_to_eight_members(tmp_path: Path) -> None:
    assert storm(tmp_path, 2, kills=200, most=8, within_s=3_000).kills >= 200
