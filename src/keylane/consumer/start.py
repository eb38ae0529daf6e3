"""Where a newly assigned partition starts: base resolution, as a pure decision.

The idea: the client never resets a position by itself (`auto.offset.reset=error`). What the group committed and what
the log holds go in, the start comes out; what cannot be decided safely is an error that names both figures. Metadata is
anybody's: whoever may commit to the group wrote it, so what it says is held against the log before it is believed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.errors import HandlerError, MetadataError, PeerError, UnknownMapError
from keylane.offsets import OffsetMap, decode, is_map
from keylane.pipeline import Commit
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.pipeline import OffsetReset, OnForeignMetadata, Pipeline

logger = logging.getLogger("keylane.consumer")

WAY_OUT = "(was the topic made anew, or its log cut?): reset the group's offset, or use another group.id"

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a newly assigned partition starts (`StartRule` decides it)."""

    topic: str
    partition: int
    epoch: int
    """Grows with every assignment that the consumer takes; polled batches carry it."""
    offsets: OffsetMap
    """What the group has committed, or the resolved start with nothing complete above it."""
    log_start: int
    log_end: int
    metadata: str = ""
    """What the user's own function left with the committed offset."""
    not_sought: str = ""
    """Of a seek: why it does not start where it was sought; empty where it does."""


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
    offsets: OffsetMap | None = None
    """The map, where it is known and not in metadata."""
    reset_to: int | None = None
    """Where `offset_reset="by_duration:…"` starts."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def at(self, where: str) -> OffsetMap:
        """A start at one of the log's ends."""
        return OffsetMap(self.log_start if where == "earliest" else self.log_end)


@dataclass(frozen=True, slots=True)
class StartRule:
    """The pipeline's options that decide where partitions start."""

    group: str
    offset_reset: str = "latest"
    beyond_log_end: OffsetReset = "error"
    on_foreign_metadata: OnForeignMetadata | Callable[..., Any] = "fail_on_unknown_map"
    has_own_metadata: bool = False
    """Whether metadata that is no map is the user's."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> StartRule:
        rule = pipeline.commit.on_foreign_metadata if isinstance(pipeline.commit, Commit) else "ignore"
        return cls(
            pipeline.group_id, pipeline.offset_reset, pipeline.beyond_log_end, rule, pipeline.metadata is not None
        )

    def resolve(self, found: Committed) -> tuple[OffsetMap, bool]:
        """The map to start from, and whether it has to be committed before the first dispatch (nothing was).

        A base below the log's start is returned as it is: the tracker drops what the log dropped, and counts it.
        Raises `PeerError` where an option says so, and `HandlerError` when the user's function fails.
        """
        if found.offset is None:
            if self.offset_reset == "error":
                raise PeerError(
                    f"group {self.group!r} has no committed offset for {found.name}, and offset_reset='error': "
                    "commit one, or set offset_reset to 'earliest' or 'latest'"
                )
            return found.at(self.offset_reset) if found.reset_to is None else OffsetMap(found.reset_to), True
        if found.offset > found.log_end:
            text = (
                f"group {self.group!r} has committed {found.offset} for {found.name}, beyond the end of its log at "
                f"{found.log_end}"
            )
            if self.beyond_log_end == "error":
                raise PeerError(f"{text} {WAY_OUT}, or set beyond_log_end to 'earliest' or 'latest'")
            logger.warning("%s: starting from the %s offset (beyond_log_end)", text, self.beyond_log_end)
            return found.at(self.beyond_log_end), True
        if found.offsets is not None and found.offsets.highest_completed < found.log_end:
            return found.offsets, False
        return self._decoded(found, found.offset), False

    def _decoded(self, found: Committed, base: int) -> OffsetMap:
        try:
            offsets = decode(found.metadata, base)
            if offsets.highest_completed >= found.log_end:
                raise MetadataError(
                    f"the map has {offsets.highest_completed} complete, beyond the end of the log at {found.log_end} "
                    f"{WAY_OUT}"
                )
        except MetadataError as error:
            return OffsetMap(base) if self.own_metadata(found) else self._foreign(found, base, error)
        return offsets

    def own_metadata(self, found: Committed) -> str:
        """What the user's own function left with the committed offset; empty where it is a map."""
        return found.metadata if self.has_own_metadata and not is_map(found.metadata) else ""

    def _foreign(self, found: Committed, base: int, error: MetadataError) -> OffsetMap:
        rule = self.on_foreign_metadata
        where = f"group {self.group!r}, {found.name}"
        if rule == "fail" or (rule == "fail_on_unknown_map" and isinstance(error, UnknownMapError)):
            raise PeerError(
                f"{where}: the metadata of the committed offset {base} is not for keylane: {error}; "
                "use another group.id, or give Commit(on_foreign_metadata='ignore') to start there without a map"
            ) from error
        if callable(rule) and (made := self._asked(rule, found, base, where)) is not None:
            return made
        logger.warning("%s: starting from offset %d without its map: %s", where, base, error)
        return OffsetMap(base)

    def _asked(self, rule: Callable[..., Any], found: Committed, base: int, where: str) -> OffsetMap | None:
        try:
            made = rule(found.topic, found.partition, base, found.metadata)
        except Exception as error:
            raise HandlerError(f"{where}: on_foreign_metadata raised {type(error).__name__}: {error}") from error
        if made is None:
            return None
        if not isinstance(made, OffsetMap) or made.base != base or made.highest_completed >= found.log_end:
            raise HandlerError(
                f"{where}: on_foreign_metadata returned {_shown(made)}; return None, or an OffsetMap with base {base} "
                f"that ends below the log's end at {found.log_end}"
            )
        return made


def _shown(made: object) -> str:
    return repr(made) if isinstance(made, OffsetMap) else kind_of(made)
