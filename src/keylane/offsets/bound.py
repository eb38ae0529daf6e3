"""The dispatch bound: which records may start, so that every later offset map fits the metadata cap.

The idea: a map is as hard to write as its span (a bit an offset) or as its incompletes (two run lengths each),
whichever is less. Completing a record and advancing the base lower both and never raise them, so a limit on *dispatch*
is an invariant of all later maps (docs/adr/0002). One stuck record keeps the incompletes at 1 and never stops its
partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from keylane.offsets.codec import MAX_SPAN

_BITSET_OVERHEAD_BYTES = 1 + 4 + 1
"""BitSet v2: magic byte, int32 length, pad byte."""
_RUN_LENGTH_OVERHEAD_BYTES = 1
"""RunLength v2: magic byte."""
_RUN_LENGTH_BYTES_AN_INCOMPLETE = 2 * 4
"""RunLength v2: the incomplete run and the complete run after it, int32 each; adjacent incompletes share them."""


@dataclass(frozen=True, slots=True)
class DispatchBound:
    """Two limits, of which one must hold for a record to be dispatched.

    With 4,096 characters: a span of 24,528 offsets (BitSet v2) or 383 incompletes (RunLength v2), without counting on
    compression. However small the cap, the base's own record may run: alone it needs no map.
    """

    max_span: int
    """Offsets from the base to the highest dispatched one."""
    max_incomplete: int
    """Incomplete offsets up to the highest dispatched one."""

    @classmethod
    def for_cap(cls, metadata_cap: int) -> DispatchBound:
        """The bound for metadata of at most `metadata_cap` characters (Base64: 3 bytes in 4 characters)."""
        size = max(0, metadata_cap) // 4 * 3
        return cls(
            max_span=min(max(1, 8 * (size - _BITSET_OVERHEAD_BYTES)), MAX_SPAN),
            max_incomplete=max(0, (size - _RUN_LENGTH_OVERHEAD_BYTES) // _RUN_LENGTH_BYTES_AN_INCOMPLETE),
        )

    def allows(self, span: int, incomplete: int) -> bool:
        """Whether a state with this span and this many incompletes (with the record to dispatch) may come about."""
        return span <= self.max_span or (incomplete <= self.max_incomplete and span <= MAX_SPAN)
