"""Mutants of rules by key, and of single records that an operator skips or parks while members run."""

from __future__ import annotations

from mutants import Mutant

KEYS = "unit/engine/test_engine_keys.py"
PASSING = "unit/engine/test_engine_passing.py"
COMMANDS = "unit/operations/test_commands.py"
RECORDS = "integration/test_records_cli.py"

MUTANTS = [
    Mutant(
        "a held key runs",
        "flow/keys.py",
        'return "go" if queue.lets_in(item, now) else "wait"',
        'return "go"',
        f"{KEYS}::test_a_held_key_waits_and_all_others_go_on",
    ),
    Mutant(
        "of several in one call only the first is looked at",
        "flow/letting_in.py",
        "gate.about(call.payloads[:1] if call.ordered else call.payloads)",
        "gate.about(call.payloads[:1])",
        f"{KEYS}::test_of_what_goes_together_only_what_is_held_is_stopped",
    ),
    Mutant(
        "records of several keys that follow one another go together whatever is held",
        "flow/core.py",
        "may_follow = self._may_chain and (gate is None or not gate.looks_at_each)",
        "may_follow = self._may_chain",
        f"{KEYS}::test_of_what_goes_together_only_what_is_held_is_stopped",
    ),
    Mutant(
        "what is behind a held record in its batch runs before it",
        "flow/letting_in.py",
        "            if together is not None:\n                undo(together)\n            if not",
        "            if not",
        f"{KEYS}::test_a_held_key_waits_and_all_others_go_on",
    ),
    Mutant(
        "a limit uses up no token",
        "flow/keys.py",
        "            self.bucket.spend(1, now)\n",
        "",
        f"{KEYS}::test_a_slow_key_starts_at_its_rate_and_others_as_ever",
    ),
    Mutant(
        "a skip counts before a hold",
        "flow/keys.py",
        '{"hold": 0, "skip": 1, "limit": 2}',
        '{"hold": 1, "skip": 0, "limit": 2}',
        f"{KEYS}::test_of_several_rules_a_hold_counts_before_a_skip_and_that_before_the_lowest_limit",
    ),
    Mutant(
        "at most once counts a skipped record as one that was committed before",
        "consumer/modes/at_most_once.py",
        "        if passed_over:\n",
        "        if False:\n",
        f"{KEYS}::test_a_skipped_key_is_complete_without_having_run",
    ),
    Mutant(
        "held records of a paused partition keep the tokens of others",
        "flow/keys.py",
        "            (due if item.source.goes_on else stands).append(item)\n",
        "            due.append(item)\n",
        f"{KEYS}::test_a_paused_partition_does_not_use_up_what_others_may_start",
    ),
    Mutant(
        "what was held stays held when its rule is gone",
        "flow/core.py",
        '        self._go_on(sorted(before, key=attrgetter("number"), reverse=True))\n',
        "",
        f"{KEYS}::test_a_held_key_waits_and_all_others_go_on",
    ),
    Mutant(
        "nobody says that held records stop their partition",
        "consumer/held_keys.py",
        "if count[one.source] and one.is_full]",
        "if False]",
        f"{KEYS}::test_held_records_keep_the_map_within_its_bounds_and_a_line_says_why_nothing_moves",
    ),
    Mutant(
        "a member that starts later knows no rules",
        "consumer/settings.py",
        "        if self.keys:\n",
        "        if False:\n",
        f"{COMMANDS}::test_a_consumer_that_runs_is_told_all_rules_that_hold",
    ),
    Mutant(
        "a rule is taken back with all others",
        "operations/commands.py",
        "[one for one in self.settings.keys if one.where != where]",
        "[]",
        f"{COMMANDS}::test_what_holds_is_what_a_consumer_does_that_was_told_all_of_it",
    ),
    Mutant(
        "a missing key is like an empty one",
        "flow/keys.py",
        "    if value is None:\n        return False\n",
        '    value = value or b""\n',
        f"{KEYS}::test_an_expression_is_about_records",
    ),
    Mutant(
        "done is said before a commit has the record",
        "consumer/passing.py",
        "if self.mark is not None and partition.committed_changes >= self.mark:",
        "if self.mark is not None:",
        f"{PASSING}::test_a_record_that_waits_is_skipped_and_its_key_goes_on_and_done_is_said_when_a_commit_has_it",
    ),
    Mutant(
        "a record of a partition that was lost is said to be done",
        "consumer/passing.py",
        "        return None if partition.wanted else GIVEN_UP\n",
        '        return None if partition.wanted else ""\n',
        f"{PASSING}::test_of_a_partition_that_is_lost_before_its_commit_nobody_says_that_it_is_done",
    ),
    Mutant(
        "a record that is taken out of the schedule comes back when its time has come",
        "flow/retries.py",
        "        self._heap.remove(found)\n        heapq.heapify(self._heap)\n",
        "",
        f"{PASSING}::test_a_record_that_waits_is_skipped_and_its_key_goes_on_and_done_is_said_when_a_commit_has_it",
    ),
    Mutant(
        "a record is taken out beyond what a map can say",
        "flow/core.py",
        "elif not source.is_due(number) and number <= source.owner.may_start():",
        "elif not source.is_due(number):",
        f"{PASSING}::test_what_is_too_far_ahead_of_what_is_committed_is_left_there",
    ),
    Mutant(
        "a letter that cannot be produced ends the run",
        "consumer/deliveries.py",
        "        if dead.parked is not None:\n",
        "        if False:\n",
        f"{PASSING}::test_a_letter_that_is_refused_leaves_the_record_as_it_was_and_the_run_goes_on",
    ),
    Mutant(
        "single records are taken out however late the command comes",
        "operations/commands.py",
        "isinstance(self.asked, Seek | Passing | Replay) and now_ms",
        "isinstance(self.asked, Seek) and now_ms",
        f"{COMMANDS}::test_only_what_is_done_once_is_ever_late",
    ),
    Mutant(
        "records are asked of lanes that do not have them",
        "spark/controls.py",
        "{one for one, has in self._has.items() if of.intersection(has)}",
        "set(self._has)",
        "unit/spark/test_spark_controls.py"
        "::test_single_records_are_asked_of_the_lanes_that_have_their_partitions_and_a_lane_that_went_says_nothing",
    ),
    Mutant(
        "a parked record has a second letter when its park is done once more",
        "cli/records_park.py",
        "                there.add(place)\n",
        "                pass\n",
        f"{RECORDS}::test_a_park_that_ended_between_letter_and_commit_is_done_by_the_next_one_without_a_second_letter",
    ),
    Mutant(
        "a letter that came back stands for its record",
        "cli/records_park.py",
        "if of is not None and not is_back and",
        "if of is not None and",
        f"{RECORDS}::test_a_letter_that_came_back_stands_for_nothing_any_more",
    ),
    Mutant(
        "a record is complete before its letter is there",
        "cli/records_edit.py",
        "    had_letters = parking.write(every) if execute and parking is not None else None\n"
        "    is_conditional = _replaced(admin, kafka, group, before, after, parking) if execute else None\n",
        "    is_conditional = _replaced(admin, kafka, group, before, after, parking) if execute else None\n"
        "    had_letters = parking.write(every) if execute and parking is not None else None\n",
        f"{RECORDS}::test_a_park_that_ended_between_letter_and_commit_is_done_by_the_next_one_without_a_second_letter",
    ),
]
