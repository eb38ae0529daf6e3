"""Mutants of the coordinator on a replicated log (docs/adr/0094)."""

from __future__ import annotations

from mutants import Mutant

_HISTORIES = "property/coordinator/replicated/test_offset_servers.py::test_every_history_is_linearizable"
_UNIT = "unit/coordinator/replicated/test_log_journal.py"
_LEADERSHIP = "coordinator/replicated/leadership.py"
_JOURNAL = "coordinator/replicated/journal.py"
_FORWARDING = "offset_servers/forwarding.py"
_FORWARDED = "unit/offset_servers/test_forwarding.py"
_MEMBERS = "integration/test_offset_servers_for_members.py"
_TOPICS = "unit/offset_servers/test_known_topics.py"

MUTANTS = [
    Mutant(
        "a leader serves before it has read to its own mark",
        _LEADERSHIP,
        "SERVING = (Role.LEADING, Role.RENEWING)",
        "SERVING = (Role.LEADING, Role.RENEWING, Role.LOADING)",
        f"{_UNIT}::test_nobody_is_served_before_the_own_mark_is_read",
    ),
    Mutant(
        "a read is answered with a batch that began before it",
        _LEADERSHIP,
        "        if not self._forming:\n            self._forming.append(Batch())\n        return self._forming[-1]\n",
        "        if self._in_flight:\n            return self._in_flight[-1]\n        if not self._forming:\n"
        "            self._forming.append(Batch())\n        return self._forming[-1]\n",
        f"{_UNIT}::test_a_read_waits_for_a_batch_that_begins_after_it",
    ),
    Mutant(
        "a refused condition does not wait for the log",
        "coordinator/offset_service.py",
        "            durable = self._journal.confirm() or self.pending.round_of(group)\n",
        "            durable = self.pending.round_of(group) or self._journal.confirm()\n",
        f"{_UNIT}::test_a_refused_condition_rests_on_an_append_that_began_after_it",
    ),
    Mutant(
        "a deposed leader asks for an epoch again",
        _LEADERSHIP,
        "        if self.role is Role.INITIALISING or (self.role is",
        "        if self.role in (Role.INITIALISING, Role.DEPOSED) or (self.role is",
        f"{_UNIT}::test_who_was_away_for_half_a_day_is_deposed_and_never_asks_again",
    ),
    Mutant(
        "the gap that another writer leaves is not seen",
        _LEADERSHIP,
        "        if self.role is not Role.MARKING and base_offset != self._end:",
        "        if self.role is Role.MARKING and base_offset < self._end:",
        f"{_UNIT}::test_an_offset_that_is_not_due_is_an_alarm",
    ),
    Mutant(
        "a reader that was away for long keeps its table",
        "coordinator/replicated/follower.py",
        "        return now_ms - self._at_end_ms > self._may_be_away_ms",
        "        return now_ms - self._at_end_ms > 1_000 * self._may_be_away_ms",
        f"{_UNIT}::test_who_has_not_read_for_half_of_the_tombstones_time_begins_again",
    ),
    Mutant(
        "records behind others in a batch keep their offset deltas",
        "coordinator/replicated/batches.py",
        "        moved = varint(first + delta)",
        "        moved = varint(delta)",
        f"{_UNIT}::test_commits_have_the_offsets_of_their_own_records",
    ),
    Mutant(
        "what compaction has rewritten is read as if we had written it",
        "coordinator/replicated/batches.py",
        "    if header.attributes & _REWRITTEN or header.base_timestamp != header.max_timestamp:",
        "    if header.attributes & _REWRITTEN & 0:",
        _HISTORIES,
    ),
    Mutant(
        "all commits of a batch have the offset of its first",
        _JOURNAL,
        "            at += records.record_count\n",
        "",
        f"{_UNIT}::test_commits_have_the_offsets_of_their_own_records",
    ),
    Mutant(
        "what has no answer is not sent again when the log's leader has moved",
        "kafka/fenced_log.py",
        "        self._sent = 0\n        if self._link is not None:",
        "        if self._link is not None:",
        "integration/test_fenced_log_kills.py::test_each_batch_stands_there_once",
    ),
    Mutant(
        "a fetch is answered from the table of a leader that may be deposed",
        "broker/handlers/offset_fetch.py",
        "            if confirmed is not None:\n",
        "            if confirmed is None:\n",
        f"{_UNIT}::test_clients_of_a_deposed_leader_are_told_who_it_is_not",
    ),
    Mutant(
        "clients of a deposed leader are told that its disk has failed",
        "broker/dispatch.py",
        "    return error.code if isinstance(error, StorageError) else codes.KAFKA_STORAGE_ERROR",
        "    return codes.KAFKA_STORAGE_ERROR",
        f"{_UNIT}::test_clients_of_a_deposed_leader_are_told_who_it_is_not",
    ),
    Mutant(
        "a follower serves",
        "coordinator/coordinator.py",
        "        if self._is_closed or self._load_task is None or not self.owns(group):",
        "        if self._is_closed or not self.owns(group):",
        "unit/broker/test_offset_fetch.py::test_a_refusal_is_no_offset",
    ),
    Mutant(
        "clients are told of the log's brokers",
        "offset_servers/nodes.py",
        "    return NO_NODE if broker < 0 else node_at(pair(server, broker)).node_id",
        "    return broker",
        "unit/offset_servers/test_nodes.py::test_an_answer_tells_of_pairs_only",
    ),
    Mutant(
        "an answer is waited for that a producer does not want",
        "offset_servers/relay.py",
        "        if key == PRODUCE and not _wants_answer(frame, version):",
        "        if key == PRODUCE and _wants_answer(frame, version) is None:",
        "unit/offset_servers/test_relay.py::test_answers_find_their_requests_and_acks_0_has_none",
    ),
    Mutant(
        "a log of which one node has what is acknowledged is taken",
        "offset_servers/topic.py",
        "    if in_sync < 2:",
        "    if in_sync < 1:",
        "unit/offset_servers/test_topic.py::test_each_fault_is_named",
    ),
    Mutant(
        "two servers forward a request to each other",
        _FORWARDING,
        "        if known.login is None or self._client.session.forwarded_from is not None:",
        "        if known.login is None:",
        f"{_FORWARDED}::test_what_is_forwarded_is_never_forwarded_again",
    ),
    Mutant(
        "what a leader has not answered is asked again",
        _FORWARDING,
        "            self._answer(LOST if link.is_open else NOBODY, frame, told)",
        "            self._ask(link.address, frame, told)",
        f"{_FORWARDED}::test_the_next_request_goes_over_a_new_connection",
    ),
    Mutant(
        "a conditional commit whose outcome is not known is told to be refused",
        _FORWARDING,
        "self._answer(LOST if link.is_open else NOBODY, frame, told)",
        "self._answer(NOBODY, frame, told)",
        f"{_FORWARDED}::test_a_leader_that_is_gone_is_answered_with_an_error_and_asked_no_more",
    ),
    Mutant(
        "a conditional commit that a deposed leader may have made is told to be refused",
        "broker/handlers/conditional_commit.py",
        "Response(failure if is_undone else OUTCOME_UNKNOWN)",
        "Response(failure)",
        f"{_UNIT}::test_a_conditional_commit_of_a_deposed_leader_may_have_been_made",
    ),
    Mutant(
        "any user speaks for other clients",
        _FORWARDING,
        "session.user == self.login.username)",
        "session.user != self.login.mechanism)",
        f"{_FORWARDED}::test_only_the_servers_user_speaks_for_other_clients",
    ),
    Mutant(
        "a member that waits for the others is late",
        _FORWARDING,
        "        within_s = ANSWER_S + _rebalance_s(self._waiting[0].frame, self._forwarding.apis)",
        "        within_s = ANSWER_S",
        f"{_FORWARDED}::test_a_leader_has_its_time_and_a_join_the_rebalances_time_too",
    ),
    Mutant(
        "a client whose coordinator has moved is never told",
        _FORWARDING,
        "            self._here_until[partition] = math.inf\n",
        "",
        f"{_FORWARDED}::test_a_client_whose_coordinator_has_moved_is_told_so_for_a_while",
    ),
    Mutant(
        "clients wait for a server that has left the group",
        _FORWARDING,
        "if one.address not in servers]:",
        "if one.address in servers]:",
        f"{_FORWARDED}::test_nobody_waits_for_a_server_that_has_left_the_group",
    ),
    Mutant(
        "a server that was frozen forwards what has waited for it",
        _FORWARDING,
        "        return self.stands_still() or self.clock() < self.refuses_until",
        "        return self.clock() < self.refuses_until - self.beat_at",
        f"{_FORWARDED}::test_a_server_that_stood_still_forwards_nothing_that_has_waited",
    ),
    Mutant(
        "a member's group is at the brokers, whatever offsets.servers says",
        "kafka/consumer.py",
        "member_settings(for_groups(self._settings))",
        "member_settings(self._settings)",
        f"{_MEMBERS}::test_partitions_by_hand",
    ),
    Mutant(
        "commits go to a broker that is no offset server",
        "kafka/offset_server_check.py",
        "        if has_own_apis is False:",
        "        if has_own_apis is None:",
        f"{_MEMBERS}::test_a_broker_in_the_place_of_an_offset_server_is_refused",
    ),
    Mutant(
        "offset servers of another cluster are taken",
        "kafka/offset_server_check.py",
        "    if cluster != here:",
        "    if not here:",
        f"{_MEMBERS}::test_offset_servers_of_another_cluster_are_refused",
    ),
    Mutant(
        "a transaction commits offsets in Kafka for a group that is elsewhere",
        "pipeline.py",
        "        if OFFSETS_SERVERS in self.kafka:",
        "        if OFFSETS_SERVERS not in self.kafka:",
        "unit/kafka/test_places.py::test_transactions_are_refused_with_the_reason",
    ),
    Mutant(
        "librdkafka is given keylane's own settings",
        "kafka/faults.py",
        "make(QUICK_START | for_records(settings))",
        "make(QUICK_START | dict(settings))",
        "unit/kafka/test_places.py::test_a_client_of_librdkafka_never_sees_keylanes_own_settings",
    ),
    Mutant(
        "each commit that comes while a batch is on its way is an append of its own",
        "coordinator/replicated/leadership.py",
        "        if self._in_flight and len(self._forming) == 1:",
        "        if self._in_flight and len(self._forming) < 1:",
        "unit/coordinator/replicated/test_log_journal.py::test_what_comes_while_a_batch_is_on_its_way_goes_together",
    ),
    Mutant(
        "topics are gone while no broker tells of them",
        "offset_servers/known_topics.py",
        "        found = await asyncio.to_thread(self._ask)\n",
        "        self._take({})\n        found = await asyncio.to_thread(self._ask)\n",
        f"{_TOPICS}::test_nobody_answers_and_what_was_known_stays",
    ),
    Mutant(
        "who joins is answered by what was asked before a topic was made",
        "offset_servers/freshness.py",
        "            self._as_of_s = began_s",
        "            self._as_of_s = asyncio.get_running_loop().time()",
        f"{_TOPICS}::test_many_wait_for_one_question_and_who_comes_later_for_the_next",
    ),
    Mutant(
        "what is set for a group in the log's cluster has no effect at the servers",
        "offset_servers/partitions.py",
        "            group_configs=shared.configs.of,\n",
        "",
        "integration/test_offset_servers.py::test_configs_of_a_group_hold_at_all_servers",
    ),
    Mutant(
        "a config that the servers' options do not allow has an effect",
        "offset_servers/known_configs.py",
        "            return checked(settings, self._config)",
        "            return {name: int(text) for name, text in settings.items()}",
        "unit/offset_servers/test_known_configs.py::test_what_the_servers_options_do_not_allow_has_no_effect",
    ),
    Mutant(
        "members go by the times of the log's cluster",
        "offset_servers/apis.py",
        "    return not resources or any(one.resource_type != GROUP for one in resources)",
        "    return not resources or any(one.resource_type for one in resources)",
        "integration/test_offset_servers.py::test_any_server_takes_members_of_kip_848_and_tells_of_them",
    ),
    Mutant(
        "a server that loads is ready",
        "offset_servers/measures.py",
        "        if self.loading:",
        "        if self.loading < 0:",
        "unit/metrics/test_families.py::test_an_offset_server_tells_what_it_does_and_how_it_stands",
    ),
    Mutant(
        "members are told to be at the server that forwards for them",
        "broker/server.py",
        "decode_request(frame, self._session.forwarded_from or self._host,",
        "decode_request(frame, self._host,",
        "integration/test_offset_servers.py::test_any_server_answers_any_request",
    ),
]
