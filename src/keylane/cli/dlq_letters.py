"""`keylane dlq list | show | redrive`: which letters are asked for, and how reports are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.arguments import milliseconds
from keylane.cli.asking import DRY_RUN, admin_with, settings_of
from keylane.cli.tables import print_table, say
from keylane.desk.letters import Queue, Wanted, redrive_group
from keylane.desk.places import check_topic
from keylane.desk.redrive import LEFT
from keylane.errors import UsageError
from keylane.options import DeadLetter

if TYPE_CHECKING:
    import argparse

    from keylane.cli.asking import Report
    from keylane.pipeline import Pipeline

SHOWN_TEXT = 80
"""Characters of an error's text that a table shows; `--json` has all that the letter has."""


def queue_of(args: argparse.Namespace, topic: str | None = None) -> Queue:
    """The topic that is named, or the pipeline's. Raises `UsageError` for one that is not there."""
    pipeline: Pipeline | None = None
    if args.pipeline:
        from keylane.cli.pipeline_file import load_pipeline

        _, pipeline = load_pipeline(args.pipeline)
    topic = topic or args.dlq or _dead_letter_topic(args.pipeline, pipeline)
    kafka = settings_of(args, pipeline.kafka if pipeline else {})
    admin = admin_with(args, kafka)
    check_topic(topic, admin.topics([topic]))
    group = getattr(args, "group", None) or redrive_group(topic)
    return Queue(topic, group, kafka, admin, pipeline)


def _dead_letter_topic(file: str | None, pipeline: Pipeline | None) -> str:
    if pipeline is None:
        raise UsageError("which dead letters? give their topic, or --pipeline FILE")
    if not isinstance(pipeline.on_exhausted, DeadLetter):
        raise UsageError(f"the pipeline of {file} has no DeadLetter topic (on_exhausted): name a topic")
    return pipeline.on_exhausted.topic


def wanted_of(args: argparse.Namespace) -> Wanted:
    """Raises `UsageError` for a time that is none."""
    return Wanted(
        args.topic,
        args.error,
        args.reason,
        None if args.key is None else args.key.encode(),
        None if args.since is None else milliseconds("--since", args.since),
        None if args.until is None else milliseconds("--until", args.until),
    )


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
            say(f"{one['letter']}: key {one['key']}, value {one['value']}")
    say(f"{len(rows)} of {report['matching']} letters in {report['topic']}")


def _place(one: Report) -> str | None:
    if one["topic"] is None:
        return None
    where = "" if one["partition"] is None else f":{one['partition']}"
    at = "" if one["offset"] is None else f"@{one['offset']}"
    return f"{one['topic']}{where}{at}"


def _short(text: str | None) -> str | None:
    line = None if text is None else " ".join(text.split())
    return line if line is None or len(line) <= SHOWN_TEXT else f"{line[:SHOWN_TEXT]}…"


# --- redrive ---


def print_redrive(report: Report) -> None:
    """As a table, and a line for each reason that left some."""
    if report["to"]:
        print_table(("TOPIC", "LETTERS"), report["to"].items(), numbers=[1])
    for reason, count in report["left"].items():
        say(f"{count} letters {LEFT[reason]}")
    for refusal in report["refusals"]:
        say(refusal)
    rest = f"{report['redriven_before']} came back before, {report['not_selected']} are not selected"
    say(f"{report['letters']} letters {'sent back' if report['executed'] else 'would go back'}; {rest}")
    say(f"position: group {report['group']}" if report["executed"] else DRY_RUN)
