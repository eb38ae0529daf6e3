"""Mutants of consumer groups (KIP-848) in the coordinator."""

from __future__ import annotations

from mutants import Mutant
from mutants.faults import always, answer, argument, before, begin, drop, instead, never

GROUP_TEST_WHO_HAS_WHAT = "property/coordinator/consumer_groups/test_group.py::test_who_has_what"

MUTANTS = [
    Mutant(
        "consumer groups: a partition has one owner",
        "a partition is given to a member while another one has it",
        "reconcile",
        always("is_free"),
        GROUP_TEST_WHO_HAS_WHAT,
    ),
    Mutant(
        "consumer groups: a partition has one owner",
        "what a member is to give back counts as free",
        "consumer_groups.group:_partitions",
        instead("revoking", "()"),
        GROUP_TEST_WHO_HAS_WHAT,
    ),
    Mutant(
        "consumer groups: a partition has one owner",
        "a member that does not say what it has is taken to have given back",
        "_still_has",
        answer("owned is not None and _"),
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_who_does_not_give_back_in_time_is_removed",
    ),
    Mutant(
        "consumer groups: each partition is assigned in the end",
        "who does not give back in time stays",
        "ConsumerGroup._watch_revocation",
        never("UNREVOKED"),
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_who_does_not_give_back_in_time_is_removed",
    ),
    Mutant(
        "consumer groups: each partition is assigned in the end",
        "a classic member of a consumer group does not hear that what it waits for is free",
        "ConsumerGroup.heartbeat_of_classic",
        always("is_free"),
        GROUP_TEST_WHO_HAS_WHAT,
    ),
    Mutant(
        "consumer groups: each partition is assigned in the end",
        "a classic member that does not ask for its assignment stays",
        "ConsumerGroup.join",
        drop("_syncs"),
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_a_classic_member_that_does_not_ask_for_its_assignment_is_removed",
    ),
    Mutant(
        "consumer groups: expressions match whole names",
        "an expression matches a part of a name",
        "matcher",
        instead("fullmatch", "re2.compile(pattern, options).search"),
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_an_expression_matches_whole_names",
    ),
    Mutant(
        "consumer groups: static members",
        "a static member that comes back with other topics is given what it had",
        "InstanceName._take_out",
        begin("return"),
        "integration/test_static_subscriptions.py::test_the_driver_of_a_query_comes_back_with_another_topic[keylane]",
    ),
    Mutant(
        "consumer groups: the records hold all that there is",
        "a restart forgets in which state a member is",
        "encode_value",
        argument("pack", 0, "STABLE"),
        GROUP_TEST_WHO_HAS_WHAT,
    ),
    Mutant(
        "consumer groups: the records hold all that there is",
        "a restart forgets which members are of the classic protocol",
        "encode_value",
        argument("_encode_classic", 0, "None"),
        GROUP_TEST_WHO_HAS_WHAT,
    ),
    Mutant(
        "consumer groups: the records hold all that there is",
        "the group of the classic protocol begins before the end of the consumer group is durable",
        "ConsumerGroupActions._append",
        before("_batches", "became and self._classic_actions.adopt(group, became, is_rebalancing=is_rebalancing)"),
        "unit/coordinator/consumer_groups/test_consumer_group_actions.py::test_a_group_has_one_protocol_on_the_disk_whatever_fails",
    ),
    Mutant(
        "consumer groups: the records hold all that there is",
        "a failed batch leaves the group as if it were durable",
        "GroupBatches._ended",
        never("failure"),
        "unit/coordinator/consumer_groups/test_consumer_group_actions.py::test_a_failed_batch_changes_nothing",
    ),
]
