"""`keylane records replay | skip | park`: another offset map for a group without members: the plan first, the commit
with `--execute` only.

Everything that is named is done, or refused with the first reason that is found, before anything is committed.
"""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Literal

from keylane.cli.asking import DRY_RUN
from keylane.cli.groups_change import check_empty
from keylane.cli.tables import print_table, say
from keylane.consumer.passing import Passing
from keylane.desk.records import check_in_log, look
from keylane.errors import PeerError, UsageError
from keylane.kafka.admin import CommittedOffset
from keylane.kafka.membership import Replay
from keylane.kafka.replacing import replace
from keylane.offsets import encoding_of
from keylane.offsets.edits import replayed, rewritten, skipped
from keylane.operations.operator import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.cli.asking import Report, Settings
    from keylane.cli.records_park import Parking
    from keylane.desk.places import Place
    from keylane.desk.records import Found
    from keylane.kafka.admin import Admin
    from keylane.kafka.group_descriptions import Partition
    from keylane.kafka.replacing import Offsets

Verb = Literal["replay", "skip", "park"]

DONE: dict[Verb, str] = {"replay": "run again", "skip": "count as complete", "park": "are set aside"}


def edit(
    admin: Admin,
    kafka: Settings,
    group: str,
    names: Iterable[str],
    verb: Verb,
    cap: int,
    *,
    execute: bool,
    parking: Parking | None = None,
) -> Report:
    """Let these records run again, or never, by metadata of at most `cap` characters; the report says what was, or
    would be, committed. With `parking` each has a letter before.

    Raises `UsageError` for a group with members, and for a record that cannot be replayed or skipped; `PeerError` when
    somebody else commits meanwhile.
    """
    if cap < 0:
        raise UsageError(f"--metadata-max-bytes {cap}: give a whole number from 0 on")
    description = check_empty(admin, group)
    chosen: dict[Partition, list[Found]] = {}
    every = look(admin, kafka, group, names)
    if parking is not None:
        parking.check(every)
    for one in every:
        _check(verb, group, one)
        chosen.setdefault((one.place.topic, one.place.partition), []).append(one)
    before: dict[Partition, CommittedOffset] = {}
    after: dict[Partition, CommittedOffset] = {}
    rows = []
    for name, found in sorted(chosen.items()):
        commit, offsets = found[0].commit, sorted(one.place.offset for one in found)
        assert commit is not None
        edited = (replayed if verb == "replay" else skipped)(found[0].map, offsets)
        epoch = _epoch(commit, found)
        try:
            metadata = rewritten(edited, found[0].map, commit.metadata, cap, is_marked=epoch >= 0)
        except UsageError as error:
            raise UsageError(f"{name[0]}-{name[1]} of the group {group!r}: {error}") from None
        before[name], after[name] = commit, CommittedOffset(edited.base, metadata, epoch)
        rows.append(
            {
                "topic": name[0],
                "partition": name[1],
                "offsets": offsets,
                "committed": commit.offset,
                "new_offset": edited.base,
                "incomplete_count": edited.incomplete_count,
                "highest_completed": edited.highest_completed if edited.span else None,
                "encoding": encoding_of(metadata),
                "had_map": bool(commit.metadata),
            }
        )
    had_letters = parking.write(every) if execute and parking is not None else None
    is_conditional = _replaced(admin, kafka, group, before, after, parking) if execute else None
    letters = {} if parking is None else {"dlq": parking.topic, "had_letters": had_letters}
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    asked = _as_command(verb, [one.place for one in every], None if parking is None else parking.topic)
    is_in_log = note(kafka, admin, group, asked, by) if execute else None
    return letters | {
        "group": group,
        "state": description.state,
        "verb": verb,
        "executed": execute,
        "conditional": is_conditional,
        "by": by,
        "in_log": is_in_log,
        "partitions": rows,
    }


def _epoch(commit: CommittedOffset, found: Sequence[Found]) -> int:
    """What the edited commit carries: a record that is skipped may be of a later leader than any that was read. None
    where the commit has none, and nobody knows whose records it speaks of."""
    read = (one.record.leader_epoch for one in found if one.record is not None)
    return commit.leader_epoch if commit.leader_epoch < 0 else max((commit.leader_epoch, *(one or 0 for one in read)))


def _as_command(verb: Verb, places: Sequence[Place], dlq: str | None) -> Passing | Replay:
    """What the members would have been told."""
    names = tuple((one.topic, one.partition, one.offset) for one in places)
    return Replay(names) if verb == "replay" else Passing(names, dlq)


def _replaced(
    admin: Admin, kafka: Settings, group: str, before: Offsets, after: Offsets, parking: Parking | None
) -> bool:
    try:
        return replace(admin, kafka, group, before, after)
    except PeerError as error:
        if parking is None:
            raise
        raise PeerError(
            f"{error}; the letters are in {parking.topic!r}: what is not complete runs all the same, and when it is "
            "parked once more its letter is found"
        ) from error


def _check(verb: Verb, group: str, one: Found) -> None:
    """Raises `UsageError` where this record cannot be replayed or skipped."""
    partition = f"{one.place.topic}-{one.place.partition}"
    if one.commit is None:
        reason = (
            f"the group {group!r} has committed nothing in {partition}: `keylane groups reset` sets an offset first"
        )
    elif one.metadata_error is not None:
        reason = (
            f"what the group {group!r} has committed in {partition} cannot be edited: {one.metadata_error}; `keylane "
            "groups reset` commits without metadata"
        )
    elif one.standing in ("below", "complete") and verb != "replay":
        reason = f"it is complete already: nothing is to be {'skipped' if verb == 'skip' else 'parked'}"
    elif one.standing in ("incomplete", "beyond") and verb == "replay":
        reason = "it is not complete: it runs when consumers of the group start, without a replay"
    else:
        check_in_log(one, verb)
        return
    raise UsageError(f"{one.place}: {reason}")


def print_edit(report: Report) -> None:
    """As a table."""
    headings = (
        "TOPIC",
        "PARTITION",
        "OFFSETS",
        "COMMITTED",
        "NEW OFFSET",
        "INCOMPLETE",
        "HIGHEST COMPLETED",
        "ENCODING",
    )
    names = [heading.lower().replace(" ", "_") for heading in headings]
    names[names.index("incomplete")] = "incomplete_count"
    rows = [one | {"offsets": ", ".join(map(str, one["offsets"]))} for one in report["partitions"]]
    print_table(headings, ([one[name] for name in names] for one in rows), numbers=(1, 3, 4, 5, 6))
    for one in report["partitions"]:
        if one["encoding"] is not None and not one["had_map"]:
            say(
                f"{one['topic']}-{one['partition']}: the commit had no offset map so far: consumers that keep none "
                f"(plain ones) go on at {one['new_offset']}, and run all from there on"
            )
    if report["executed"]:
        count = sum(len(one["offsets"]) for one in report["partitions"])
        verb: Verb = report["verb"]
        say(f"group {report['group']}: {count} records {DONE[verb]}, by {report['by']}")
        if not report["in_log"]:
            say(f"`keylane operate log {report['group']}` has no word of it: keep this line where others find it")
        if verb == "park":
            say(f"their letters are in {report['dlq']}: `keylane dlq redrive {report['dlq']}` brings them back")
    else:
        say(DRY_RUN)
