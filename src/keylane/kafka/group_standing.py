"""Where a group stands in its topics, read from the broker by a client of its own: what is committed, and what its maps
have complete beyond that. It asks nobody who takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.errors import MetadataError, PeerError
from keylane.kafka.logs import matching
from keylane.offsets import OffsetMap, decode
from keylane.offsets.codec import map_origin

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
    remaining: int
    """Offsets of the log that neither the committed offset nor its offset map has complete. Metadata that is no offset
    map has none complete."""
    end: int

    @property
    def lag(self) -> int:
        """Log end less committed offset; all of the log before the first commit."""
        return max(0, self.end - (self.start if self.committed is None else self.committed))

    @property
    def complete(self) -> int:
        """Offsets of the log that are processed."""
        return self.end - self.start - self.remaining

    def __str__(self) -> str:
        committed = "nothing committed" if self.committed is None else f"committed offset {self.committed:,}"
        left = f", {self.remaining:,} remaining" if self.remaining != self.lag else ""
        return f"{self.topic}-{self.partition}: {committed}, log end {self.end:,}{left}"


def group_standing(admin: Admin, group: str, topics: Iterable[str]) -> tuple[Standing, ...]:
    """The group in all partitions of the topics. Raises `PeerError` for a topic that does not exist."""
    topics = list(topics)
    counts = admin.topics(one for one in topics if not one.startswith("^"))
    partitions = []
    for topic in matching(topics, list(counts)):
        if topic not in counts:
            raise PeerError(f"the topic {topic!r} does not exist: create it first")
        partitions += [(topic, partition) for partition in range(counts[topic])]
    starts, ends = admin.log_starts(partitions), admin.log_ends(partitions, read_committed=False)
    committed = admin.committed_offsets(group)
    standing = []
    for topic, partition in partitions:
        start, end, commit = (
            starts[topic, partition] or 0,
            ends[topic, partition] or 0,
            committed.get((topic, partition)),
        )
        offset = None if commit is None else commit.offset
        left = max(0, end - start) if commit is None else offset_map_of(commit)[0].remaining(start, end)
        standing.append(Standing(topic, partition, start, offset, left, end))
    return tuple(standing)


COPIED = (
    "another program copied this commit, as a mirror of the cluster does it, and its offset map may speak of other "
    "records: members decide by Commit.on_copied_map"
)


def offset_map_of(commit: CommittedOffset) -> tuple[OffsetMap, str | None]:
    """What a commit says is complete, of whatever software: by its offset alone, with the reason, when its metadata is
    no offset map, or one that was copied."""
    try:
        found = decode(commit.metadata, commit.offset)
    except MetadataError as error:
        return OffsetMap(commit.offset), str(error)
    if map_origin(commit.metadata, commit.leader_epoch) == "copied":
        return OffsetMap(commit.offset), COPIED
    return found, None
