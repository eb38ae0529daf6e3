"""Checksums of records, and a log held against those that a store has kept: which of its records the store has not.

The idea: a log only grows at its end. Where it is another one than it was (cut, restored, copied), it is the same up to
some offset, and another one behind it. So one record that is what it was proves all before it, and of purged places a
sample here and there does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from keylane.delivery.positions import before_all, map_of, unseen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.delivery.stores import Position
    from keylane.offsets import OffsetMap


ABSENT = -1
"""No checksum: checksums are not negative."""


def checksum(key: bytes | None, value: bytes | None, timestamp_ms: int) -> int:
    """A CRC of key and value, and the timestamp's low bits: 63 bits."""
    seed = -1 if key is None else len(key)
    crc = crc32(value or b"", crc32(key or b"", (2 * seed + (value is None)) & 0xFFFF_FFFF))
    return (timestamp_ms & 0x7FFF_FFFF) << 32 | crc


@dataclass(slots=True)
class Kept:
    """What a store has of one partition, and what the group has committed of it."""

    places: Mapping[int, int | None]
    below: int
    """Everything below it was processed, and is purged but for samples."""
    position: Position | None
    committed: OffsetMap | None
    leader_epoch: int = -1
    """As it was committed."""
    same_below: int = 0
    """The log is the one that it was below this, by where its leader epochs end, or by who has set the group back."""
    is_cut: bool = False
    """Whether it is another one from there on: a later leader epoch begins there."""


@dataclass(slots=True)
class Comparison:
    """A log beside what a store has kept of it."""

    same_below: int | None = None
    """The log is another one from here on; None where it is the one that it was."""
    missing: list[int] = field(default_factory=list)
    """Offsets whose records the store has not, though the group, or the store, has them for done."""
    gone: int = 0
    """How many offsets more the group has for done, and neither the store nor the log has: below the log's start."""
    unsure: int = 0
    """How many of these may have been processed: they lie between the last record that is known to be the same and the
    first that is not."""
    stale: list[int] = field(default_factory=list)
    """Places that the store has of records that are not in this log."""


def compare(log: Iterable[tuple[int, int]], log_start: int, log_end: int, kept: Kept) -> Comparison:
    """`log`: offsets and checksums of all records from `log_start` to `log_end`."""
    same_below = log_start
    behind: list[int] = []
    """Offsets that the store has not as they are, since the last one that is the same."""
    others: list[int] = []
    for offset, given in log:
        had = kept.places.get(offset, ABSENT)
        if had == given:
            if not others:
                same_below, behind = offset + 1, []
        elif had is not None:  # else it is of before there were checksums, and nothing can be said
            behind.append(offset)
            if had != ABSENT:
                others.append(offset)
    cut = sorted(offset for offset in kept.places if offset >= log_end)
    done = _unseen_of(kept, log_start)
    lost = [offset for run in done for offset in _within(run, log_start, log_end) if offset not in kept.places]
    below = [_within(run, 0, log_start) for run in done]
    gone = sum(map(len, below)) - sum(offset in run for run in below for offset in kept.places)
    is_cut = kept.is_cut and same_below <= kept.same_below < kept.below
    if not (others or cut or is_cut or kept.below > log_end):
        return Comparison(missing=lost, gone=gone)
    first_other = min([log_end, *others[:1], *([kept.same_below] if is_cut else [])])
    if same_below < kept.same_below <= first_other:  # else the epochs are wrong about this log
        same_below = kept.same_below
        behind = [offset for offset in behind if offset >= min(same_below, kept.below)]  # the others are purged
    unsure = sum(offset < min(first_other, kept.below) for offset in behind)
    missing = [offset for offset in lost if offset < same_below] + behind
    return Comparison(same_below, missing, gone, unsure, [*others, *cut])


def _within(run: range, begin: int, end: int) -> range:
    return range(max(run.start, begin), min(run.stop, end))


def _unseen_of(kept: Kept, log_start: int) -> Sequence[range]:
    """What the group has for done, and the store has not seen."""
    if kept.committed is None:
        return ()
    if kept.position is not None:
        seen = map_of(kept.position)
    elif kept.below or None in kept.places.values():  # of before positions were noted
        seen = kept.committed
    else:
        seen = before_all(log_start, kept.committed, kept.leader_epoch)
    return unseen(kept.committed, seen)
