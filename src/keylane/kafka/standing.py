"""Where a group stands in its topics, read from the broker by a client of its own: what is committed, and what its maps
have complete beyond that. It asks nobody who takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.errors import MetadataError, PeerError
from keylane.kafka.logs import matching
from keylane.offsets import decode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.kafka.admin import Admin, CommittedOffset


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition. Offsets as Kafka means them: the next to read, and the next to be written."""

    topic: str
    partition: int
    start: int
    """Where the log starts."""
    committed: int | None
    """None before the group's first commit."""
    complete_above: int
    """Offsets above the committed one that its offset map has complete; 0 for metadata that is no offset map."""
    end: int

    @property
    def lag(self) -> int:
        """Log end less committed offset; all of the log before the first commit."""
        return max(0, self.end - (self.start if self.committed is None else self.committed))

    @property
    def incomplete(self) -> int:
        """Offsets still to be processed."""
        return self.lag - self.complete_above

    @property
    def complete(self) -> int:
        """Offsets of the log that are processed."""
        return self.end - self.start - self.incomplete

    def __str__(self) -> str:
        committed = "nothing committed" if self.committed is None else f"committed offset {self.committed:,}"
        above = f", {self.complete_above:,} complete above it" if self.complete_above else ""
        return f"{self.topic}-{self.partition}: {committed}, log end {self.end:,}{above}"


def group_standing(admin: Admin, group: str, topics: Iterable[str]) -> tuple[Standing, ...]:
    """The group in all partitions of the topics. Raises `PeerError` for a topic that does not exist."""
    counts = admin.topics()
    partitions = []
    for topic in matching(topics, list(counts)):
        if topic not in counts:
            raise PeerError(f"the topic {topic!r} does not exist: create it first")
        partitions += [(topic, partition) for partition in range(counts[topic])]
    starts, ends = admin.log_starts(partitions), admin.log_ends(partitions)
    committed = admin.committed_offsets(group)
    standing = []
    for topic, partition in partitions:
        start, end, commit = starts[topic, partition], ends[topic, partition], committed.get((topic, partition))
        above = 0 if commit is None else _complete_above(commit)
        offset = None if commit is None else commit.offset
        standing.append(Standing(topic, partition, start or 0, offset, above, end or 0))
    return tuple(standing)


def _complete_above(commit: CommittedOffset) -> int:
    if not commit.metadata:
        return 0
    try:
        offset_map = decode(commit.metadata, commit.offset)
    except MetadataError:
        return 0
    return offset_map.highest_completed + 1 - commit.offset - offset_map.incomplete_count
