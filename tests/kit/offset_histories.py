"""Histories of offsets, each of one group's client, which may live many times."""

from __future__ import annotations

import subprocess
import sys
import time
from array import array
from bisect import bisect_left
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from keylane.kafka.admin import Admin
from kit.offset_history import NOTHING, Event, Verdict, judge, read_events

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMMITS_BEFORE_A_KILL = 60
DEADLINE_S = 60.0
"""How long a phase may take on a busy machine."""


class History:
    """One group's client, over all its lives."""

    def __init__(self, folder: Path, group: str, topic: str, partitions: int) -> None:
        self.group = group
        self.path = folder / f"{group}.jsonl"
        self.path.touch()
        self._topic = topic
        self._partitions = partitions
        self._process: subprocess.Popen[bytes] | None = None
        self._read_to = 0
        """Bytes of its file."""
        self._acknowledged_at = array("d")
        """When each commit was, on the machine's monotonic clock."""

    def start(self, bootstrap: str, seed: int) -> None:
        # A conditional commit's own number is the last one of it, or the second where it was refused.
        first = max((max(event.numbers) for event in self.events()), default=0)
        arguments = [bootstrap, self.group, self._topic, str(self._partitions), str(seed), str(first)]
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
        """Commits so far. May be asked often: it reads what is new."""
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        commits = (event.ended for event in read_events(whole.decode()) if event.kind in ("commit", "commit_if"))
        self._acknowledged_at.extend(ended for ended in commits if ended is not None)
        return len(self._acknowledged_at)

    def longest_silence_s(self, since: float) -> float:
        """Between that moment and the first commit behind it, or two commits, of those that `acknowledged` has read."""
        later = self._acknowledged_at[bisect_left(self._acknowledged_at, since) :]
        return max((after - before for before, after in pairwise([since, *later])), default=0.0)

    def last_read(self, bootstrap: str) -> Event:
        """What is said in the end, to everybody."""
        found = Admin({"bootstrap.servers": bootstrap}).committed_offsets(self.group)
        offsets = tuple(found[self._topic, one].offset for one in range(self._partitions))
        return Event("read", time.monotonic(), time.monotonic(), offsets)


def wait_for_commits(histories: Sequence[History]) -> None:
    """Until every client has had so many more commits acknowledged."""
    goals = {history.group: history.acknowledged() + COMMITS_BEFORE_A_KILL for history in histories}
    deadline = time.monotonic() + DEADLINE_S
    while any(history.acknowledged() < goals[history.group] for history in histories):
        assert time.monotonic() < deadline, "the clients do not come forward"
        time.sleep(0.02)


@contextmanager
def running(histories: Sequence[History], bootstrap: str, chance: random.Random) -> Iterator[None]:
    """The clients, at this address, inside the block. After it each has told of no error that it must not see."""
    for history in histories:
        history.start(bootstrap, chance.randrange(10**6))
    try:
        yield
    finally:
        for history in histories:
            history.stop()


def verdict(histories: Sequence[History], bootstrap: str) -> Verdict:
    """On all of them, each with what is said in the end."""
    total = NOTHING
    for history in histories:
        total += judge([*history.events(), history.last_read(bootstrap)])
    return total
