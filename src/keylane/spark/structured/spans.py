"""Spans: sets of offsets as ascending, disjoint (start, stop) pairs, and what planning does with them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.offsets import OffsetMap

Spans = tuple[tuple[int, int], ...]


def joined(parts: Iterable[tuple[int, int]]) -> Spans:
    """The union, whatever the parts' order."""
    union: list[tuple[int, int]] = []
    for start, stop in sorted(parts):
        if start >= stop:
            continue
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], stop))
        else:
            union.append((start, stop))
    return tuple(union)


def incomplete(start: int, stop: int, done: OffsetMap | None) -> Spans:
    """What of start … stop - 1 is not complete by the map."""
    if start >= stop:
        return ()
    if done is None:
        return ((start, stop),)
    top = done.highest_completed + 1
    return joined([*done.incomplete_within(start, min(stop, top)), (max(start, top), stop)])


def count(spans: Spans) -> int:
    return sum(stop - start for start, stop in spans)


def split(spans: Spans, parts: int) -> list[Spans]:
    """At most so many parts of nearly the same number of offsets, in order; none of them empty."""
    total = count(spans)
    parts = min(parts, total)
    if parts <= 1:
        return [spans] if total else []
    made: list[Spans] = []
    rest, given = list(spans), 0
    for number in range(1, parts + 1):
        room, part = total * number // parts - given, []
        given += room
        while room:
            start, stop = rest[0]
            cut = min(stop, start + room)
            part.append((start, cut))
            room -= cut - start
            if cut == stop:
                del rest[0]
            else:
                rest[0] = (cut, stop)
        made.append(tuple(part))
    return made


def tasks(
    spans: Mapping[tuple[str, int], Spans], least: int | None, most_records: int | None
) -> list[tuple[tuple[str, int], Spans]]:
    """A batch's partitions as tasks: each of at most `most_records` offsets, and at least `least` tasks in all.

    As Spark's own source: without either there is one task a partition, and large partitions are split further first.
    """
    counts = {name: count(some) for name, some in spans.items() if count(some)}
    parts = {name: 1 if most_records is None else -(-size // most_records) for name, size in counts.items()}
    while counts and sum(parts.values()) < (least or 0):
        name = max(counts, key=lambda one: (counts[one] / parts[one], one))
        if parts[name] >= counts[name]:
            break  # every task has one record
        parts[name] += 1
    return [(name, part) for name in sorted(counts) for part in split(spans[name], parts[name])]


def shares(available: Mapping[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
    """How many new records each partition gives to a batch of at most `limit`: in proportion to what it has.

    All together are exactly min(limit, what there is).
    """
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    given = {name: size * limit // total for name, size in available.items()}
    by_remainder: Sequence[tuple[str, int]] = sorted(
        available, key=lambda name: (-(available[name] * limit % total), name)
    )
    for name in by_remainder[: limit - sum(given.values())]:
        given[name] += 1
    return given
