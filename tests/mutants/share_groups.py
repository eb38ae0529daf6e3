"""Mutants of share groups: who has a record, how often it is given out, what survives a crash, whose session it is."""

from __future__ import annotations

from mutants import Mutant

PARTITION = "coordinator/share_groups/partition.py"
GROUP = "coordinator/share_groups/group.py"
SERVICE = "coordinator/share_service.py"
BATCHES = "coordinator/group_batches.py"
DEADLINES = "property/coordinator/test_deadlines.py"
UNIT = "unit/coordinator/share_groups/test_partition.py"
MODEL = "property/coordinator/share_groups/test_partition.py"
CRASHES = "crash/test_share_group_crashes.py::test_a_crash_at_every_operation"
SHELL = "unit/coordinator/test_share_service.py"
ACTIONS = "unit/coordinator/consumer_groups/test_consumer_group_actions.py::test_a_failed_batch_changes_nothing"
WHOLE_STORE = "property/coordinator/test_whole_store_machine.py"
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
        "of a run that goes on behind what was read, less than nothing is archived",
        PARTITION,
        "        if last < first:\n            return []\n",
        "",
        f"{UNIT}::test_a_part_of_a_batch_is_given_of_records_that_came_back_with_those_behind_it",
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
        "what members said comes back when the broker is killed",
        SERVICE,
        "            error = self._append_states(place.group, {place: partition.state})\n",
        "            pass\n",
        "crash/test_group_kills.py::test_a_share_group_under_kills[3]",
        "crash matrix: SIGKILL under a consumer group",
    ),
    Mutant(
        "a broker that was killed has forgotten its consumer groups",
        "coordinator/coordinator.py",
        "        self._consumer_groups.restore(modern, self._now_ms())\n",
        "        self._consumer_groups.restore((), self._now_ms())\n",
        "crash/test_group_kills.py::test_a_consumer_group_under_kills[3]",
        "crash matrix: SIGKILL under a consumer group",
    ),
    Mutant(
        "how far a group had got in a topic outlives the topic",
        SERVICE,
        "found.drop(placed)) or self._append_states(group, dict.fromkeys(places))",
        "found.drop(placed))",
        WHOLE_STORE,
    ),
    Mutant(
        "a restart brings back the members of consumer groups that went",
        "coordinator/consumer_groups/group.py",
        "        self._emit(MEMBER, name)\n",
        "        self.members.pop(name, None)\n",
        WHOLE_STORE,
    ),
    Mutant(
        "members are told of what is not durable yet",
        BATCHES,
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
        "a broken group is restored while a batch of it is on its way",
        BATCHES,
        "        if group not in self._waiting:\n            self.broken",
        "        if True:\n            self.broken",
        ACTIONS,
    ),
    Mutant(
        "a deadline that comes nearer is not noted",
        "coordinator/deadlines.py",
        "(noted is None or deadline_ms < noted)",
        "noted is None",
        f"{DEADLINES}::test_what_is_due_is_what_a_scan_finds",
    ),
    Mutant(
        "nobody looks when a record was with a member for too long",
        SERVICE,
        "            self._deadlines.note(place, now_ms + limits.lock_ms)\n",
        "",
        f"{DEADLINES}::test_the_deadline_of_share_groups_is_that_of_a_scan",
    ),
    Mutant(
        "what is renewed for a shorter time is looked at too late",
        SERVICE,
        "            self._deadlines.note(place, now_ms + settings.limits.lock_ms)\n",
        "            pass\n",
        f"{DEADLINES}::test_the_deadline_of_share_groups_is_that_of_a_scan",
    ),
    Mutant(
        "a partition is looked at once and never again",
        SERVICE,
        "                self._deadlines.note(place, partition.next_deadline_ms)\n",
        "                pass\n",
        f"{DEADLINES}::test_the_deadline_of_share_groups_is_that_of_a_scan",
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
        "a fetch does not wait for the bytes that it asks for",
        "broker/share_reads.py",
        "if not found and least_bytes > 0 and there < least_bytes:",
        "if not found and least_bytes > 0 and there < 1:",
        f"{CONTRACT}::test_a_fetch_waits_for_so_many_bytes[keylane]",
    ),
    Mutant(
        "the first partition takes all the bytes of a fetch",
        "broker/share_reads.py",
        "        each = self._request.max_bytes // max(len(free), 1)\n",
        "        each = self._request.max_bytes\n",
        f"{CONTRACT}::test_partitions_share_what_a_fetch_takes[keylane]",
    ),
    Mutant(
        "each partition gives one batch, whatever a fetch may take",
        "broker/share_reads.py",
        "            is_first = size == self._request.max_bytes\n",
        "            is_first = True\n",
        f"{CONTRACT}::test_partitions_share_what_a_fetch_takes[keylane]",
    ),
    Mutant(
        "runs of records are as long as they can be",
        "broker/share_reads.py",
        "and begin - first >= size:",
        "and False:",
        f"{CONTRACT}::test_runs_end_with_a_batch_at_so_many_records[keylane]",
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
    Mutant(
        "a topic id of zeros ends the connection",
        "broker/share_acknowledgements.py",
        "(topic.topic_id or NO_TOPIC_ID, one.partition_index): [",
        "(topic.topic_id, one.partition_index): [",
        f"{CONTRACT}::test_a_topic_that_is_not_there[keylane-zeros]",
    ),
    Mutant(
        "a topic that is gone is a partition that is not there",
        SERVICE,
        "            return codes.UNKNOWN_TOPIC_ID\n",
        "            return codes.UNKNOWN_TOPIC_OR_PARTITION\n",
        f"{CONTRACT}::test_a_topic_that_is_not_there[keylane-zeros]",
    ),
]
