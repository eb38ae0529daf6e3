"""Mutants of share groups: who has a record, how often it is given out, what survives a crash, whose session it is."""

from __future__ import annotations

from mutants import Mutant

PARTITION = "coordinator/share_groups/partition.py"
GROUP = "coordinator/share_groups/group.py"
SERVICE = "coordinator/share_service.py"
UNIT = "unit/coordinator/share_groups/test_partition.py"
MODEL = "property/coordinator/share_groups/test_partition.py"
CRASHES = "crash/test_share_group_crashes.py::test_a_crash_at_every_operation"
SHELL = "unit/coordinator/test_share_service.py"
CONTRACT = "interop/test_share_group_contract.py"

MUTANTS = [
    Mutant(
        "a record is with two members",
        PARTITION,
        "if run.state == AVAILABLE]",
        "if run.state in (AVAILABLE, ACQUIRED)]",
        MODEL,
    ),
    Mutant(
        "a record is given out once more than it may be",
        PARTITION,
        "ARCHIVED if run.delivered >= limits.deliveries else AVAILABLE",
        "ARCHIVED if run.delivered > limits.deliveries else AVAILABLE",
        f"{UNIT}::test_a_record_is_given_out_so_often_and_no_more",
    ),
    Mutant(
        "a record is given up at its last delivery",
        PARTITION,
        "ARCHIVED if run.delivered >= limits.deliveries else AVAILABLE",
        "ARCHIVED if run.delivered >= limits.deliveries - 1 else AVAILABLE",
        f"{UNIT}::test_a_record_is_given_out_so_often_and_no_more",
    ),
    Mutant(
        "a member keeps a record for ever",
        PARTITION,
        "lambda run: run.until_ms <= now_ms,",
        "lambda run: run.until_ms < 0,",
        f"{UNIT}::test_a_lock_ends_at_its_time_and_is_renewed_until_then",
    ),
    Mutant(
        "a restart counts deliveries that never came to an end",
        PARTITION,
        "(AVAILABLE, run.delivered - 1) if run.state == ACQUIRED",
        "(AVAILABLE, run.delivered) if run.state == ACQUIRED",
        MODEL,
    ),
    Mutant(
        "a member speaks for another one's records",
        PARTITION,
        "run.state == ACQUIRED and run.member == member for",
        "run.state == ACQUIRED for",
        f"{UNIT}::test_a_member_speaks_of_its_own_records_alone",
    ),
    Mutant(
        "the start passes a record that is not done",
        PARTITION,
        "self._runs[done].state in DONE:\n",
        "self._runs[done].state != AVAILABLE:\n",
        MODEL,
    ),
    Mutant(
        "what is faulty takes its neighbours along",
        PARTITION,
        "    if delivered < patience:\n",
        "    if delivered >= 0:\n",
        f"{UNIT}::test_a_faulty_record_is_found_by_halves",
    ),
    Mutant(
        "what members say is in memory alone",
        SERVICE,
        "            error = self._append_states(place.group, {place: partition.state})\n",
        "",
        CRASHES,
    ),
    Mutant(
        "members are told of what is not durable yet",
        SERVICE,
        "                await self._waiting[group][1]\n",
        "                self._waiting[group][1]\n",
        f"{SHELL}::test_nobody_is_answered_before_its_group_is_durable",
    ),
    Mutant(
        "a group of which a batch fails goes on with what never was",
        SERVICE,
        "            del self._partitions[place]\n",
        "            pass\n",
        f"{SHELL}::test_a_group_of_which_a_batch_fails_is_as_it_was_on_the_disk",
    ),
    Mutant(
        "what a member that closes its session had stays with it",
        SERVICE,
        "if place.group == group and partition.release(member, limits):",
        "if place.group == group and partition.release(group, limits):",
        f"{SHELL}::test_a_member_that_closes_its_session_gives_back_at_once",
    ),
    Mutant(
        "a deleted topic's places stay",
        "coordinator/coordinator.py",
        "            self.share.end_topic(topic)\n",
        "            pass\n",
        f"{SHELL}::test_a_topic_that_is_deleted_takes_its_places_along",
    ),
    Mutant(
        "a request that comes twice is taken twice",
        "broker/share_sessions.py",
        "codes.NONE if epoch in (CLOSING, session.epoch) else codes.INVALID_SHARE_SESSION_EPOCH",
        "codes.NONE",
        "unit/broker/test_share_sessions.py::test_a_request_of_another_epoch_changes_nothing",
    ),
    Mutant(
        "records of aborted transactions are given out",
        "broker/share_reads.py",
        "            open_ids.add(begun.pop(0)[0])\n",
        "            begun.pop(0)\n",
        f"{CONTRACT}::test_records_of_transactions[keylane]",
    ),
    Mutant(
        "a connection that ends keeps its member's records",
        "broker/server.py",
        "        self._session.close()\n",
        "",
        f"{CONTRACT}::test_a_connection_that_ends_gives_back[keylane]",
    ),
    Mutant(
        "a member in an epoch that never was is taken for one of the group",
        GROUP,
        "        if request.epoch in (current.epoch, current.previous_epoch):\n",
        "        if request.epoch > 0:\n",
        f"{CONTRACT}::test_epochs_grow_and_fence[keylane]",
    ),
    Mutant(
        "a share group that is not there is not begun where somebody says",
        "coordinator/coordinator.py",
        "return codes.NONE if error == codes.GROUP_ID_NOT_FOUND else error\n",
        "return error\n",
        "interop/test_share_group_contract.py::test_a_group_that_is_not_there_is_begun_where_somebody_says[keylane]",
    ),
]
