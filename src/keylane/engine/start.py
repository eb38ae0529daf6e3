"""Where a newly assigned partition starts: base resolution, as a pure decision.

The idea: the client never resets a position by itself (`auto.offset.reset=error`). What the group committed and what
the log holds go in, the start comes out; what cannot be decided safely is an error that names both figures.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.errors import MetadataError, PeerError
from keylane.offsets import OffsetMap, decode

if TYPE_CHECKING:
    from keylane.options import OffsetReset

logger = logging.getLogger("keylane.engine")


@dataclass(frozen=True, slots=True)
class Committed:
    """What the group has committed for a partition, and where its log starts and ends."""

    topic: str
    partition: int
    offset: int | None
    """None when the group has no commit."""
    metadata: str
    log_start: int
    log_end: int


def resolve(group: str, found: Committed, offset_reset: OffsetReset) -> tuple[OffsetMap, bool]:
    """The map to start from, and whether it has to be committed before the first dispatch (nothing was).

    A base below the log's start is returned as it is: the tracker drops what the log dropped, and counts it. Metadata
    that is no offset map is logged, and the start is its offset with nothing complete above it.
    Raises `PeerError` without a commit under `offset_reset="error"`, and for a commit beyond the log's end.
    """
    name = f"{found.topic}-{found.partition}"
    if found.offset is None:
        if offset_reset == "error":
            raise PeerError(
                f"group {group!r} has no committed offset for {name}, and offset_reset='error': "
                "commit one, or set offset_reset to 'earliest' or 'latest'"
            )
        return OffsetMap(found.log_start if offset_reset == "earliest" else found.log_end), True
    offsets = _decoded(group, name, found.offset, found.metadata)
    known = max(offsets.base, offsets.highest_completed + 1)
    if known > found.log_end:
        raise PeerError(
            f"group {group!r} has committed {known} for {name}, beyond the end of its log at {found.log_end} "
            "(was the topic made anew, or its log cut?): reset the group's offset, or use another group.id"
        )
    return offsets, False


def _decoded(group: str, name: str, base: int, metadata: str) -> OffsetMap:
    try:
        return decode(metadata, base)
    except MetadataError as error:
        logger.warning("group %r, %s: starting from offset %d without its map: %s", group, name, base, error)
        return OffsetMap(base)
