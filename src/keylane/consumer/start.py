"""Where a newly assigned partition starts: base resolution, as a pure decision.

The idea: the client never resets a position by itself (`auto.offset.reset=error`). What the group committed and what
the log holds go in, the start comes out; what cannot be decided safely is an error that names both figures. Metadata is
anybody's: whoever may commit to the group wrote it, so what it says is held against the log before it is believed.

A map holds for the log that it was made of. Two things tell another log: a map that keylane marked beside no leader
epoch was copied by somebody who does not know what it says (a mirror of the cluster), and a leader epoch that ended
below what was committed with it is that of a log that was cut (KIP-320).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from keylane.errors import HandlerError, MetadataError, PeerError, UnknownMapError
from keylane.foreign_errors import line_of
from keylane.offsets import OffsetMap, decode, is_map
from keylane.offsets.codec import MapOrigin, map_origin
from keylane.pipeline import Commit
from keylane.telling import kind_of, logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.pipeline import OffsetReset, OnCopiedMap, OnForeignMetadata, Pipeline

logger = logger_of("keylane.consumer")

WAY_OUT = "(was the topic made anew, or its log cut?): reset the group's offset, or use another group.id"
MIRRORS = "docs/mirrors.md"

TopicPartition = tuple[str, int]

Origin = Literal["none", "plain", MapOrigin]
"""Of a commit: there is none; it has no map; or who committed its map."""


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
    leader_epoch: int = -1
    """Committed beside the offset: no record that the map has complete is of a later one. -1: not known."""
    is_unchecked: bool = False
    """Whether nobody could say where that epoch ended: the map is held against the records as they are read."""
    origin: Origin = "plain"
    is_new: bool = False
    """Whether the group's offset is set to it: by a seek, or where the group had none."""
    is_sought: bool = False
    """Whether by a seek."""
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
    leader_epoch: int = -1
    """Committed beside the offset; -1: none."""
    is_checked: bool = False
    """Whether the log's leader has said where that epoch ended."""
    changed_from: int | None = None
    """From this offset on the log has other records than when that was committed; None: not known."""
    reset_to: int | None = None
    """Where `offset_reset="by_duration:…"` starts."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def origin(self) -> Origin:
        if self.offset is None:
            return "none"
        return map_origin(self.metadata, self.leader_epoch) or "plain"

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
    on_copied_map: OnCopiedMap = "run_again"

    @classmethod
    def of(cls, pipeline: Pipeline) -> StartRule:
        commit = pipeline.commit if isinstance(pipeline.commit, Commit) else Commit(on_foreign_metadata="ignore")
        by_default: OnCopiedMap = "run_again" if pipeline.guarantee == "at_least_once" else "fail"
        return cls(
            pipeline.group_id,
            pipeline.offset_reset,
            pipeline.beyond_log_end,
            commit.on_foreign_metadata,
            pipeline.metadata is not None,
            commit.on_copied_map or by_default,
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
        if found.changed_from is not None and found.offset > found.changed_from:
            return self._behind_cut(found, found.offset, found.changed_from), True
        if found.offset > found.log_end:
            text = (
                f"group {self.group!r} has committed {found.offset} for {found.name}, beyond the end of its log at "
                f"{found.log_end}"
            )
            if self.beyond_log_end == "error":
                raise PeerError(
                    f"{text} (was the topic made anew, or its log cut?): {self._reset(found, found.log_start)} reads "
                    "all of it, another --to-offset what you know to be new; beyond_log_end='earliest' or 'latest' "
                    "decides it for all partitions"
                )
            logger.warning("%s: starting from the %s offset (beyond_log_end)", text, self.beyond_log_end)
            return found.at(self.beyond_log_end), True
        if found.offsets is not None and found.offsets.highest_completed < found.log_end:
            return found.offsets, False
        return self._decoded(found, found.offset), False

    def _behind_cut(self, found: Committed, committed: int, cut: int) -> OffsetMap:
        """Records from the cut on were never read by this group, though it has committed more."""
        text = (
            f"group {self.group!r} has committed {committed} for {found.name}, and its log was cut at {cut} since "
            f"then, as by an unclean leader election: from {cut} on there are other records, or none"
        )
        if self.beyond_log_end == "error":
            raise PeerError(
                f"{text}: {self._reset(found, cut)} has them run, as beyond_log_end='earliest' does; 'latest' passes "
                "over them"
            )
        start = found.log_end if self.beyond_log_end == "latest" else max(cut, found.log_start)
        logger.warning("%s: starting at %d (beyond_log_end=%r)", text, start, self.beyond_log_end)
        return OffsetMap(start)

    def _reset(self, found: Committed, offset: int) -> str:
        """The command that sets the offset, as errors name it."""
        place = shlex.quote(f"{found.topic}:{found.partition}")
        return f"`keylane groups reset {shlex.quote(self.group)} --topic {place} --to-offset {offset} --execute`"

    def _decoded(self, found: Committed, base: int) -> OffsetMap:
        try:
            offsets = decode(found.metadata, base)
            if found.origin == "copied" and self.on_copied_map != "believe":
                return self._without_copied_map(found, offsets)
            cut = found.log_end if found.changed_from is None and found.leader_epoch >= 0 else found.changed_from
            if cut is not None and offsets.highest_completed >= cut:
                offsets = self._cut(found, offsets, cut)
            if offsets.highest_completed >= found.log_end:
                raise MetadataError(
                    f"the map has {offsets.highest_completed} complete, beyond the end of the log at {found.log_end} "
                    f"{WAY_OUT}"
                )
        except MetadataError as error:
            return OffsetMap(base) if self.own_metadata(found) else self._foreign(found, base, error)
        return offsets

    def _without_copied_map(self, found: Committed, copied: OffsetMap) -> OffsetMap:
        """The start at the committed offset alone. Raises `PeerError` where the option says so."""
        if self.on_copied_map == "fail":
            raise PeerError(
                f"group {self.group!r}, {found.name}: the commit of offset {copied.base} was copied by another "
                "program, as a mirror of the cluster does it: the offset may be an earlier one, and its map may speak "
                "of other records. Set Commit(on_copied_map='run_again') to start there, though complete records run "
                f"again (up to {complete_count(copied)} beyond it), or 'believe' where both logs have the same records "
                f"at the same offsets ({MIRRORS})"
            )
        return OffsetMap(copied.base)

    def _cut(self, found: Committed, offsets: OffsetMap, cut: int) -> OffsetMap:
        """The map up to where the log was cut."""
        kept = cut_at(offsets, cut)
        logger.warning(
            "group %r, %s: its log was cut at %d since offset %d was committed, as by an unclean leader election: from "
            "there on are other records, which run, though the group's map has %d of these offsets complete",
            self.group,
            found.name,
            cut,
            offsets.base,
            complete_count(offsets) - complete_count(kept),
        )
        return kept

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
        except BaseException as error:  # as above
            raise HandlerError(f"{where}: on_foreign_metadata raised {line_of(error)}") from error
        if made is None:
            return None
        if not isinstance(made, OffsetMap) or made.base != base or made.highest_completed >= found.log_end:
            raise HandlerError(
                f"{where}: on_foreign_metadata returned {_shown(made)}; return None, or an OffsetMap with base {base} "
                f"that ends below the log's end at {found.log_end}"
            )
        return made


def complete_count(offsets: OffsetMap) -> int:
    """Offsets that a map has complete from its base on."""
    return offsets.span - offsets.incomplete_count


def cut_at(offsets: OffsetMap, offset: int) -> OffsetMap:
    """The map of what lies below this offset."""
    kept = [range(*run) for run in offsets.incomplete_within(offsets.base, offset)]
    return OffsetMap(offsets.base, kept, offset - 1).trimmed()


def _shown(made: object) -> str:
    return repr(made) if isinstance(made, OffsetMap) else kind_of(made)
