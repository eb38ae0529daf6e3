"""`keylane records show`: where records stand, by what the group has committed and by what the log has.

Each report is what `--json` prints; `None` is what is not known, or not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from keylane.cli.arguments import check_topic, place
from keylane.cli.tables import print_fields
from keylane.desk.groups import committed_by
from keylane.desk.payloads import payload, sizes, time_text
from keylane.errors import MetadataError, UsageError
from keylane.kafka.redriving import committed_record
from keylane.offsets import OffsetMap, decode
from keylane.offsets.edits import standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.cli.arguments import Place
    from keylane.cli.asking import Report, Settings
    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.offsets.edits import Standing
    from keylane.pipeline import Pipeline
    from keylane.records import Record

InLog = Literal["there", "deleted", "gone", "open", "unwritten"]

IN_LOG: dict[InLog, str] = {
    "there": "it can be read",
    "deleted": "it is below the log's start: retention or a deletion took it",
    "gone": "no record is there: compaction took it, its transaction was aborted, or it is a transaction's marker",
    "open": "it is in an open transaction, or behind the begin of one",
    "unwritten": "the log ends before it",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A record, as the group and the log have it."""

    place: Place
    commit: CommittedOffset | None
    map: OffsetMap
    """The commit's; one that says nothing where there is no commit, or no map in it."""
    metadata_error: str | None
    """Why the commit's metadata is no map."""
    log_start: int
    log_end: int
    in_log: InLog
    record: Record | None

    @property
    def standing(self) -> Standing | Literal["no commit"]:
        return "no commit" if self.commit is None else standing(self.map, self.place.offset)


def look(admin: Admin, kafka: Settings, group: str, names: Iterable[str]) -> list[Found]:
    """The records that are named, each once. Raises `UsageError` for a name that is none, for a topic or partition that
    does not exist, and for a group that does not."""
    places = list(dict.fromkeys(place("record", name) for name in names))
    counts = admin.topics()
    for one in places:
        check_topic(one.topic, counts)
        if one.partition >= counts[one.topic]:
            raise UsageError(f"{one}: the topic has partitions 0 to {counts[one.topic] - 1}")
    partitions = {(one.topic, one.partition) for one in places}
    committed = committed_by(admin, group, ())
    starts, ends = admin.log_starts(partitions), admin.log_ends(partitions)
    stable = admin.log_ends(partitions, read_committed=True)

    def found(one: Place) -> Found:
        name = (one.topic, one.partition)
        start, stable_end, end = (bounds[name] or 0 for bounds in (starts, stable, ends))
        in_log, record = _in_log(kafka, one, start, stable_end, end)
        offset_map, metadata_error = _map_of(committed.get(name))
        return Found(one, committed.get(name), offset_map, metadata_error, start, end, in_log, record)

    return [found(one) for one in places]


def _in_log(kafka: Settings, one: Place, start: int, stable_end: int, end: int) -> tuple[InLog, Record | None]:
    if one.offset < start:
        return "deleted", None
    if one.offset >= stable_end:
        return "open" if one.offset < end else "unwritten", None
    record = committed_record(kafka, *one)
    return "gone" if record is None else "there", record


def _map_of(commit: CommittedOffset | None) -> tuple[OffsetMap, str | None]:
    if commit is None:
        return OffsetMap(0), None
    try:
        return decode(commit.metadata, commit.offset), None
    except MetadataError as error:
        return OffsetMap(commit.offset), str(error)


def show_report(
    admin: Admin,
    kafka: Settings,
    group: str,
    names: Iterable[str],
    pipeline: Pipeline | None,
    *,
    payloads: bool,
) -> Report:
    """Where each record stands, and what it has; key, value and headers' values with `payloads`."""
    rows = []
    for one in look(admin, kafka, group, names):
        record = one.record
        rows.append(
            {
                "record": str(one.place),
                "standing": one.standing,
                "committed": None if one.commit is None else one.commit.offset,
                "highest_completed": one.map.highest_completed if one.map.span else None,
                "metadata_error": one.metadata_error,
                "in_log": one.in_log,
                "log_start_offset": one.log_start,
                "log_end_offset": one.log_end,
                "timestamp": None if record is None else time_text(record.timestamp_ms),
            }
            | ({"key_bytes": None, "value_bytes": None, "header_names": None} if record is None else {})
            | (sizes(record, record.headers) if record is not None else {})
            | (payload(record, record.topic, record.headers, pipeline) if record is not None and payloads else {})
        )
    return {"group": group, "records": rows}


STANDINGS = {
    "below": "below: complete, below the committed offset",
    "complete": "complete: the offset map has it so",
    "incomplete": "incomplete: not complete, and records behind it are",
    "beyond": "beyond: not complete, nor is any record behind it",
    "no commit": "no commit: the group has committed nothing in the partition",
}


def print_records(report: Report) -> None:
    """A line for each field, a blank line between records."""
    for number, one in enumerate(report["records"]):
        if number:
            print()
        in_log: InLog = one["in_log"]
        print_fields(one | {"standing": STANDINGS[one["standing"]], "in_log": f"{in_log}: {IN_LOG[in_log]}"})
