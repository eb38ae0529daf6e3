"""`keylane records replay | skip`: another offset map for a group without members: the plan first, the commit with
`--execute` only.

Everything that is named is done, or refused with the first reason that is found, before anything is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from keylane.cli.asking import DRY_RUN
from keylane.cli.groups_change import check_empty
from keylane.cli.records_show import IN_LOG, look
from keylane.cli.tables import print_table
from keylane.errors import UsageError
from keylane.kafka.admin import CommittedOffset
from keylane.kafka.replacing import replace
from keylane.offsets import encoding_of
from keylane.offsets.edits import replayed, rewritten, skipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.cli.asking import Report, Settings
    from keylane.cli.records_show import Found
    from keylane.kafka.admin import Admin
    from keylane.kafka.group_descriptions import Partition

Verb = Literal["replay", "skip"]

DONE: dict[Verb, str] = {"replay": "run again", "skip": "never run"}
ABSENT: dict[Verb, str] = {
    "replay": "produce it again to have it processed",
    "skip": "consumers pass over it by themselves",
}
"""What to do about a record that the log has no longer."""


def edit(
    admin: Admin, kafka: Settings, group: str, names: Iterable[str], verb: Verb, cap: int, *, execute: bool
) -> Report:
    """Let these records run again, or never, by metadata of at most `cap` characters; the report says what was, or
    would be, committed.

    Raises `UsageError` for a group with members, and for a record that cannot be replayed or skipped; `PeerError` when
    somebody else commits meanwhile.
    """
    if cap < 0:
        raise UsageError(f"--metadata-max-bytes {cap}: give a whole number from 0 on")
    description = check_empty(admin, group)
    chosen: dict[Partition, list[Found]] = {}
    for one in look(admin, kafka, group, names):
        _check(verb, group, one)
        chosen.setdefault((one.place.topic, one.place.partition), []).append(one)
    before: dict[Partition, CommittedOffset] = {}
    after: dict[Partition, CommittedOffset] = {}
    rows = []
    for name, found in sorted(chosen.items()):
        commit, offsets = found[0].commit, sorted(one.place.offset for one in found)
        assert commit is not None
        edited = (replayed if verb == "replay" else skipped)(found[0].map, offsets)
        try:
            metadata = rewritten(edited, found[0].map, commit.metadata, cap)
        except UsageError as error:
            raise UsageError(f"{name[0]}-{name[1]} of the group {group!r}: {error}") from None
        before[name], after[name] = commit, CommittedOffset(edited.base, metadata)
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
            }
        )
    is_conditional = replace(admin, kafka, group, before, after) if execute else None
    return {
        "group": group,
        "state": description.state,
        "verb": verb,
        "executed": execute,
        "conditional": is_conditional,
        "partitions": rows,
    }


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
    elif one.in_log in ("open", "unwritten"):
        reason = f"{IN_LOG[one.in_log]} (at {one.log_end}): wait until it can be read"
    elif one.standing in ("below", "complete") and verb == "skip":
        reason = "it is complete already: nothing is to be skipped"
    elif one.standing in ("incomplete", "beyond") and verb == "replay":
        reason = "it is not complete: it runs when consumers of the group start, without a replay"
    elif one.in_log != "there":
        reason = f"{IN_LOG[one.in_log]}; {ABSENT[verb]}"
    else:
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
    rows = [one | {"offsets": ", ".join(map(str, one["offsets"]))} for one in report["partitions"]]
    print_table(headings, (one.values() for one in rows), numbers=(1, 3, 4, 5, 6))
    if report["executed"]:
        count = sum(len(one["offsets"]) for one in report["partitions"])
        verb: Verb = report["verb"]
        print(f"group {report['group']}: {count} records {DONE[verb]}")
    else:
        print(DRY_RUN)
