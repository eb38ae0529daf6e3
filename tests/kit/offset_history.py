"""Seeded histories of commits from client processes, and the oracle that judges them.

A client process commits and reads one group's offsets through a broker that may be killed at any moment, and writes
what it sent, what it was told, and when it began and ended, one JSON object a line. `judge` finds in such histories:

- lost: an acknowledged commit that a later read, or the end, does not show;
- partial: a read that shows some partitions of a commit and not others;
- zero: a read without an offset, or with 0, after one was acknowledged;
- backwards: a read that shows less than an earlier one;
- passed over: a conditional commit that was made though its condition cannot have held, or refused though it held.

Commit number n of a group sets every one of its partitions to n, so each of these is a comparison of numbers. A
conditional one does if all of them are at the number before, or (so that some are refused) at an older one. A client
is `python -m kit.offset_history HOST:PORT,… GROUP TOPIC PARTITIONS SEED FIRST`, which asks the next of them when one is
gone; it goes on until its standard input ends.
"""

from __future__ import annotations

import importlib
import itertools
import json
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.wire.conditional_commit import (
    API_KEY,
    CONDITION_FAILED,
    OUTCOME_UNKNOWN,
    VERSION,
    Condition,
    Request,
    encode_request,
    read_response,
)
from kit.protocol import ProtocolClient, decode_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_IN_FLIGHT = 16
COMMIT_VERSION, FETCH_VERSION = 7, 5
_NOT_NOW = (14, 15, 16)
"""Loading, not available, not the coordinator: nothing was done, and nothing is said about offsets."""


class Event(NamedTuple):
    """One request of a client, as it saw it."""

    kind: str
    """`commit`, `commit_if`, `read`, or `refused`: a conditional commit that was told another offset."""
    began: float
    """When it was sent, and (`ended`) when it was answered: seconds of the machine's monotonic clock."""
    ended: float | None
    """None without an answer: whether it took effect is not known."""
    numbers: tuple[int, ...]
    """Of a commit its number; of a read one a partition, -1 for no offset. Of a conditional commit the expected one and
    its own; one that was refused has those that it was told, behind them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How often each of the five happened, in a history of so many acknowledged commits, some of them conditional,
    and reads."""

    commits: int
    conditional: int
    reads: int
    lost: int
    partial: int
    zero: int
    backwards: int
    passed_over: int

    @property
    def is_faultless(self) -> bool:
        return not (self.lost or self.partial or self.zero or self.backwards or self.passed_over)

    def __add__(self, other: Verdict) -> Verdict:
        names = self.__slots__
        return Verdict(**{name: getattr(self, name) + getattr(other, name) for name in names})


NOTHING = Verdict(0, 0, 0, 0, 0, 0, 0, 0)


def judge(events: Iterable[Event]) -> Verdict:
    """The verdict on one group's history, in the order in which its one client sent it.

    A read must show at least what was acknowledged, and what an earlier read had shown, before it was sent.
    """
    commits = conditional = reads = lost = partial = zero = backwards = passed_over = 0
    acknowledged, shown = _Known(), _Known()
    refused = set()
    for event in events:
        numbers: Sequence[int] = event.numbers
        if event.ended is None:
            continue
        if event.kind == "commit_if":
            expected, *numbers = event.numbers
            conditional += 1
            is_outdated = expected < max(acknowledged.before(event.began), shown.before(event.began))
            passed_over += is_outdated or expected in refused
        if event.kind in ("commit", "commit_if"):
            commits += 1
            acknowledged.add(event.ended, numbers[0])
            continue
        if event.kind == "refused":
            expected, number, *numbers = event.numbers
            passed_over += set(numbers) == {expected}
            refused.add(number)
        reads += 1
        before = acknowledged.before(event.began)
        lowest = min(numbers)
        partial += lowest != max(numbers)
        zero += lowest <= 0 < before
        lost += 0 < lowest < before
        backwards += lowest < shown.before(event.began)
        shown.add(event.ended, lowest)
    return Verdict(commits, conditional, reads, lost, partial, zero, backwards, passed_over)


class _Known:
    """The highest number that was known at a moment; moments are asked for, and numbers added, in the order of time."""

    def __init__(self) -> None:
        self._highest = -1
        self._later: deque[tuple[float, int]] = deque()

    def add(self, moment: float, number: int) -> None:
        self._later.append((moment, number))

    def before(self, moment: float) -> int:
        while self._later and self._later[0][0] < moment:
            self._highest = max(self._highest, self._later.popleft()[1])
        return self._highest


