"""`report_starts`: what is worth knowing of where partitions start, one line a kind, however many there are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keylane.consumer.start import MIRRORS, complete_count
from keylane.offsets import decode
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.consumer.start import Committed, Origin, StartRule
    from keylane.offsets import OffsetMap

logger = logger_of("keylane.consumer")

_SHOWN = 5
"""Partitions that a line names."""


def report_starts(rule: StartRule, starts: Iterable[tuple[Committed, OffsetMap]]) -> None:
    """Log of each partition's start what its commit, or the lack of one, means for what runs."""
    by_origin: dict[Origin, list[tuple[Committed, OffsetMap]]] = {}
    for found, start in starts:
        by_origin.setdefault(found.origin, []).append((found, start))
    if without := by_origin.get("none"):
        passed_over = sum(start.base - found.log_start for found, start in without)
        logger.log(
            logging.WARNING if passed_over else logging.INFO,
            "group %r: %d partitions begin without a committed offset, where offset_reset=%r says; %d records of their "
            "logs are passed over: %s",
            rule.group,
            len(without),
            rule.offset_reset,
            passed_over,
            _listed(
                [f"{found.name} at {start.base} of {found.log_start} to {found.log_end}" for found, start in without]
            ),
        )
    if unmarked := by_origin.get("unmarked"):
        logger.info(
            "group %r: the offset maps of %d partitions were committed without a leader epoch, as the JVM's Parallel "
            "Consumer and earlier versions of keylane do it; they are believed, though nobody can tell whether one was "
            "copied from another cluster (%s): %s",
            rule.group,
            len(unmarked),
            MIRRORS,
            _listed([found.name for found, _ in unmarked]),
        )
    if copied := by_origin.get("copied"):
        _report_copied(rule, copied)


def _report_copied(rule: StartRule, copied: Sequence[tuple[Committed, OffsetMap]]) -> None:
    if rule.on_copied_map == "believe":
        logger.info(
            "group %r: the offset maps of %d partitions were copied by another program, and are believed "
            "(Commit.on_copied_map): %s",
            rule.group,
            len(copied),
            _listed([found.name for found, _ in copied]),
        )
        return
    counts = [complete_count(decode(found.metadata, found.offset or 0)) for found, _ in copied]
    logger.warning(
        "group %r: the commits of %d partitions were copied by another program, as a mirror of the cluster does it, "
        "and their offset maps may speak of other records: up to %d complete records beyond these offsets run again; "
        "Commit(on_copied_map='believe') takes the maps where both logs have the same offsets (%s): %s",
        rule.group,
        len(copied),
        sum(counts),
        MIRRORS,
        _listed([f"{found.name} from {start.base} on" for found, start in copied]),
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
