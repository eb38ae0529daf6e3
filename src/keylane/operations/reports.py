"""What a member tells of itself: `Report`, in JSON, and who is there (`Members`). Pure.

The shape is documented in docs/operations.md and has a version: a field may be added within one, and nothing else
changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict, cast

from keylane.consumer.snapshot import NUMBERS, OldestRecord, PartitionSnapshot, Wait
from keylane.consumer.work import WorkDict  # noqa: TC001 - `has_shape` looks at the type
from keylane.errors import UsageError
from keylane.foreign_json import has_shape, read_object
from keylane.operations.commands import VERSION, HoldingDict, Said
from keylane.operations.results import Result, read_result

PREFIX = b"member:"
"""Keys of reports begin with it."""

SILENT_INTERVALS = 3
SILENT_MS = 10_000
"""A member of which there was no report for so many of its intervals, and for so long, has ended, or hangs."""

Runs = Literal["process", "lanes"]


class Report(TypedDict):
    """One member: a process with a consumer, or the driver of a query of lanes."""

    version: int
    group: str
    member: str
    """Another one for each start."""
    runs: Runs
    client_id: str | None
    host: str
    pid: int
    keylane: str
    """The version."""
    started_ms: int
    reported_ms: int
    interval_ms: int
    """How often it reports."""
    takes_commands: bool
    """False for one without a token."""
    command: int
    """The number of the last command that it has carried out, or could not, while it runs; 0 before the first. The
    snapshot is made after that."""
    holding: HoldingDict
    """What commands have made of it, and what members begin with that start later."""
    snapshot: Said
    """As `Snapshot.to_dict` has it."""
    lanes: list[Said]
    """As `LaneStatus.to_dict` has them; none of a process."""
    spark_ui: NotRequired[str | None]
    """Where Spark's own pages are. Older members do not tell."""
    dead_letter_topic: NotRequired[str | None]
    """The pipeline's. Older members do not tell."""
    in_hand: list[WorkDict]
    """Records with the workers, or waiting for their outputs: up to 50, the oldest first; of lanes, of each."""
    waiting: list[WorkDict]
    """Records that have a time: the next first."""
    queues: list[WorkDict]
    """Heads of the longest queues, the longest first."""


def key_of(member: str) -> bytes:
    """Of its reports."""
    return PREFIX + member.encode()


def value_of(report: Report) -> bytes:
    """As the topic has it."""
    return json.dumps(report).encode()


class _Partition(TypedDict):
    lag: int | None


class _Breaker(TypedDict):
    """`OpenBreaker`."""

    target: str
    open_ms: int
    probe_in_ms: NotRequired[int | None]


class _Failure(TypedDict):
    error: str
    where: str
    count: int


class _Rule(TypedDict):
    where: str
    do: str
    per_s: float | None


class _Lane(TypedDict):
    """What commands and the page show of it."""

    lane: int
    state: str
    host: str | None
    pid: int | None
    executorId: str | None
    launches: int
    failures: int
    partitions: list[str]


SHAPES = {
    **dict.fromkeys(NUMBERS, int),
    "partitions": list[PartitionSnapshot],
    "lag": int | None,
    "remaining": int | None,
    "oldest": OldestRecord | None,
    "breakers": list[_Breaker],
    "failures": list[_Failure],
    "waits": Wait | None,
    "handler_latency": dict[str, float | list[int] | None],
    "commit_latency": dict[str, float | list[int] | None],
}
"""Of what a snapshot in a report has; it may have more."""
NOT_TOLD_BEFORE = {"waiting_for_pool"}
"""What older members do not tell."""


def is_report(said: Said) -> bool:
    """Whether a value of the topic is a report, all through: who shows it need not look again."""
    return (
        has_shape(said, Report)
        and said["snapshot"].keys() >= SHAPES.keys() - NOT_TOLD_BEFORE
        and all(has_shape(value, SHAPES[name]) for name, value in said["snapshot"].items() if name in SHAPES)
        and has_shape(said["snapshot"]["partitions"], list[_Partition])
        and has_shape(said["holding"]["keys"], list[_Rule])
        and has_shape(said["lanes"], list[_Lane])
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A report, and when the brokers took it."""

    report: Report
    written_ms: int

    def age_ms(self, now_ms: int) -> int:
        return max(0, now_ms - self.written_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Whether the member has ended without a word, or hangs."""
        return self.age_ms(now_ms) > max(SILENT_MS, SILENT_INTERVALS * self.report["interval_ms"])


@dataclass(slots=True)
class Members:
    """What the topic of reports says of a group: its members, and what they answered. Thread safety: one thread."""

    group: str
    reports: dict[str, Seen] = field(default_factory=dict)
    """The last of each member that has not said that it ends."""
    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    """The last, by command and member."""
    accepted_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    """When a member began with a command, by both."""

    def take(self, key: bytes | None, value: bytes | None, written_ms: int) -> None:
        """The next record of the topic."""
        if key is None:
            return
        if key.startswith(PREFIX):
            self._take_report(key.removeprefix(PREFIX).decode(errors="replace"), value, written_ms)
        elif (result := read_result(self.group, key, value)) is not None:
            self.results.setdefault(result.command, {})[result.member] = result
            if result.state == "accepted":
                self.accepted_ms[result.command, result.member] = result.at_ms

    def _take_report(self, member: str, value: bytes | None, written_ms: int) -> None:
        if value is None:
            self.reports.pop(member, None)
            return
        try:
            said = read_object(value)
        except UsageError:
            return
        if said.get("version") == VERSION and said.get("group") == self.group and is_report(said):
            self.reports[member] = Seen(cast("Report", said), written_ms)

    def present(self, now_ms: int) -> dict[str, Seen]:
        """Those that are heard, by name."""
        return {name: one for name, one in sorted(self.reports.items()) if not one.is_silent(now_ms)}
