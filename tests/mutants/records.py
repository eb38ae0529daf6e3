"""Mutants of `keylane records`: which records run again, or never, and what is refused."""

from __future__ import annotations

from mutants import Mutant

REPLAYED = "integration/test_records_cli.py::test_a_replayed_record_runs_again_once_and_no_other"

STARTS = "unit/kafka/test_starts.py"

MUTANTS = [
    Mutant(
        "nobody hears who has edited a group's map",
        "operations/operator.py",
        "    writer.write(result.key, result.value(group))\n",
        "",
        "integration/test_records_cli.py::test_what_was_done_without_members_is_in_the_log_of_a_group_that_was_operated",
    ),
    Mutant(
        "a replay lets everything behind the record run again",
        "offsets/edits.py",
        "OffsetMap(base, [*committed.runs, *offsets], committed.highest_completed)",
        "OffsetMap(base)",
        REPLAYED,
        "crash matrix: a record that is said to be replayed runs again, and no other one does",
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
        "what is to run again while members run is complete in the commit",
        "kafka/starts.py",
        "            edited = run_again(start, again)\n",
        "            edited = start.offsets if run_again(start, again) else start.offsets\n",
        f"{STARTS}::test_what_is_to_run_again_is_committed_as_incomplete_and_nothing_else_changes",
    ),
    Mutant(
        "a record that is not complete is said to run again",
        "kafka/starts.py",
        'if standing(start.offsets, offset) in ("incomplete", "beyond"):',
        "if False:",
        f"{STARTS}::test_one_record_that_cannot_run_again_leaves_its_partition_as_it_was",
    ),
    Mutant(
        "a map that the broker does not take is begun with",
        "kafka/starts.py",
        "replace(starts[one.name], offsets=one.before, not_sought=TOO_LARGE)",
        "starts[one.name]",
        f"{STARTS}::test_a_map_that_the_broker_does_not_take_leaves_the_partition_as_it_was",
    ),
    Mutant(
        "who keeps what was processed is asked after the commit",
        "kafka/starts.py",
        "            self._check_starts([made])\n",
        "",
        f"{STARTS}::test_who_keeps_what_was_processed_may_refuse_that_it_runs_again",
    ),
    Mutant(
        "a member has its partitions while its client closes, which may never end",
        "kafka/group_member.py",
        "                    self._give_all_back()\n",
        "                    pass\n",
        "unit/kafka/test_group_member.py::test_a_member_gives_all_back_before_its_client_closes",
    ),
    Mutant(
        "who asks is told that all went where it was sought",
        "kafka/group_member.py",
        "{(one.topic, one.partition): one.not_sought for one in starts}",
        '{(one.topic, one.partition): "" for one in starts}',
        "unit/kafka/test_group_member.py::test_who_sought_is_told_where_it_went_on_and_why_not_where_it_was_sought",
    ),
    Mutant(
        "with transactions a record is replayed by a plain commit",
        "parallel_consumer.py",
        "        check_replay(self._pipeline)\n        self._seek(asked.targets",
        "        self._seek(asked.targets",
        "integration/test_operations_replay.py::test_with_transactions_nothing_is_replayed_while_members_run",
    ),
    Mutant(
        "a replay is asked of lanes that do not have the record",
        "spark/controls.py",
        "elif isinstance(what, Passing | Replay):",
        "elif isinstance(what, Passing):",
        "unit/spark/test_spark_controls.py::test_single_records_are_asked_of_the_lanes_that_have_their_partitions_and_a_lane_that_went_says_nothing",
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
