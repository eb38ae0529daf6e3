"""Mutants of the adapters to Kafka's client: who is a member, what was heard, what is produced and read."""

from __future__ import annotations

from mutants import Mutant

MUTANTS = [
    Mutant(
        "records are believed without a look at their checksums",
        "kafka/settings.py",
        '    "check.crcs": True,\n',
        '    "check.crcs": False,\n',
        "integration/test_damaged_records.py::test_a_consumer_ends_at_a_damaged_record_and_goes_on_behind_it_when_it_is_told_to",
        "crash matrix: an altered record reaches no handler",
    ),
    Mutant(
        "the client commits by itself where the pipeline does not say so",
        "kafka/settings.py",
        '    "enable.auto.commit": False,\n    "enable.auto.offset.store"',
        '    "enable.auto.commit": True,\n    "enable.auto.offset.store"',
        "unit/kafka/test_client_faults.py::test_tracking_settings_cannot_be_overridden",
        "guarantee 1",
    ),
    Mutant(
        "a shorter session timeout of the broker's does not shorten the lease that runs",
        "consumer/intake.py",
        "            self.until -= before - self._length_s\n",
        "            pass\n",
        "unit/engine/test_engine_lease.py::"
        "test_another_session_timeout_holds_from_the_next_answer_and_a_shorter_one_at_once",
        "guarantee 4",
    ),
    Mutant(
        "what the broker has decided for a group is not asked again after an assignment",
        "kafka/presence.py",
        "or (was_steady and not is_new_connection):",
        "or not is_new_connection:",
        "unit/kafka/test_heartbeats.py::test_a_member_of_kip_848_hears_what_the_broker_has_decided",
        "guarantee 4",
    ),
    Mutant(
        "what was on its way when the process was frozen renews the lease",
        "kafka/presence.py",
        "if gap > self._believed_s or join_state",
        "if join_state",
        "unit/kafka/test_heartbeats.py::test_what_was_on_its_way_when_the_process_was_frozen_is_not_believed",
        "guarantee 4",
    ),
    Mutant(
        "what is received while the member joins renews the lease",
        "kafka/presence.py",
        'if gap > self._believed_s or join_state != "steady" or connects',
        "if gap > self._believed_s or connects",
        "unit/kafka/test_heartbeats.py::test_what_it_hears_while_it_joins_may_be_that_it_is_out",
        "guarantee 4",
    ),
    Mutant(
        "answers that any client gets renew the lease",
        "kafka/presence.py",
        'answers = broker["rx"] - sum(sent for kind, sent in broker["req"].items() if kind not in OF_MEMBERS)',
        'answers = broker["rx"]',
        "unit/kafka/test_heartbeats.py::test_what_any_client_may_ask_says_nothing_of_the_member",
        "guarantee 4",
    ),
    Mutant(
        "an output that was refused with its batch is its record's failure",
        "kafka/refused_batches.py",
        "        self._suspected[source] = None\n        if len",
        "        return True\n        if len",
        "unit/kafka/test_refused_batches.py::test_what_is_refused_twice_is_at_fault_however_long_that_takes",
    ),
    Mutant(
        "a member that the group has given up is ready",
        "kafka/presence.py",
        "        self._is_lost = True\n",
        "",
        "unit/kafka/test_presence.py::test_a_member_that_lost_its_partitions_is_not_ready_before_it_is_steady_again",
    ),
    Mutant(
        "without a commit the start is not committed before the first record",
        "consumer/start.py",
        "return found.at(self.offset_reset) if found.reset_to is None else OffsetMap(found.reset_to), True",
        "return found.at(self.offset_reset) if found.reset_to is None else OffsetMap(found.reset_to), False",
        "unit/engine/test_engine_start.py::test_without_a_commit_the_policy_decides_and_is_committed_first",
        "guarantee 3",
    ),
    Mutant(
        "a start whose commit failed begins all the same",
        "kafka/starts.py",
        "            if not problems:\n                break\n",
        "            if first:\n                break\n",
        "unit/kafka/test_starts.py::test_nothing_starts_where_the_group_went_on_and_the_member_lives",
        "guarantee 3",
    ),
    Mutant(
        "a topic made anew begins with what the group took back meanwhile",
        "kafka/membership.py",
        "            self._absent.get(name[0], set()).discard(name)\n",
        "            self._absent.get(name[0], set())\n",
        "unit/kafka/test_membership.py::test_what_the_group_takes_back_meanwhile_does_not_begin",
        "guarantee 4",
    ),
    Mutant(
        "what is read of a topic that has no log any more is not told with it",
        "kafka/membership.py",
        "names = sorted(name for name in self.ours if name[0] == topic and name not in ending)",
        "names: list[Name] = []",
        "unit/kafka/test_membership.py::test_what_is_read_of_a_topic_without_a_log_is_told_with_it",
    ),
    Mutant(
        "partitions go back before their last commit",
        "kafka/membership.py",
        "        yield Finish(ending.names)\n",
        "",
        "property/kafka/test_membership_machine.py",
        "guarantee 3",
    ),
    Mutant(
        "what the group went on without keeps its last commit for later",
        "kafka/membership.py",
        "            yield from self._lose(self._ending.names)\n",
        "            pass\n",
        "property/kafka/test_membership_machine.py",
        "guarantee 4",
    ),
    Mutant(
        "who leads is asked for each time",
        "kafka/leaders.py",
        "        self._known.update(new)\n",
        "",
        "unit/kafka/test_leaders.py::test_a_client_learns_who_leads_a_topic_before_it_is_told_to_read_it_and_once",
    ),
    Mutant(
        "a member waits for itself",
        "kafka/group_wait.py",
        "others = [one for one in found.members if one.member_id != member_id]",
        "others = list(found.members)",
        "unit/kafka/test_group_wait.py::test_it_waits_for_the_others_in_a_rebalance",
    ),
    Mutant(
        "under KIP-848 a member that has all its partitions waits for those of others",
        "kafka/group_wait.py",
        "        others = [one for one in others if wanted.intersection(one.assignment)]",
        "        others = [one for one in others if one.assignment]",
        "unit/kafka/test_group_wait.py::test_it_waits_for_the_others_in_a_rebalance",
    ),
    Mutant(
        "a topic that the coordinator does not know is asked about for a minute",
        "kafka/starts.py",
        """        for name in names:
            self._logs.bounds(*name)
""",
        """        for name in ():
            self._logs.bounds(*name)
""",
        "unit/kafka/test_starts.py::test_a_coordinator_that_does_not_know_a_topic_is_believed_once_its_log_is_gone",
    ),
    Mutant(
        "what a broker has said is forgotten for an attempt that had no time for an answer",
        "kafka/questions.py",
        "told = said if said is not None and cluster_is_there else error",
        "told = error",
        "unit/kafka/test_fail_over.py::test_what_a_broker_has_said_is_told_and_not_that_the_last_attempt_had_no_time",
    ),
]
