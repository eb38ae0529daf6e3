"""Single records of a group: where they stand, by what the group has committed and by what the log has.

Each report is what `--json` prints; `None` is what is not known, or not there.
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from keylane.desk.groups import committed_by
from keylane.desk.payloads import payload, sizes, time_text
from keylane.desk.places import check_topic, places
from keylane.desk.steps import steps_report
from keylane.errors import UsageError
from keylane.kafka.group_standing import offset_map_of
from keylane.kafka.redriving import committed_record
from keylane.offsets import OffsetMap
from keylane.offsets.edits import standing
from keylane.operations.commands import passing, replaying
from keylane.records import carried_headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.desk import Report
    from keylane.desk.places import Place
    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.redriving import Settings
    from keylane.offsets.edits import Standing
    from keylane.operations.commands import Asked
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
class Logged:
    """A record, as the log has it."""

    place: Place
    log_start: int
    log_end: int
    in_log: InLog
    record: Record | None


@dataclass(frozen=True, slots=True)
class Found(Logged):
    """The same, and as the group has it."""

    commit: CommittedOffset | None
    map: OffsetMap
    """The commit's; one that says nothing where there is no commit, or no map in it."""
    metadata_error: str | None
    """Why the commit's metadata is no map, or not believed."""

    @property
    def standing(self) -> Standing | Literal["no commit"]:
        return "no commit" if self.commit is None else standing(self.map, self.place.offset)


def look(admin: Admin, kafka: Settings, group: str, names: Iterable[str]) -> list[Found]:
    """The records that are named, each once. Raises `UsageError` for a name that is none, for a topic or partition that
    does not exist, and for a group that does not."""
    named = places(names, admin.topics)
    committed = committed_by(admin, group, ())

    def found(one: Logged) -> Found:
        commit = committed.get((one.place.topic, one.place.partition))
        said = (OffsetMap(0), None) if commit is None else offset_map_of(commit)
        return Found(one.place, one.log_start, one.log_end, one.in_log, one.record, commit, *said)

    return [found(one) for one in logged(admin, kafka, named)]


def logged(admin: Admin, kafka: Settings, named: Iterable[Place]) -> list[Logged]:
    """These records, of partitions that exist."""
    named = list(named)
    partitions = {(one.topic, one.partition) for one in named}
    starts, ends = admin.log_starts(partitions), admin.log_ends(partitions, read_committed=False)
    stable = admin.log_ends(partitions, read_committed=True)

    def found(one: Place) -> Logged:
        start, stable_end, end = (bounds[one.topic, one.partition] or 0 for bounds in (starts, stable, ends))
        return Logged(one, start, end, *_in_log(kafka, one, start, stable_end, end))

    return [found(one) for one in named]


def _in_log(kafka: Settings, one: Place, start: int, stable_end: int, end: int) -> tuple[InLog, Record | None]:
    if one.offset < start:
        return "deleted", None
    if one.offset >= stable_end:
        return "open" if one.offset < end else "unwritten", None
    record = committed_record(kafka, *one)
    return "gone" if record is None else "there", record


GONE: dict[Literal["replay", "skip", "park"], str] = {
    "replay": "produce it again to have it processed",
    "skip": "consumers pass over it by themselves",
    "park": "consumers pass over it by themselves",
}
"""What to do about a record that the log has no longer."""


def check_in_log(one: Logged, verb: Literal["replay", "skip", "park"]) -> None:
    """Raises `UsageError` where there is no record to do this with."""
    if one.in_log in ("open", "unwritten"):
        raise UsageError(f"{one.place}: {IN_LOG[one.in_log]} (at {one.log_end}): wait until it can be read")
    if one.in_log != "there":
        raise UsageError(f"{one.place}: {IN_LOG[one.in_log]}; {GONE[verb]}")


def show_report(
    admin: Admin,
    kafka: Settings,
    group: str,
    names: Iterable[str],
    pipeline: Pipeline | None,
    *,
    payloads: bool,
) -> Report:
    """Where each record stands, what it has, and which steps are kept of it; key, value, headers' values and answers
    with `payloads`."""
    rows = []
    for one in look(admin, kafka, group, names):
        record = one.record
        headers = [] if record is None else carried_headers_of(record.message)
        steps = record and steps_report(admin, kafka, group, pipeline, record, payloads=payloads)
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
            | (sizes(record, headers) if record is not None else {})
            | (payload(record, record.topic, headers, pipeline) if record is not None and payloads else {})
            | ({} if steps is None else {"steps": steps})
        )
    return {"group": group, "records": rows}


def asked_of(
    admin: Admin, kafka: Settings, do: str, names: Iterable[str], dlq: str | None, reason: str | None
) -> Asked:
    """What `skip-record`, `park-record` and `replay-record` ask of the members of a group. Raises `UsageError` for what
    is no record, or in no partition, for one to be replayed that the log has not, and for a topic of letters that does
    not exist."""
    named = places(names, admin.topics)
    if do == "replay-record":
        for one in logged(admin, kafka, named):
            check_in_log(one, "replay")
        return replaying(named)
    if do == "skip-record":
        return passing(named)
    if dlq is None:
        raise UsageError("park-record: name the dead-letter topic")
    check_topic(dlq, admin.topics([dlq]))
    by = f"by {getpass.getuser()}@{socket.gethostname()}"
    return passing(named, dlq, by if reason is None else f"{by}: {reason}")
