"""Mutants of kept steps: guarantee 11 of the design."""

from __future__ import annotations

from mutants import Mutant
from mutants.faults import after, always, argument, before, both, drop, instead, never

LOG = "unit/delivery/test_step_log.py"
STORED = "unit/delivery/test_stored_steps.py"
TABLE = "unit/delivery/test_step_table.py"
READ = "self._loads_to = 0; self._read_on()"

MUTANTS = [
    Mutant(
        "guarantee 11",
        "an owner appends no mark: who was frozen goes on appending behind what it has read",
        "StepLog._initialised",
        both(before("Mark", READ), drop("Mark")),
        f"{LOG}::test_nothing_is_acknowledged_to_an_owner_of_before_once_the_next_one_has_read",
    ),
    Mutant(
        "guarantee 11",
        "an owner reads the log before its mark is there",
        "StepLog._initialised",
        before("Mark", READ),
        f"{LOG}::test_whatever_of_its_opening_is_over_when_the_owner_of_before_appends",
    ),
    Mutant(
        "guarantee 11",
        "an answer counts before it is acknowledged",
        "StepLog._write",
        after("append _unanswered", "told(None)"),
        f"{LOG}::test_the_next_owner_has_what_was_acknowledged_to_the_one_before",
    ),
    Mutant(
        "guarantee 11",
        "an owner that was replaced takes the next epoch all the same",
        "StepLog._begin",
        argument("init", 0, "None"),
        f"{LOG}::test_it_is_not_where_another_owner_has_come_meanwhile",
    ),
    Mutant(
        "guarantee 11",
        "what has no acknowledgement is not appended again",
        "StepLog._initialised",
        drop("_append write"),
        f"{LOG}::test_an_answer_whose_acknowledgement_does_not_come_is_appended_again_in_a_new_epoch",
    ),
    Mutant(
        "guarantee 11",
        "what an owner of before has appended late is believed",
        "StepTable.take",
        never("producer _owner"),
        f"{TABLE}::test_what_an_earlier_owner_appends_behind_the_mark_of_a_later_one_is_not_believed",
    ),
    Mutant(
        "guarantee 11",
        "half an answer of one owner is put together with the half of the next",
        "StepTable.take",
        drop("_begun clear"),
        f"{TABLE}::test_the_pieces_of_two_owners_are_not_put_together",
    ),
    Mutant(
        "guarantee 11",
        "another record at the place of the first has its answer",
        "steps.formats:_encoded",
        instead("checksum", "0"),
        "property/delivery/test_step_records.py::test_what_is_written_is_read_back",
    ),
    Mutant(
        "guarantee 11",
        "what was marked in another topic of the name is believed",
        "kafka.step_topics:StepTopics.begins",
        always("metadata"),
        "integration/test_steps.py::test_who_may_not_delete_marks_what_is_of_no_use_and_the_next_owner_begins_there",
    ),
    Mutant(
        "guarantee 11",
        "a record that was processed meanwhile is paid for again",
        "StoredSteps._found",
        drop("_claim_lost"),
        f"{STORED}::test_a_record_that_was_processed_meanwhile_is_not_paid_for",
    ),
    Mutant(
        "guarantee 11",
        "of two that call at once each is given its own answer",
        "StoredSteps.keep",
        after("_found", "found = answer"),
        f"{STORED}::test_of_two_that_call_at_once_the_first_answer_is_given_to_both",
    ),
]
