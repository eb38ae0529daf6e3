"""`keylane groups offsets | map`: what a group has committed, and what the offset maps in it say.

Each report is what `--json` prints; `None` is what is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.group_descriptions import Partition

SHOWN_CHARACTERS = 40
"""How much of a commit's metadata a table shows; `--json` has all of it."""
SHOWN_RUNS = 12
"""How many runs of incomplete offsets a table shows; `--json` has all of them."""


def selected(selections: Iterable[str], counts: Mapping[str, int]) -> list[Partition]:
    """The partitions that `--topic TOPIC[:N,N-N]` names, of topics with so many partitions. Raises `UsageError`."""
    from keylane.errors import UsageError

    found: dict[Partition, None] = {}
    for text in selections:
        topic, colon, numbers = text.rpartition(":") if ":" in text else (text, "", "")
        if topic not in counts:
            raise UsageError(f"--topic {text}: there is no topic {topic!r}")
        every = range(counts[topic])
        for first, last in _ranges(numbers, text) if colon else [(0, every[-1])]:
            if last not in every:
                raise UsageError(f"--topic {text}: the topic has partitions 0 to {every[-1]}")
            found |= dict.fromkeys((topic, one) for one in range(first, last + 1))
    return list(found)


def _ranges(numbers: str, text: str) -> list[tuple[int, int]]:
    from keylane.errors import UsageError

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
    from keylane.errors import UsageError

    committed = admin.committed_offsets(group)
    if not committed and admin.describe_group(group).state == "dead":
        raise UsageError(f"the group {group!r} does not exist: `keylane groups list` shows those that do")
    wanted = list(selections)
    if not wanted:
        return committed
    names = selected(wanted, admin.topics())
    return {name: committed[name] for name in names if name in committed}


def offsets_report(admin: Admin, group: str, selections: Iterable[str]) -> dict[str, Any]:
    """Committed offsets with their metadata, beside the log's bounds. Raises `UsageError`."""
    committed = committed_by(admin, group, selections)
    starts, ends = admin.log_starts(committed), admin.log_ends(committed)
    rows = []
    for (topic, partition), commit in committed.items():
        start, end = starts[topic, partition], ends[topic, partition]
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": commit.offset,
                "metadata": commit.metadata,
                "log_start_offset": start,
                "log_end_offset": end,
                "lag": None if end is None else max(0, end - commit.offset),
            }
        )
    return {"group": group, "partitions": rows}


def print_offsets(report: dict[str, Any]) -> None:
    """As a table."""
    if not report["partitions"]:
        print("nothing committed")
        return
    headings = ("TOPIC", "PARTITION", "COMMITTED", "LOG START", "LOG END", "LAG", "METADATA")
    names = ("topic", "partition", "committed", "log_start_offset", "log_end_offset", "lag")
    rows = [(*(one[name] for name in names), _cut(one["metadata"])) for one in report["partitions"]]
    print_table(headings, rows, numbers=range(1, 6))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"


def map_report(admin: Admin, group: str, selections: Iterable[str]) -> dict[str, Any]:
    """Every commit's metadata, decoded as an offset map; `metadata_error` says why it is none. Raises `UsageError`."""
    rows = [_map_of(name, commit) for name, commit in committed_by(admin, group, selections).items()]
    return {"group": group, "partitions": rows}


def _map_of(name: Partition, commit: CommittedOffset) -> dict[str, Any]:
    from keylane.errors import MetadataError
    from keylane.offsets import decode
    from keylane.offsets.codec import encoding_of

    row: dict[str, Any] = {
        "topic": name[0],
        "partition": name[1],
        "committed": commit.offset,
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
    }


def print_maps(report: dict[str, Any]) -> None:
    """As a table, and the reasons for what is no map."""
    if not report["partitions"]:
        print("nothing committed")
        return
    headings = ("TOPIC", "PARTITION", "COMMITTED", "HIGHEST COMPLETED", "INCOMPLETE OFFSETS", "ENCODING", "INCOMPLETE")
    names = ("topic", "partition", "committed", "highest_completed", "incomplete_count")
    rows = [
        (*(one[name] for name in names), one["encoding"] or ("no map" if one["metadata_error"] else "none"), _runs(one))
        for one in report["partitions"]
    ]
    print_table(headings, rows, numbers=range(1, 5))
    for one in report["partitions"]:
        if one["metadata_error"]:
            print(f"{one['topic']}-{one['partition']}: {one['metadata_error']}")


def _runs(one: dict[str, Any]) -> str | None:
    if one["incomplete"] is None:
        return None
    runs = [str(first) if first == last else f"{first}–{last}" for first, last in one["incomplete"][:SHOWN_RUNS]]
    left = len(one["incomplete"]) - len(runs)
    return ", ".join(runs) + (f", … ({left} more)" if left else "")
