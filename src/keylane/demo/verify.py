"""The verdict: each input record has exactly one output, in order, with the right weather. It believes no counter.

Both topics are read from start to end by a plain client. An output names its source record; what is judged is the
multiset of those names against the input, and their sequence in the output's log.

Order. Within what must be ordered (a key of one input partition, or one input partition) source offsets must rise, but
for one thing that at-least-once delivery allows: after a crash a run begins again at a record that ran before. Such a
run can only begin at or after the point where the run before it began, because what lies below was already committed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.demo.data import read_weather
from keylane.kafka.bulk import read_to_end

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from keylane.demo.data import Hour, Value
    from keylane.options import Ordering
    from keylane.records import Record

SEQUENCE_HEADER = "sequence"
"""Of an input record: its place in the order of departure, from 0."""

SOURCE_HEADER = "source"
"""Of an output: the record it was made from, `topic-partition@offset`."""

EXAMPLES = 5
"""Findings that a verdict names, of each run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reading of the output against the input found. Every count but `records` should be 0."""

    records: int
    """Input records read."""
    lost: int
    """Input records without an output, and flights that never reached the input."""
    duplicated: int
    """Outputs beyond the first of an input record, and flights beyond the first in the input."""
    out_of_order: int | None
    """Outputs that broke the ordering; None when the ordering promises none."""
    altered: int
    """Outputs whose key, flight or weather is not that of their source."""
    foreign: int
    """Outputs that name no input record."""
    examples: tuple[str, ...]
    """The first findings, a sentence each."""

    @property
    def faultless(self) -> bool:
        """Nothing lost, out of order, altered or foreign. Repetitions after a crash are within at-least-once."""
        return not (self.lost or self.out_of_order or self.altered or self.foreign)


@dataclass(slots=True)
class _Run:
    """The progress of one key or partition through the output."""

    output_partition: int
    began: int
    """Source offset at which the present run began."""
    last: int


class Verifier:
    """Takes all of the input, then all of the output (each partition in offset order), then gives the verdict."""

    def __init__(self, ordering: Ordering, expected: int, weather: Mapping[Hour, Mapping[str, Value]]) -> None:
        self._ordering = ordering
        self._expected = expected
        self._weather = weather
        self._inputs: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = {}
        self._sequences: set[int] = set()
        self._last_sequence: dict[int, int] = {}
        self._outputs_of: dict[tuple[str, int, int], int] = {}
        self._runs: dict[Hashable, _Run] = {}
        self._duplicated = self._out_of_order = self._altered = self._foreign = 0
        self._examples: list[str] = []

    def add_input(self, record: Record) -> None:
        self._inputs[record.topic, record.partition, record.offset] = (record.key, record.value)
        sequence = sequence_of(record)
        if sequence in self._sequences:
            self._duplicated += 1
            self._note(f"{record} is flight {sequence} a second time")
        self._sequences.add(sequence)
        if sequence < self._last_sequence.get(record.partition, -1):
            self._out_of_order += 1
            self._note(f"{record} is flight {sequence}, after flight {self._last_sequence[record.partition]}")
        self._last_sequence[record.partition] = sequence

    def add_output(self, record: Record) -> None:
        source = _source(record)
        if source is None or source not in self._inputs:
            self._foreign += 1
            self._note(f"{record} names no record of the input")
            return
        times = self._outputs_of[source] = self._outputs_of.get(source, 0) + 1
        if times > 1:
            self._duplicated += 1
            self._note(f"{record} is output {times} of {_name(source)}")
        if not self._is_faithful(record, *self._inputs[source]):
            self._altered += 1
            self._note(f"{record} does not hold the key, the flight and the weather of {_name(source)}")
        group = self._group(source, record.key)
        if group is not None and not self._in_order(group, record.partition, source[2], repeated=times > 1):
            self._out_of_order += 1
            self._note(f"{record} from {_name(source)} comes after {self._runs[group].last}")

    def verdict(self) -> Verdict:
        without_output = [source for source in self._inputs if source not in self._outputs_of]
        for source in without_output[:EXAMPLES]:
            self._note(f"{_name(source)} has no output")
        never_produced = self._expected - len(self._sequences & set(range(self._expected)))
        if never_produced:
            self._note(f"{never_produced} of {self._expected} flights are not in the input")
        return Verdict(
            records=len(self._inputs),
            lost=len(without_output) + never_produced,
            duplicated=self._duplicated,
            out_of_order=None if self._ordering == "unordered" else self._out_of_order,
            altered=self._altered,
            foreign=self._foreign,
            examples=tuple(self._examples[:EXAMPLES]),
        )

    def _group(self, source: tuple[str, int, int], key: bytes | None) -> Hashable:
        """What the output is ordered within; None when it has no order. A null key has none under KEY."""
        if self._ordering == "partition":
            return source[:2]
        if self._ordering == "key" and key is not None:
            return (*source[:2], key)
        return None

    def _in_order(self, group: Hashable, output_partition: int, offset: int, *, repeated: bool) -> bool:
        run = self._runs.get(group)
        if run is None:
            self._runs[group] = _Run(output_partition, offset, offset)
        elif run.output_partition != output_partition:
            return False  # between two partitions no order can be shown
        elif offset > run.last:
            run.last = offset
        elif repeated and offset >= run.began:
            run.began = run.last = offset
        else:
            return False
        return True

    def _is_faithful(self, output: Record, key: bytes | None, value: bytes | None) -> bool:
        if output.key != key or output.value is None or value is None:
            return False
        try:
            flight, enriched = json.loads(value), json.loads(output.value)
        except ValueError:
            return False
        expected = {"flight": flight, "weather": self._weather.get((flight["origin"], flight["time_hour"]))}
        return bool(enriched == expected)

    def _note(self, finding: str) -> None:
        if len(self._examples) < EXAMPLES:
            self._examples.append(finding)


def verify(
    servers: str,
    topic: str,
    output: str,
    *,
    ordering: Ordering,
    expected: int,
    settings: Mapping[str, str] | None = None,
) -> Verdict:
    """Read both topics from start to end and judge. Raises `PeerError` when they cannot be read."""
    verifier = Verifier(ordering, expected, read_weather())
    for batch in read_to_end(servers, topic, settings=settings):
        for record in batch:
            verifier.add_input(record)
    for batch in read_to_end(servers, output, settings=settings):
        for record in batch:
            verifier.add_output(record)
    return verifier.verdict()


def sequence_of(record: Record) -> int:
    """An input record's place in the order of departure; -1 when it does not say."""
    text = _header(record, SEQUENCE_HEADER) or b""
    return int(text) if text.isdigit() else -1


def _header(record: Record, name: str) -> bytes | None:
    return next((value for key, value in record.headers if key == name), None)


def _source(record: Record) -> tuple[str, int, int] | None:
    text = (_header(record, SOURCE_HEADER) or b"").decode(errors="replace")
    place, _, offset = text.rpartition("@")
    topic, _, partition = place.rpartition("-")
    if not (topic and partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        return None
    return topic, int(partition), int(offset)


def _name(source: tuple[str, int, int]) -> str:
    return f"{source[0]}-{source[1]}@{source[2]}"
