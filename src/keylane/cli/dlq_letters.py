"""`keylane dlq list | show`: which letters there are, which are wanted, and what is shown of them.

Each report is what `--json` prints; `None` is what a letter does not say.
"""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.cli.arguments import check_topic, milliseconds, place
from keylane.cli.asking import admin_with, settings_of
from keylane.cli.payloads import payload, sizes, time_text
from keylane.cli.tables import print_table
from keylane.consumer.dead_letters import Death, Letter, read
from keylane.errors import UsageError
from keylane.kafka.places import for_records
from keylane.kafka.redriving import read_committed
from keylane.offsets import decode
from keylane.options import DeadLetter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from keylane.cli.asking import Report, Settings
    from keylane.kafka.admin import Admin
    from keylane.offsets import OffsetMap
    from keylane.pipeline import Pipeline
    from keylane.records import Record

SHOWN_TEXT = 80
"""Characters of an error's text that a table shows; `--json` has all that the letter has."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A dead-letter topic, and who looks at it."""

    topic: str
    group: str
    """The redrive's."""
    kafka: Settings
    """Client settings."""
    admin: Admin
    pipeline: Pipeline | None = None
    """Whose deserializers show payloads."""

    def redriven(self) -> dict[int, OffsetMap]:
        """What came back already, by partition. Raises `DecodeError` for a group that is no redrive's."""
        committed = self.admin.committed_offsets(self.group, [self.topic])
        return {name[1]: decode(one.metadata, one.offset) for name, one in committed.items()}


def queue_of(args: argparse.Namespace, topic: str | None = None) -> Queue:
    """The topic that is named, or the pipeline's. Raises `UsageError` for one that is not there."""
    pipeline: Pipeline | None = None
    if args.pipeline:
        from keylane.cli.pipeline_file import load_pipeline

        _, pipeline = load_pipeline(args.pipeline)
    topic = topic or args.dlq or _dead_letter_topic(args.pipeline, pipeline)
    # A redrive's offsets are in its transactions, and so at the brokers, wherever the pipeline's group is.
    kafka = for_records(settings_of(args, pipeline.kafka if pipeline else {}))
    admin = admin_with(args, kafka)
    check_topic(topic, admin.topics())
    group = getattr(args, "group", None) or f"keylane-redrive-{topic}"
    return Queue(topic, group, kafka, admin, pipeline)


def _dead_letter_topic(file: str | None, pipeline: Pipeline | None) -> str:
    if pipeline is None:
        raise UsageError("which dead letters? give their topic, or --pipeline FILE")
    if not isinstance(pipeline.on_exhausted, DeadLetter):
        raise UsageError(f"the pipeline of {file} has no DeadLetter topic (on_exhausted): name a topic")
    return pipeline.on_exhausted.topic


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters; None is any."""

    topic: str | None = None
    error: str | None = None
    reason: str | None = None
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Wanted:
        """Raises `UsageError` for a time that is none."""
        return cls(
            args.topic,
            args.error,
            args.reason,
            None if args.key is None else args.key.encode(),
            None if args.since is None else milliseconds("--since", args.since),
            None if args.until is None else milliseconds("--until", args.until),
        )

    def has(self, record: Record, death: Death) -> bool:
        """Whether this letter is one of them."""
        error = death.error_class or ""
        return (
            self.topic in (None, death.topic)
            and (self.error is None or self.error in (error, re.split(r"[.$]", error)[-1]))
            and (self.reason is None or self.reason in (death.error_text or ""))
            and self.key in (None, record.raw_key)
            and (self.since_ms is None or record.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or record.timestamp_ms < self.until_ms)
        )


def letters(queue: Queue) -> Iterator[tuple[Record, Letter]]:
    """Every committed letter, those of a partition in their order."""
    for batch in read_committed(queue.kafka, queue.topic):
        for record in batch:
            yield record, read(record.headers)


# --- list ---


def list_report(queue: Queue, wanted: Wanted, args: argparse.Namespace) -> Report:
    """How many are wanted, and the oldest `--limit` of them, in the order in which they were written, with all that is
    shown of each."""
    if args.limit < 0:
        raise UsageError(f"--limit {args.limit}: give a whole number from 0 on")
    redriven = queue.redriven()
    oldest: list[tuple[Record, Letter, bool]] = []
    matching = 0
    for record, letter in letters(queue):
        came_back = record.partition in redriven and redriven[record.partition].is_complete(record.offset)
        if not wanted.has(record, letter.death) or (args.waiting and came_back):
            continue
        matching += 1
        insort(oldest, (record, letter, came_back), key=lambda one: _when(one[0]))  # partitions come as brokers answer
        del oldest[args.limit :]
    rows = [
        _row(record, letter) | {"redriven": came_back} | _payload(queue, record, letter, args)
        for record, letter, came_back in oldest
    ]
    return {"topic": queue.topic, "group": queue.group, "matching": matching, "letters": rows}


def _when(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


def _row(record: Record, letter: Letter) -> Report:
    death = letter.death
    return {
        "letter": f"{record.topic}:{record.partition}@{record.offset}",
        "written": time_text(record.timestamp_ms),
        "kind": death.kind,
        "topic": death.topic,
        "partition": death.partition,
        "offset": death.offset,
        "timestamp": None if death.timestamp_ms is None else time_text(death.timestamp_ms),
        "error": death.error_class,
        "reason": death.error_text,
        "attempts": death.attempts,
        "rounds": letter.rounds,
    }


def print_list(report: Report) -> None:
    """As a table."""
    headings = ("LETTER", "WRITTEN", "FROM", "ERROR", "REASON", "ATTEMPTS", "ROUNDS", "REDRIVEN")
    rows = [
        (
            one["letter"],
            one["written"],
            _place(one),
            one["error"],
            _short(one["reason"]),
            one["attempts"],
            one["rounds"],
            "yes" if one["redriven"] else "no",
        )
        for one in report["letters"]
    ]
    if rows:
        print_table(headings, rows, numbers=(5, 6))
    for one in report["letters"]:
        if "key" in one:
            print(f"{one['letter']}: key {one['key']}, value {one['value']}")
    print(f"{len(rows)} of {report['matching']} letters in {report['topic']}")


def _place(one: Report) -> str | None:
    if one["topic"] is None:
        return None
    where = "" if one["partition"] is None else f":{one['partition']}"
    at = "" if one["offset"] is None else f"@{one['offset']}"
    return f"{one['topic']}{where}{at}"


def _short(text: str | None) -> str | None:
    line = None if text is None else " ".join(text.split())
    return line if line is None or len(line) <= SHOWN_TEXT else f"{line[:SHOWN_TEXT]}…"


# --- show ---


def show_report(args: argparse.Namespace) -> Report:
    """One letter. Raises `UsageError` for a name that is none, and for a letter that is not there."""
    topic, partition, offset = place("letter", args.letter)
    queue = queue_of(args, topic)
    for record, letter in letters(queue):
        if (record.partition, record.offset) == (partition, offset):
            return _row(record, letter) | sizes(record, letter.headers) | _payload(queue, record, letter, args)
    raise UsageError(f"{args.letter}: there is no such letter: `keylane dlq list {topic}` shows those that are there")


def _payload(queue: Queue, record: Record, letter: Letter, args: argparse.Namespace) -> Report:
    """Key, value and headers of the record, where they are asked for."""
    if not args.payload:
        return {}
    return payload(record, letter.death.topic or record.topic, letter.headers, queue.pipeline)
