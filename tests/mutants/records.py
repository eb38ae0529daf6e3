"""Mutants of `keylane records`: which records run again, or never, and what is refused."""

from __future__ import annotations

from mutants import Mutant

REPLAYED = "integration/test_records_cli.py::test_a_replayed_record_runs_again_once_and_no_other"

MUTANTS = [
    Mutant(
        "a replay lets everything behind the record run again",
        "offsets/edits.py",
        "OffsetMap(base, [*committed.runs, *offsets], committed.highest_completed)",
        "OffsetMap(base)",
        REPLAYED,
    ),
    Mutant(
        "a skipped record stays the first that runs",
        "offsets/edits.py",
        "    base = edited.first_incomplete(edited.base)\n",
        "    base = edited.base\n",
        "integration/test_records_cli.py::test_a_skip_moves_the_committed_offset_over_the_first_record",
    ),
    Mutant(
        "a skip reaches the records before it that were not read yet",
        "offsets/edits.py",
        "incomplete = (*committed.runs, range(committed.highest_completed + 1, highest + 1))",
        "incomplete = (*committed.runs,)",
        "property/offsets/test_edits.py::test_a_skip_makes_these_complete_and_no_other",
    ),
    Mutant(
        "an edit is taken that a consumer cannot carry on",
        "offsets/edits.py",
        "if len(made) > cap or (is_harder and not _stays_within(edited, DispatchBound.for_cap(cap))):",
        "if len(made) > cap:",
        "unit/offsets/test_edits.py::test_a_map_that_a_consumer_could_not_write_later_is_refused",
    ),
    Mutant(
        "an edit changes the encoding of another program's map",
        "offsets/edits.py",
        "    made = _kept(edited, encoding)\n",
        "    made = None\n",
        "property/offsets/test_edits.py::test_an_edit_keeps_the_encoding",
    ),
    Mutant(
        "an edit overwrites what somebody has committed since it was planned",
        "kafka/replacing.py",
        '    _check(admin, group, before, "nothing was changed: look again, and decide anew")\n',
        "",
        "integration/test_records_cli.py::test_somebody_else_commits_before",
    ),
    Mutant(
        "an edit that somebody overwrites counts as done",
        "kafka/replacing.py",
        '    _check(admin, group, after, "look at what is committed, and decide anew")\n',
        "",
        "integration/test_records_cli.py::test_somebody_else_commits_in_between",
    ),
    Mutant(
        "an edit makes no use of the broker's conditional commits",
        "kafka/replacing.py",
        "    is_conditional = _replaced_if(kafka, group, before, after)\n",
        "    is_conditional = False\n",
        "integration/test_records_cli.py::test_somebody_else_commits_in_between",
    ),
    Mutant(
        "a dry run of a replay commits",
        "cli/records_edit.py",
        "_replaced(admin, kafka, group, before, after, parking) if execute else None",
        "_replaced(admin, kafka, group, before, after, parking)",
        REPLAYED,
    ),
    Mutant(
        "a record that compaction took is replayed",
        "desk/records.py",
        '    return "gone" if record is None else "there", record\n',
        '    return "there", record\n',
        "integration/test_records_cli.py::test_what_compaction_took_is_refused",
    ),
    Mutant(
        "a record that retention took is replayed",
        "desk/records.py",
        "    if one.offset < start:\n",
        "    if False:\n",
        "integration/test_records_cli.py::test_what_the_log_has_no_longer_is_refused",
    ),
    Mutant(
        "a record's payload is shown to everybody",
        "desk/records.py",
        "if record is not None and payloads else {}",
        "if record is not None else {}",
        "integration/test_records_cli.py::test_show",
    ),
]
