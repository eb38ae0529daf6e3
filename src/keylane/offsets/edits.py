"""An operator's edits of what a group has committed: records that run again, records that are passed over. Map in, map
out.

The idea: a map says of every offset whether it is complete, so an edit changes that of the offsets that it names and of
no other one. The base follows: it is the lowest incomplete offset, before and after.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal

from keylane.errors import UsageError
from keylane.offsets.codec import BITSET_ZSTD_MAX_SPAN, Encoding, encode, encoding_of
from keylane.offsets.tracker import DispatchBound, OffsetMap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

Standing = Literal["below", "complete", "incomplete", "beyond"]
"""Of an offset in a commit: below the committed offset; complete above it; incomplete, with complete ones above it; or
beyond all that the map has complete, and therefore not complete either."""


def standing(committed: OffsetMap, offset: int) -> Standing:
    """Where an offset stands."""
    if offset < committed.base:
        return "below"
    if committed.is_complete(offset):
        return "complete"
    return "incomplete" if offset < committed.trimmed().highest_completed else "beyond"


def replayed(committed: OffsetMap, offsets: Collection[int]) -> OffsetMap:
    """The map in which these offsets are incomplete, and all others are what they were."""
    base = min((committed.base, *offsets))
    return _advanced(OffsetMap(base, [*committed.runs, *offsets], committed.highest_completed))


def skipped(committed: OffsetMap, offsets: Collection[int]) -> OffsetMap:
    """The map in which these offsets are complete, and all others are what they were."""
    highest = max((committed.highest_completed, *offsets))
    incomplete = (*committed.runs, range(committed.highest_completed + 1, highest + 1))
    return _advanced(OffsetMap(committed.base, _without(incomplete, sorted(offsets)), highest))


def _advanced(edited: OffsetMap) -> OffsetMap:
    """The same state with the lowest incomplete offset as its base, and a complete one at its top."""
    edited = edited.trimmed()
    base = edited.first_incomplete(edited.base)
    return OffsetMap(base, edited.runs, edited.highest_completed)


def _without(runs: Iterable[range], offsets: list[int]) -> Iterator[range]:
    """The runs, cut at these offsets (ascending)."""
    for run in runs:
        start = run.start
        for offset in offsets[bisect_left(offsets, run.start) : bisect_left(offsets, run.stop)]:
            yield range(start, offset)
            start = offset + 1
        yield range(start, run.stop)


def rewritten(edited: OffsetMap, committed: OffsetMap, metadata: str, cap: int, *, is_marked: bool = False) -> str:
    """Metadata of at most `cap` characters for an edit of the map in `metadata`, which is `committed`.

    It has the same encoding where that carries the edited map within the cap, else the smallest one; empty where
    nothing above the base is complete. `is_marked`: it is committed beside a leader epoch. Raises `UsageError` for a
    map that does not fit, also later, when a consumer completes what is incomplete in it, and for one in an encoding
    that is read and never written (ByteArray).
    """
    encoding = next((one for one in Encoding if one.label == encoding_of(metadata)), None)
    if encoding is not None and not encoding.is_written:
        raise UsageError(
            f"its offset map is in the encoding {encoding.label}, which is read and not written: let a consumer of the "
            "group commit in another one first"
        )
    if not edited.span:
        return ""
    is_harder = edited.span > committed.span or edited.incomplete_count > committed.incomplete_count
    made = _kept(edited, encoding, is_marked=is_marked)
    if made is None or len(made) > cap:
        made = encode(edited, is_marked=is_marked)
    if len(made) > cap or (is_harder and not _stays_within(edited, DispatchBound.for_cap(cap))):
        raise UsageError(
            f"its offset map would have {edited.incomplete_count} incomplete of {edited.span} offsets, more than "
            f"{cap} characters of metadata can always say: name fewer records, or wait until the group is further"
        )
    return made


def _stays_within(edited: OffsetMap, bound: DispatchBound) -> bool:
    return edited.span <= bound.max_span or edited.incomplete_count <= bound.max_incomplete


def _kept(edited: OffsetMap, encoding: Encoding | None, *, is_marked: bool) -> str | None:
    """Metadata in this encoding; None where it cannot carry the map, or only at the cost of a bit for each of millions
    of offsets."""
    if encoding is None or (encoding.is_bitset and edited.span > BITSET_ZSTD_MAX_SPAN):
        return None
    try:
        return encode(edited, encoding, is_marked=is_marked)
    except UsageError:
        return None
