"""Mutants of what knows its log, and of what others may write: guarantees 9 and 12 of the design."""

from __future__ import annotations

from mutants import Mutant
from mutants.faults import always, answer, before, begin, instead, never, value_of

STORE = "unit/delivery/test_exactly_once.py"
MAPS = "integration/test_maps_of_other_logs.py"
NAMES = "unit/coordinator/replicated/test_topic_names.py"
MOVED = "integration/test_offsets_move.py"

SIMULATED = (
    "property/engine/test_simulation.py::test_no_effect_is_lost_or_repeated_when_the_store_or_the_log_is_another_one"
)
PLANS = "unit/spark/test_structured_plans.py"
SINK = "unit/spark/test_exact_protocol.py"

MUTANTS = [
    Mutant(
        "guarantee 12",
        "a map does not say that it was committed with an epoch",
        "offsets.codec:_marked",
        instead("index()", "_ - 1"),
        "property/offsets/test_codec_roundtrip.py::test_a_mark_changes_nothing_of_the_map_and_costs_next_to_nothing",
    ),
    Mutant(
        "guarantee 12",
        "a copied map is one of our own",
        "offsets.codec:map_origin",
        answer("'own'"),
        "unit/engine/test_engine_start.py::test_a_marked_map_without_an_epoch_was_copied",
    ),
    Mutant(
        "guarantee 12",
        "a copied map is believed where a repeat would break the promise",
        "StartRule.of",
        instead("on_copied_map", "'run_again'"),
        "unit/engine/test_engine_start.py::test_by_default_a_mode_fails_whose_promise_a_repeat_would_break",
    ),
    Mutant(
        "guarantee 12",
        "a commit has an epoch before the end of a foreign map was read",
        "ReadEpoch.observe",
        instead("_unknown_until", "0"),
        "unit/offsets/test_read_epoch.py::test_beside_a_map_without_one_there_is_none_before_the_maps_end_was_read",
    ),
    Mutant(
        "guarantee 12",
        "a leader that is new is believed when it says that its log ends earlier",
        "log_changes:changes_of",
        never("doubtful pause"),
        "unit/kafka/test_log_changes.py::test_a_leader_that_is_new_is_asked_twice",
    ),
    Mutant(
        "guarantee 12",
        "a map that nobody could check is not held against the records",
        "Partition._check_committed_map",
        never("committed_until"),
        f"{MAPS}::test_then_the_map_is_cut_at_the_first_record_of_a_later_leader",
    ),
    Mutant(
        "guarantee 12",
        "a group's commits go from the source before they are at the target",
        "moving:move",
        before("replace", "source.admin.delete_offsets(group, plan.copies)"),
        f"{MOVED}::test_killed_at_each_step_it_is_made_up_for",
    ),
    Mutant(
        "guarantee 12",
        "a group's other commits at the target are overwritten",
        "moving:planned",
        never("others"),
        f"{MOVED}::test_nothing_is_overwritten",
    ),
    Mutant(
        "guarantee 12",
        "another record at a processed place counts as processed",
        "checksums:checksum",
        answer("0"),
        f"{STORE}::test_another_record_at_the_same_place_ends_the_run",
    ),
    Mutant(
        "guarantee 12",
        "a store that lacks what a map has complete is taken for the right one",
        "delivery.positions:unseen",
        answer("[]"),
        f"{STORE}::test_what_is_complete_above_the_committed_offset_counts_as_well",
    ),
    Mutant(
        "guarantee 12",
        "with a login of librdkafka's alone nobody looks for a cut",
        "log_changes:changes_of",
        never("not_asked"),
        f"{MAPS}::test_or_the_option_says_where_to_go_on",
    ),
    Mutant(
        "guarantee 12",
        "a later leader's record beyond what was read is taken for a cut",
        "cut_search:search",
        always("is_cut"),
        "unit/kafka/test_cut_search.py::test_what_nobody_reads_is_no_cut",
    ),
    Mutant(
        "guarantee 12",
        "another topic of a name inherits what was committed in the one before",
        "TopicNames.learn",
        never("before"),
        f"{NAMES}::test_another_topic_of_the_name_ends_what_was_committed",
    ),
    Mutant(
        "guarantee 12",
        "a broker that is behind ends what was committed in the topic of now",
        "TopicNames.learn",
        instead("before", "_[:1]"),
        f"{NAMES}::test_another_topic_of_the_name_ends_what_was_committed",
    ),
    Mutant(
        "guarantee 12",
        "in the simulation, another record at a processed place counts as processed",
        "checksums:checksum",
        answer("0"),
        SIMULATED,
    ),
    Mutant(
        "guarantee 12",
        "in the simulation, a store that lacks what the group has committed is taken for the right one",
        "delivery.positions:unseen",
        answer("[]"),
        SIMULATED,
    ),
    Mutant(
        "guarantee 12",
        "in the simulation, a store that has no position is of a version that noted none",
        "House._is_of_before",
        answer("True"),
        SIMULATED,
    ),
    Mutant(
        "guarantee 12",
        "the group is believed for a store of before the log was cut",
        "StoreDesk.look",
        value_of("same_below", "{name: one.offset for name, one in committed.items()}"),
        "integration/test_store_cli.py::test_a_store_of_before_a_log_was_cut_has_none_of_the_records_that_came_since",
    ),
    Mutant(
        "guarantee 12",
        "a log that a later leader has cut is the one that it was where no sample says otherwise",
        "checksums:compare",
        value_of("is_cut", "False"),
        "unit/delivery/test_checksums.py::"
        "test_where_a_later_leader_began_the_log_is_another_one_though_no_sample_says_so",
    ),
    Mutant(
        "guarantee 12",
        "what retention took of a used group is nothing that a store could be without",
        "positions:before_all",
        instead("leader_epoch", "-1"),
        f"{STORE}::test_a_group_that_has_read_what_retention_took_is_refused_by_a_store_that_knows_nothing_of_it",
    ),
    Mutant(
        "guarantee 12",
        "what a store has seen is not held against the log",
        "House._seen_of",
        never("doubtful"),
        "unit/delivery/test_exactly_once.py::"
        "test_a_store_of_before_the_log_was_cut_has_not_seen_the_records_that_are_there_now[error]",
    ),
    Mutant(
        "guarantee 12",
        "in the simulation, what a store has lost of what was processed is not looked for",
        "House._noted",
        never("lost"),
        SIMULATED,
    ),
    Mutant(
        "guarantee 12",
        "what a later leader has is added to what an earlier one had",
        "Seen.after",
        never("leader_epoch"),
        f"{STORE}::test_what_a_later_leader_has_replaces_what_an_earlier_one_had",
    ),
    Mutant(
        "guarantee 12",
        "a carried record is read in whatever log there is now",
        "plans:Plan.spans",
        always("offset start"),
        f"{PLANS}::test_a_carried_record_is_read_where_it_was",
    ),
    Mutant(
        "guarantee 12",
        "a batch of an earlier run is read in whatever log there is now",
        "KeylaneStreamReader.partitions",
        never("_planned"),
        "unit/spark/test_structured_source.py::test_a_plan_of_an_earlier_run_is_held_against_the_logs_of_now",
    ),
    Mutant(
        "guarantee 12",
        "a topic whose log ends where the query stands is the one that it was",
        "Topics.ids_for",
        always("ends next"),
        "unit/spark/test_structured_topics.py::test_topics_are_looked_at_at_first_and_before_anything_is_read_of_them",
    ),
    Mutant(
        "guarantee 12",
        "a sink's record may lie batches behind the checkpoint",
        "exact.protocol:check",
        never("is_gapless"),
        f"{SINK}::test_a_record_that_lies_batches_behind_the_checkpoint_was_put_back",
    ),
    Mutant(
        "guarantee 12",
        "a sink without a record begins anywhere",
        "exact.protocol:check",
        never("may_begin"),
        f"{SINK}::test_a_record_that_is_missing_behind_the_first_batch_is_refused_unless_the_query_begins",
    ),
    Mutant(
        "guarantee 12",
        "a listener commits in another cluster",
        "GroupCommits._compare",
        never("there"),
        "unit/spark/test_structured_group_commits.py::"
        "test_nothing_is_committed_of_a_topic_that_is_another_one_in_the_groups_cluster",
    ),
    Mutant(
        "guarantee 12",
        "a letter goes back as the record that stands in its place now",
        "desk.letters:is_letter_of",
        answer("True"),
        "integration/test_operations_replay.py::test_a_letter_whose_topic_was_made_anew_stays",
    ),
    Mutant(
        "guarantee 12",
        "a start of the broker counts its leader epoch up by one",
        "LeaderEpochs._above_last",
        begin("self._last += 1\nreturn self._last"),
        "unit/broker/test_leader_epochs.py::test_a_folder_that_was_put_back_gets_an_epoch_that_it_never_had",
    ),
    Mutant(
        "guarantee 9",
        "a group of errors is looked at from outside",
        "foreign_errors:_all_of",
        never("BaseExceptionGroup"),
        "unit/test_foreign_errors.py::test_a_group_is_what_it_holds",
    ),
    Mutant(
        "guarantee 9",
        "text that others wrote moves the cursor",
        "telling:visible",
        always("isprintable"),
        "integration/test_hostile_names.py::test_a_log_line_and_an_error_escape_what_others_wrote",
    ),
]
