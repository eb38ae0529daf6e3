"""Where groups stand: members, committed offsets, what their offset maps say, lag, and what remains.

Each report is what `--json` prints; `None` is what is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import MetadataError, UsageError
from keylane.kafka.admin import RefusedError
from keylane.kafka.group_standing import offset_map_of
from keylane.offsets import decode
from keylane.offsets.codec import encoding_of, map_origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from keylane.desk import Report
    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.group_descriptions import Partition


def no_consumer_group(admin: Admin, group: str) -> UsageError:
    """What to raise for a group that is not there, or is one of another kind."""
    if group in admin.share_groups():
        return UsageError(
            f"the group {group!r} is a share group, which has no offset maps: Kafka's kafka-share-groups.sh describes, "
            "resets and deletes it"
        )
    return UsageError(f"the group {group!r} does not exist: `keylane groups list` shows those that do")


def list_report(admin: Admin) -> list[Report]:
    """Every group, with how many members it has, its lag, and what remains; null where that is not known, as of share
    groups and of one that this user may not look at. Ends are asked for all groups together."""
    groups = admin.groups()
    stands = {one.group: _members_and_commits(admin, one.group) for one in groups}
    names = {name for found in stands.values() if found is not None for name in found[1]}
    starts, ends = admin.log_starts(names), admin.log_ends(names, read_committed=False)
    rows: list[Report] = []
    for one in groups:
        members, lag, remaining = None, None, None
        if (found := stands[one.group]) is not None:
            members, committed = found
            parts = [
                _partition_report(name, commit, starts[name], ends[name], None) for name, commit in committed.items()
            ]
            lag, remaining = _total(parts, "lag"), _total(parts, "remaining")
        rows.append(_listed(one.group, one.state, one.protocol, members, lag, remaining))
    return rows + [_listed(name, state, "share", None, None, None) for name, state in admin.share_groups().items()]


def _listed(
    group: str, state: str, protocol: str, members: int | None, lag: int | None, remaining: int | None
) -> Report:
    told = {"group": group, "state": state, "protocol": protocol}
    return told | {"members": members, "lag": lag, "remaining": remaining}


def _members_and_commits(admin: Admin, group: str) -> tuple[int, Mapping[Partition, CommittedOffset]] | None:
    try:
        return len(admin.describe_group(group).members), admin.committed_offsets(group)
    except RefusedError:  # not this user's to see
        return None


def gather(
    admin: Admin,
    group: str,
    committed: Mapping[Partition, CommittedOffset] | None = None,
    *,
    is_heard: bool = False,
) -> Report:
    """Everything about a group, as `--json` prints it (docs: `keylane groups describe --help`); `committed` is asked
    for when it is not given. `is_heard`: members tell of themselves, and the coordinator may not know of them yet:
    then the state is "starting". Raises `UsageError` for a group that does not exist.

    `offset_map` is null without metadata, and for metadata that is not an offset map, or a copied one, which
    `metadata_error` then says; `map_origin` is as in `keylane.offsets.codec.MapOrigin`. `remaining` is what is really
    left: `lag` less what the offset map has complete, and less what retention has dropped. What is not known (an offset
    without a commit, the end of a topic that is gone) is null. `unassigned` are partitions that no member of a stable
    group has, of topics of which one has others.
    """
    description = admin.describe_group(group)
    if committed is None:
        committed = admin.committed_offsets(group)
    is_starting = is_heard and description.state == "dead"
    if description.state == "dead" and not committed and not is_heard:
        raise no_consumer_group(admin, group)
    owners = {partition: member.member_id for member in description.members for partition in member.assignment}
    unassigned = _unassigned(admin, owners) if description.state == "stable" else []
    names = sorted({*committed, *owners, *unassigned})
    starts, ends = admin.log_starts(names), admin.log_ends(names, read_committed=False)
    partitions = [
        _partition_report(name, committed.get(name), starts[name], ends[name], owners.get(name)) for name in names
    ]
    return {
        "group": group,
        "state": "starting" if is_starting else description.state,
        "protocol": description.protocol,
        "assignor": description.assignor or None,
        "coordinator": description.coordinator or None,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "group_instance_id": member.group_instance_id,
                "assignment": _by_topic(member.assignment),
            }
            for member in description.members
        ],
        "partitions": partitions,
        "unassigned": [f"{topic}-{partition}" for topic, partition in unassigned],
        "lag": _total(partitions, "lag"),
        "remaining": _total(partitions, "remaining"),
    }


def _unassigned(admin: Admin, owners: Collection[Partition]) -> list[Partition]:
    """Partitions that nobody has, of topics of which somebody has others."""
    topics = {topic for topic, _ in owners}
    counts = admin.topics() if topics else {}
    every = [(topic, partition) for topic in sorted(topics) for partition in range(counts.get(topic, 0))]
    return [name for name in every if name not in owners]


def _total(partitions: list[Report], name: str) -> int | None:
    known = [one[name] for one in partitions if one[name] is not None]
    return sum(known) if known else None


def _partition_report(
    partition: Partition,
    committed: CommittedOffset | None,
    log_start: int | None,
    log_end: int | None,
    member_id: str | None,
) -> Report:
    offset_map, metadata_error, lag, remaining = None, None, None, None
    if committed is not None:
        decoded, metadata_error = offset_map_of(committed)
        if committed.metadata and metadata_error is None:
            offset_map = {
                "incomplete": decoded.incomplete_count,
                "highest_completed": decoded.highest_completed,
            }
        if log_start is not None and log_end is not None:
            lag, remaining = max(0, log_end - committed.offset), decoded.remaining(log_start, log_end)
    return {
        "topic": partition[0],
        "partition": partition[1],
        "committed": committed.offset if committed is not None else None,
        "metadata": committed.metadata if committed is not None else None,
        "leader_epoch": None if committed is None or committed.leader_epoch < 0 else committed.leader_epoch,
        "offset_map": offset_map,
        "map_origin": None if committed is None else map_origin(committed.metadata, committed.leader_epoch),
        "metadata_error": metadata_error,
        "log_start_offset": log_start,
        "log_end_offset": log_end,
        "lag": lag,
        "remaining": remaining,
        "member_id": member_id,
    }


def _by_topic(assignment: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in assignment:
        topics.setdefault(topic, []).append(partition)
    return topics


def named_in(selections: Iterable[str]) -> list[str]:
    """The topics that `--topic TOPIC[:N,N-N]` names."""
    return [_parts_of(text)[0] for text in selections]


def _parts_of(text: str) -> tuple[str, str, str]:
    """Topic, colon and numbers; the last two are empty for all partitions."""
    return text.rpartition(":") if ":" in text else (text, "", "")


def selected(selections: Iterable[str], counts: Mapping[str, int]) -> list[Partition]:
    """The partitions that `--topic TOPIC[:N,N-N]` names, of topics with so many partitions. Raises `UsageError`."""
    found: dict[Partition, None] = {}
    for text in selections:
        topic, colon, numbers = _parts_of(text)
        if topic not in counts:
            raise UsageError(f"--topic {text}: there is no topic {topic!r}")
        every = range(counts[topic])
        for first, last in _ranges(numbers, text) if colon else [(0, every[-1])]:
            if last not in every:
                raise UsageError(f"--topic {text}: the topic has partitions 0 to {every[-1]}")
            found |= dict.fromkeys((topic, one) for one in range(first, last + 1))
    return list(found)


def _ranges(numbers: str, text: str) -> list[tuple[int, int]]:
    ranges = []
    for piece in numbers.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(first) > int(last)):
            raise UsageError(
                f"--topic {text}: {piece!r} is no partition or range of them; give some like flights:0,3-5"
            )
        ranges.append((int(first), int(last or first)))
    return ranges


def committed_by(admin: Admin, group: str, selections: Iterable[str]) -> dict[Partition, CommittedOffset]:
    """What the group has committed, of what is selected (or all). Raises `UsageError` for a group that is not there."""
    committed = admin.committed_offsets(group)
    if not committed and admin.describe_group(group).state == "dead":
        raise no_consumer_group(admin, group)
    wanted = list(selections)
    if not wanted:
        return committed
    names = selected(wanted, admin.topics(named_in(wanted)))
    return {name: committed[name] for name in names if name in committed}


def map_of(name: Partition, commit: CommittedOffset) -> Report:
    """A commit's metadata, decoded as an offset map; `metadata_error` says why it is none, or not believed."""
    row: Report = {
        "topic": name[0],
        "partition": name[1],
        "committed": commit.offset,
        "leader_epoch": commit.leader_epoch if commit.leader_epoch >= 0 else None,
        "map_origin": map_origin(commit.metadata, commit.leader_epoch),
        "encoding": None,
        "highest_completed": None,
        "incomplete_count": None,
        "incomplete": None,
        "metadata_error": None,
    }
    if not commit.metadata:
        return row
    try:
        found = decode(commit.metadata, commit.offset)
    except MetadataError as error:
        return row | {"metadata_error": str(error)}
    return row | {
        "encoding": encoding_of(commit.metadata),
        "highest_completed": found.highest_completed,
        "incomplete_count": found.incomplete_count,
        "incomplete": [[run[0], run[-1]] for run in found.runs],
        "metadata_error": offset_map_of(commit)[1],
    }
