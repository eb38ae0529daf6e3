"""`Ledger`: what handlers ran, kept outside the engine and outside the process, so that it survives a SIGKILL.

The idea: a handler writes a line when it begins and one when it has succeeded, each with one `write` to a file opened
for appending, so the lines of many threads and processes stand in one true order. The checks read nothing else.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from keylane.offsets import OffsetMap
    from keylane.options import Ordering
    from keylane.records import Record

Source = tuple[str, int, int]
"""Topic, partition and offset of a record."""

Look: TypeAlias = "tuple[int, Mapping[tuple[str, int], OffsetMap]]"
"""How many lines the ledger had, and what the group had committed shortly before that."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: who began with, or succeeded with, which record. A death ends all that its member had begun; one that
    was only frozen wakes."""

    what: Literal["began", "done", "died", "woke"]
    member: str
    thread: int
    source: Source
    key: bytes | None


class Ledger:
    """Appends to, and reads, one file. Thread safety: any thread, any process; `done_times` one thread at a time."""

    def __init__(self, path: str | Path, member: str = "") -> None:
        self.path = Path(path)
        self._member = member or str(os.getpid())
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._done: Counter[Source] = Counter()
        """Of the file's first `_counted` bytes."""
        self._counted = 0

    def began(self, record: Record) -> None:
        self._write("began", record)

    def done(self, record: Record) -> None:
        """The handler is about to return. Its record may still run again: nothing is committed yet."""
        self._write("done", record)

    def died(self, member: str) -> None:
        """`member` was killed, or is frozen: what it had begun and not done is given up."""
        os.write(self._file, f"died {member} 0 - -1 -1 -\n".encode())

    def woke(self, member: str) -> None:
        """`member`, which was frozen, is about to go on."""
        os.write(self._file, f"woke {member} 0 - -1 -1 -\n".encode())

    def close(self) -> None:
        os.close(self._file)

    def _write(self, what: str, record: Record) -> None:
        key = "-" if record.key is None else "k" + record.key.hex()
        source = f"{record.topic} {record.partition} {record.offset}"
        os.write(self._file, f"{what} {self._member} {threading.get_ident()} {source} {key}\n".encode())

    # --- reading ---

    def entries(self) -> Iterator[Entry]:
        return map(_entry, self.path.read_text().splitlines())

    def done_times(self) -> Counter[Source]:
        """How often each record's handler succeeded. Reads only what was appended since the last call: whoever waits
        for work to be done asks often."""
        with self.path.open("rb") as file:
            file.seek(self._counted)
            whole, newline, _ = file.read().rpartition(b"\n")
        entries = map(_entry, whole.decode().splitlines())
        self._done.update(entry.source for entry in entries if entry.what == "done")
        self._counted += len(whole) + len(newline)
        return self._done.copy()

    def running(self) -> int:
        """Handlers that have begun and have not succeeded, when none has failed and no member has died."""
        counts = Counter(entry.what for entry in self.entries())
        return counts["began"] - counts["done"]

    def after_deaths(self) -> list[Entry]:
        """What is noted after the last death, in order."""
        entries: list[Entry] = []
        for entry in self.entries():
            if entry.what == "died":
                entries = []
            else:
                entries.append(entry)
        return entries

    def begun_after_deaths(self) -> list[Source]:
        """What began after the last death, in order."""
        return [entry.source for entry in self.after_deaths() if entry.what == "began"]

    def disorders(self, ordering: Ordering, records: Iterable[tuple[Source, bytes | None]]) -> list[str]:
        """Where two records of a shard overlapped, or one began before an earlier one of its shard was done.

        `records` are all records of the topics, with their keys. What began `late` is left out.
        """
        if ordering == "unordered":
            return []
        todo = _todo(ordering, records)
        late = self.late(ordering)
        found: list[str] = []
        running: dict[Hashable, tuple[Source, str]] = {}
        for place, entry in enumerate(self.entries()):
            if entry.what == "died":
                running = {shard: one for shard, one in running.items() if one[1] != entry.member}
                continue
            shard = _shard(entry.source, entry.key, ordering)
            if shard is None or entry.what == "woke" or place in late:
                continue
            if entry.what == "began":
                if shard in running:
                    found.append(f"{entry.source} began while {running[shard][0]} of its shard ran")
                if todo[shard] and entry.source[2] > todo[shard][-1]:
                    found.append(f"{entry.source} began before {todo[shard][-1]} of its shard was done")
                running[shard] = (entry.source, entry.member)
            else:
                if running.get(shard) == (entry.source, entry.member):  # else its member was given up meanwhile
                    del running[shard]
                if todo[shard] and entry.source[2] == todo[shard][-1]:
                    todo[shard].pop()
        return found

    def overlaps_of_fenced(self, ordering: Ordering) -> int:
        """How many handlers of a member that was given up for dead (frozen) ended after all, when another member had
        begun with their shard. `disorders` leaves them out: such a member can still run its handlers to their end, and
        can commit nothing (docs/adr/0009)."""
        running: dict[Hashable, tuple[Source, str]] = {}
        fenced: defaultdict[Hashable, set[tuple[Source, str]]] = defaultdict(set)  # by shard
        overlapped: set[tuple[Source, str]] = set()
        count = 0
        for entry in self.entries():
            one, shard = (entry.source, entry.member), _shard(entry.source, entry.key, ordering)
            if entry.what == "died":
                for where, held in running.items():
                    if held[1] == entry.member:
                        fenced[where].add(held)
                running = {where: held for where, held in running.items() if held[1] != entry.member}
            elif entry.what == "began" and shard is not None:
                overlapped.update(held for held in fenced[shard] if held[1] != entry.member)
                running[shard] = one
            elif entry.what == "done":
                fenced[shard].discard(one)
                count += one in overlapped
                overlapped.discard(one)
        return count

    def run_again(self, looks: Iterable[Look], ordering: Ordering) -> list[Entry]:
        """What began although a commit that covers it was acknowledged before. What began `late` is left out."""
        late = self.late(ordering)
        left = sorted(looks, key=lambda look: look[0])
        seen: defaultdict[tuple[str, int], list[OffsetMap]] = defaultdict(list)
        found: list[Entry] = []
        for place, entry in enumerate(self.entries()):
            while left and left[0][0] <= place:
                for name, offsets in left.pop(0)[1].items():
                    seen[name].append(offsets)
            if entry.what == "began" and place not in late:
                topic, partition, offset = entry.source
                found += [entry] * any(offsets.is_complete(offset) for offsets in seen[topic, partition])
        return found

    def length(self) -> int:
        """How many lines it has."""
        return self.path.read_bytes().count(b"\n")

    def late(self, ordering: Ordering) -> set[int]:
        """Places of what a member began right after it woke, when another one had begun with the record since it was
        frozen, or was at another one of the shard.

        A thread that has looked at the clock and is frozen before the handler's first line begins when it wakes
        (docs/adr/0009). So at most the first line of a thread after the freeze is one: a thread that was in a handler
        looks at the clock anew, and once any has begun after doing so, all have.
        """
        places: set[int] = set()
        given_up: dict[str, int] = {}
        """By member, where."""
        heard: dict[str, set[int]] = {}
        """By member that woke, its threads that were heard of since."""
        begun: dict[Source, tuple[int, str]] = {}
        """By record, where and by whom last."""
        running: dict[Hashable, str] = {}
        for place, entry in enumerate(self.entries()):
            member, shard = entry.member, _shard(entry.source, entry.key, ordering)
            if entry.what == "died":
                given_up[member] = place
                heard.pop(member, None)
                running = {one: other for one, other in running.items() if other != member}
            elif entry.what == "woke":
                heard[member] = set()
            elif entry.what == "done":
                if running.get(shard) == member:
                    del running[shard]
            elif (
                member in heard
                and entry.thread not in heard[member]
                and (
                    _is_anothers(begun.get(entry.source), member, given_up[member])
                    or running.get(shard, member) != member
                )
            ):
                places.add(place)
            else:
                if entry.thread in heard.get(member, ()):
                    del heard[member]
                begun[entry.source] = (place, member)
                if shard is not None:
                    running[shard] = member
            if member in heard:
                heard[member].add(entry.thread)
        return places


def _is_anothers(begun: tuple[int, str] | None, member: str, since: int) -> bool:
    return begun is not None and begun[1] != member and begun[0] > since


def _entry(line: str) -> Entry:
    what, member, thread, topic, partition, offset, key = line.split(" ")
    assert what in ("began", "done", "died", "woke"), line
    source = (topic, int(partition), int(offset))
    return Entry(what, member, int(thread), source, None if key == "-" else bytes.fromhex(key[1:]))  # type: ignore[arg-type]


def _shard(source: Source, key: bytes | None, ordering: Ordering) -> Hashable:
    topic, partition, _ = source
    if ordering == "partition":
        return (topic, partition)
    return None if key is None else (topic, partition, key)


def _todo(ordering: Ordering, records: Iterable[tuple[Source, bytes | None]]) -> dict[Hashable, list[int]]:
    """The offsets of each shard; the first to run is the last."""
    todo: dict[Hashable, list[int]] = defaultdict(list)
    for source, key in sorted(records):
        if (shard := _shard(source, key, ordering)) is not None:
            todo[shard].append(source[2])
    for offsets in todo.values():
        offsets.reverse()
    return todo