def read_events(text: str) -> list[Event]:
    """A client's lines; one that was cut off by its end is left out."""
    events = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            kind, began, ended, numbers = json.loads(line)
            events.append(Event(kind, began, ended, tuple(numbers)))
    return events


class Client:
    """Sends commits and reads, many at once, as its seed says; connects again whenever the broker is gone."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, seed: int, first: int) -> None:
        self._servers = itertools.cycle(bootstrap.split(","))
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._random = random.Random(seed)
        self._number = first

    def run(self) -> None:
        """Until standard input ends."""
        while not _is_over():
            try:
                with ProtocolClient(next(self._servers)) as connection:
                    self._talk(connection)
            except (OSError, EOFError):
                time.sleep(0.01)  # the broker is away

    def _talk(self, connection: ProtocolClient) -> None:
        waiting: list[tuple[str, float, list[int]]] = []
        try:
            while not _is_over():
                for _ in range(self._random.randint(1, MAX_IN_FLIGHT)):
                    kind = self._random.choice(("commit", "commit", "commit_if", "read"))
                    expected = self._number - self._random.choice((0, 0, 1))
                    self._number += kind != "read"
                    waiting.append((kind, time.monotonic(), [expected, self._number]))
                    if kind == "commit_if":
                        connection.send_bytes(self._conditional(expected))
                    else:
                        connection.send(*self._request(kind))
                while waiting:
                    kind, began, numbers = waiting[0]
                    answer = connection.receive()
                    self._tell(kind, began, numbers, answer)
                    waiting.pop(0)
        finally:
            for kind, began, numbers in waiting:
                _write(kind, began, None, numbers[1:])

    def _conditional(self, expected: int) -> bytes:
        rows = [Condition(index, expected, self._number, -1, str(self._number)) for index in range(self._partitions)]
        body = encode_request(Request(self._group, -1, "", None, [(self._topic, rows)]))
        frame = struct.pack(">hhih", API_KEY, VERSION, 0, -1) + body
        return struct.pack(">i", len(frame)) + frame

    def _request(self, kind: str) -> tuple[str, Any]:
        if kind == "read":
            schema: Any = importlib.import_module(f"kio.schema.offset_fetch.v{FETCH_VERSION}.request")
            topic = schema.OffsetFetchRequestTopic(name=self._topic, partition_indexes=tuple(range(self._partitions)))
            return "offset_fetch", schema.OffsetFetchRequest(group_id=self._group, topics=(topic,))
        schema = importlib.import_module(f"kio.schema.offset_commit.v{COMMIT_VERSION}.request")
        rows = tuple(
            schema.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=self._number, committed_metadata=str(self._number)
            )
            for index in range(self._partitions)
        )
        topic = schema.OffsetCommitRequestTopic(name=self._topic, partitions=rows)
        return "offset_commit", schema.OffsetCommitRequest(group_id=self._group, member_id="", topics=(topic,))

    def _tell(self, kind: str, began: float, numbers: list[int], frame: bytes) -> None:
        ended = time.monotonic()
        _, number = numbers
        if kind == "commit_if":
            found = read_response(frame, 4)
            if found.error == CONDITION_FAILED:
                told = [one.current for _, rows in found.topics for one in rows]
                _write("refused", began, ended, [*numbers, *told])
            elif found.error in (0, OUTCOME_UNKNOWN):
                _write(kind, began, None if found.error else ended, numbers)
            elif found.error not in _NOT_NOW:
                raise AssertionError(f"conditional commit {number} of group {self._group}: error {found.error}")
            return
        if kind == "commit":
            _, answer = decode_answer("offset_commit", COMMIT_VERSION, frame)
            codes = {int(row.error_code) for row in answer.topics[0].partitions}
            if codes == {0}:
                _write(kind, began, ended, [number])
            elif len(codes) != 1 or not codes <= set(_NOT_NOW):
                raise AssertionError(f"commit {number} of group {self._group}: errors {codes}")
            return
        _, answer = decode_answer("offset_fetch", FETCH_VERSION, frame)
        if answer.error_code == 0:
            _write(kind, began, ended, [row.committed_offset for row in answer.topics[0].partitions])
        elif int(answer.error_code) not in _NOT_NOW:
            raise AssertionError(f"a read of group {self._group}: error {answer.error_code}")


def _write(kind: str, began: float, ended: float | None, numbers: list[int]) -> None:
    sys.stdout.write(json.dumps([kind, began, ended, numbers]) + "\n")
    sys.stdout.flush()


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    servers, group, topic, *numbers = sys.argv[1:]
    Client(servers, group, topic, *map(int, numbers)).run()
