"""An oracle for pipelines that give each input record one output: what was lost, repeated, or out of order.

It reads both topics whole with a plain client and believes no counter. Outputs name their record in the header `source`
(`source_of` makes it), as `flights-3@1234`. After a crash at-least-once delivery may run a record again, but only one
that no acknowledged commit covers: `covered` reads those from the broker, offset and map, by another client.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.kafka.bulk import read_to_end
from keylane.offsets import OffsetMap, decode

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from keylane.kafka.admin import Admin
    from keylane.options import Ordering
    from keylane.records import Record

Source = tuple[str, int, int]
"""Topic, partition and offset of an input record."""

SOURCE_HEADER = "source"


def source_of(record: Record) -> tuple[str, bytes]:
    """The header that names an output's record."""
    return SOURCE_HEADER, f"{record.topic}-{record.partition}@{record.offset}".encode()


@dataclass(frozen=True, slots=True)
class Outputs:
    """What was given (the key of each record), and the outputs in the order of their logs."""

    inputs: Mapping[Source, bytes | None]
    outputs: Sequence[Source]

    @classmethod
    def read(cls, servers: str, topic: str, output: str) -> Outputs:
        """Reads both topics from start to end. Raises `PeerError` when they cannot be read."""
        inputs = {
            (one.topic, one.partition, one.offset): one.key for batch in read_to_end(servers, topic) for one in batch
        }
        logs: dict[int, list[tuple[int, Source]]] = {}
        for partition, offset, source in outputs_of(servers, output):
            logs.setdefault(partition, []).append((offset, source))
        return cls(inputs, [source for _, log in sorted(logs.items()) for _, source in sorted(log)])

    @property
    def lost(self) -> set[Source]:
        """Input records without an output."""
        return set(self.inputs) - set(self.outputs)

    @property
    def repeated(self) -> set[Source]:
        """Input records with more than one output."""
        return {source for source, times in Counter(self.outputs).items() if times > 1}

    @property
    def foreign(self) -> set[Source]:
        """Sources that are no input record."""
        return set(self.outputs) - set(self.inputs)

    def out_of_order(self, ordering: Ordering) -> list[Source]:
        """Outputs that break the order; of each key they must all go to one output partition.

        Within a key (or partition) first outputs come in the order of the records. A run after a crash may go back to
        a record that had an output before, and rises from there.
        """
        if ordering == "unordered":
            return []
        wrong, seen = [], set()
        last: dict[Hashable, int] = {}
        furthest: dict[Hashable, int] = {}
        for source in self.outputs:
            topic, partition, offset = source
            key = self.inputs.get(source)
            if ordering == "key" and key is None:
                continue
            group = (topic, partition, key if ordering == "key" else None)
            is_first = source not in seen
            seen.add(source)
            if is_first and (offset <= furthest.get(group, -1) or offset <= last.get(group, -1)):
                wrong.append(source)
            last[group] = offset
            furthest[group] = max(offset, furthest.get(group, -1))
        return wrong


class Covered:
    """The records that a group's acknowledged commits cover, by offset and map."""

    def __init__(self, maps: Mapping[tuple[str, int], OffsetMap]) -> None:
        self._maps = maps

    def __contains__(self, source: Source) -> bool:
        topic, partition, offset = source
        found = self._maps.get((topic, partition))
        if found is None:
            return False
        return offset < found.base or (offset <= found.highest_completed and offset not in found.incomplete)


def covered(admin: Admin, group: str) -> Covered:
    """What the broker has of the group now."""
    commits = admin.committed_offsets(group)
    return Covered({name: decode(one.metadata, one.offset) for name, one in commits.items()})


def outputs_of(servers: str, output: str) -> Iterator[tuple[int, int, Source]]:
    """Of each output: its partition, its offset, and the record that it names."""
    for batch in read_to_end(servers, output):
        for one in batch:
            yield one.partition, one.offset, _named_by(one)


def _named_by(output: Record) -> Source:
    text = next((value for name, value in output.headers if name == SOURCE_HEADER), None)
    assert text is not None, f"{output} has no header {SOURCE_HEADER!r}"
    place, _, offset = text.decode().rpartition("@")
    topic, _, partition = place.rpartition("-")
    return topic, int(partition), int(offset)
