"""Mutants of the coordinator: commits and conditions, the journal and its snapshots, expiry, transactions."""

from __future__ import annotations

from mutants import Mutant

MUTANTS = [
    Mutant(
        "a run of records goes on over another topic's offset, which is lost",
        "coordinator/formats.py",
        "if value is not None and fields[column : count * _FIELDS : _FIELDS].count(value) < count:",
        "if value is not None and fields[column::_FIELDS].count(value) < count:",
        "property/coordinator/journal/test_replay.py::test_a_replayed_commit_is_the_commit",
        "guarantee 7",
    ),
    Mutant(
        "a commit's batch is in part for each of its topics",
        "coordinator/formats.py",
        '        delta += len(commit.partitions)\n    return Records(b"".join(parts), delta, timestamp_ms)',
        '        delta += len(commit.partitions)\n    return Records(b"".join(parts), max(delta - 1, 1), timestamp_ms)',
        "property/coordinator/journal/test_replay.py::test_a_replayed_commit_is_the_commit",
        "guarantee 7",
    ),
    Mutant(
        "what has no commit has offset 0",
        "coordinator/offsets/store.py",
        "        [NO_OFFSET if row < 0 else offsets[row] for row in places],",
        "        [0 if row < 0 else offsets[row] for row in places],",
        "property/coordinator/offsets/test_columns.py::test_columns_are_a_dictionary",
        "guarantee 7",
    ),
    Mutant(
        "a block of offsets with metadata is taken for one without",
        "coordinator/offsets/rows.py",
        "        parts.append(_LEAD)\n",
        "        pass\n",
        "property/coordinator/offsets/test_columns.py::test_metadata_of_any_length_comes_back[1]",
        "guarantee 7",
    ),
    Mutant(
        "log offsets of a commit begin anew at 65,536",
        "coordinator/offsets/rows.py",
        "    if count > until:",
        "    if count > until + 1_000:",
        "property/coordinator/offsets/test_columns.py::test_log_offsets_go_on_where_their_lower_bits_end[16]",
        "guarantee 7",
    ),
    Mutant(
        "a commit takes the place of as many offsets of other partitions",
        "coordinator/offsets/store.py",
        "            if ends == (first, last):  # a member",
        "            if True:  # a member",
        "property/coordinator/offsets/test_columns.py::test_runs_of_one_length_are_a_dictionary",
        "guarantee 7",
    ),
    Mutant(
        "an aligned column is written in the machine's order",
        "wire/columns.py",
        "            if _IS_LITTLE:\n                words.byteswap()\n",
        "",
        "property/wire/test_columns.py::test_rows_are_those_of_struct",
        "guarantee 7",
    ),
    Mutant(
        "a group of one offset pays for a list of blocks",
        "coordinator/offsets/store.py",
        "            groups[group] = blocks[:] if len(blocks) > 1 else blocks[0]  # a copy",
        "            groups[group] = blocks[:]  # a copy",
        "property/coordinator/offsets/test_columns.py::test_a_group_of_one_or_two_entries_pays_for_its_place[1-1]",
        "guarantee 7",
    ),
    Mutant(
        "all groups are in one dictionary",
        "coordinator/offsets/store.py",
        "        return self._by_hash[hash(group) >> 40 & LAST_SHARE]",
        "        return self._by_hash[0]",
        "property/coordinator/offsets/test_columns.py::test_a_place_in_the_table_takes_no_more_while_the_table_grows",
        "guarantee 7",
    ),
    Mutant(
        "a journal's segment is written and not synced",
        "coordinator/journal/segments.py",
        "        self._write()\n        self._current.sync()\n        self._is_sound = True\n        self._synced = (",
        "        self._write()\n        self._is_sound = True\n        self._synced = (",
        "crash/test_journal_crashes.py::test_crash_at_every_operation[1]",
        "crash matrix: what was acknowledged is there after any crash",
    ),
    Mutant(
        "readers of the offsets topic see what is not synced",
        "coordinator/journal/journal.py",
        "        self._waiting.append((partition, base_offset, records, frame, done))\n",
        """        self._waiting.append((partition, base_offset, records, frame, done))
        view.durable = view.appended
""",
        "unit/coordinator/test_coordinator.py::test_the_view_of_an_offsets_partition_ends_at_what_is_synced",
        "crash matrix: the same through the whole coordinator",
    ),
    Mutant(
        "what a start found is served before it is durable",
        "coordinator/journal/segments.py",
        """            file.write(encode_header(SEGMENT, number, self._partitions))
        file.sync()
        self._synced = (number, file.size)
""",
        """            file.write(encode_header(SEGMENT, number, self._partitions))
        self._synced = (number, file.size)
""",
        "crash/test_journal_crashes.py::test_power_loss_after_a_killed_process[16]",
        "crash matrix: the same through the whole coordinator",
    ),
    Mutant(
        "segments go whether or not the snapshot that stands for them was written",
        "coordinator/journal/journal.py",
        "        finally:\n            self._snapshot_task = None\n",
        """        finally:
            await self._in_executor(partial(self._segments.drop_before, number))
            self._snapshot_task = None
""",
        "crash/test_journal_states.py::test_an_error_at_every_operation_of_journal_and_snapshot",
        "crash matrix: a snapshot that fails stops no commit",
    ),
    Mutant(
        "a snapshot has its name before it is durable",
        "coordinator/journal/snapshots.py",
        "        self._file.sync()\n        self._filesystem.rename(self._temporary, self._path)\n",
        "        self._filesystem.rename(self._temporary, self._path)\n",
        "crash/test_journal_crashes.py::test_a_quiet_life",
        "crash matrix: every step of compaction can be the last one",
    ),
    Mutant(
        "a frame's batch is not checked at the start",
        "coordinator/journal/segments.py",
        "            if data[end] not in marks or crc32c(data[checked:end]) != batch_crc:\n",
        "            if data[end] not in marks:\n",
        "crash/test_journal_crashes.py::test_crash_at_every_operation[15]",
        "crash matrix: damage is found, wherever it is",
    ),
    Mutant(
        "a missing segment is passed over",
        "coordinator/journal/segments.py",
        "        if number != expected:\n",
        "        if number < expected:\n",
        "crash/test_journal_crashes.py::test_a_missing_segment_is_damage[2]",
        "crash matrix: damage in the middle is refused, with file and position",
    ),
    Mutant(
        "a reserve's byte in a frame of a segment before the last is a torn tail",
        "coordinator/journal/segments.py",
        "self._content = _Content(data) if may_be_torn else None",
        "self._content = _Content(data)",
        "crash/test_journal_crashes.py::test_a_torn_segment_that_is_not_the_last_is_damage",
        "guarantee 8",
    ),
    Mutant(
        "a condition is held against what is synced alone",
        "coordinator/offset_service.py",
        "        if waiting is not None:\n            return waiting\n",
        "",
        "crash/test_journal_kills.py::test_commits_under_kills",
        "crash matrix: SIGKILL of the real process",
    ),
    Mutant(
        "a refused condition is answered before what it rests on is durable",
        "coordinator/offset_service.py",
        "return ConditionalResult(refused or CONDITION_FAILED, rows, current, durable)",
        "return ConditionalResult(refused or CONDITION_FAILED, rows, current, None)",
        "unit/coordinator/test_conditional_commits.py::test_what_is_on_its_way_counts",
        "guarantee 7",
    ),
    Mutant(
        "a start leaves out the last record of each batch",
        "coordinator/journal/batch_replay.py",
        "        for _ in range(count - skip):\n",
        "        for _ in range(count - skip - 1):\n",
        "crash/test_offset_history.py::test_histories_under_kills[short]",
        "crash matrix: what clients see is one history",
    ),
    Mutant(
        "an offset that was committed again loses its metadata's removal",
        "coordinator/offsets/store.py",
        '            self._merge(group, mark, [(row, b"")])\n            return\n',
        "            pass\n",
        "property/coordinator/offsets/test_columns.py::test_columns_are_a_dictionary",
        "crash matrix: the live state is the replayed state",
    ),
    Mutant(
        "offsets of a group that just became empty go at once",
        "coordinator/offsets/expiry.py",
        "        committed_before = -1  # the retention has not passed for any: only what has its own can go\n",
        "        pass\n",
        "unit/coordinator/test_removals.py::test_the_retention_begins_when_the_last_member_leaves",
        "crash matrix: the live state is the replayed state",
    ),
    Mutant(
        "a transaction's offsets count before its marker",
        "coordinator/offset_service.py",
        "            self.transactional.put_commit(owner, group, accepted, base_offset, now)\n",
        """            self.transactional.put_commit(owner, group, accepted, base_offset, now)
            self.store.apply(group, accepted, base_offset, now, NO_TIMESTAMP)
""",
        "crash/test_transaction_crashes.py::test_a_crash_at_any_operation_leaves_transactions_whole[lost-lost-1-2]",
        "crash matrix: transactions are whole, in every partition and with their offsets",
    ),
    Mutant(
        "a transaction's markers are written before its decision is durable",
        "coordinator/transaction_service.py",
        """        self.ids.begin(transactional_id, value)
        self._appended[transactional_id] = durable
""",
        """        self.ids.begin(transactional_id, value)
        self._appended[transactional_id] = durable
        if value is not None and value.state in PREPARED:
            for one in value.partitions:
                self._mark(value, *one)
""",
        "crash/test_transaction_crashes.py::test_an_error_at_an_operation_is_never_a_false_answer[5]",
        "crash matrix: transactions are whole, in every partition and with their offsets",
    ),
    Mutant(
        "a prepared transaction is left as it is by a start",
        "coordinator/transaction_service.py",
        """            if value.state in PREPARED:
                self._begin_completion(transactional_id, value)
        self.is_loaded = True
""",
        "        self.is_loaded = True\n",
        "crash/test_transaction_crashes.py::test_a_crash_at_any_operation_leaves_transactions_whole[lost-lost-1-2]",
        "crash matrix: the same for real processes",
    ),
    Mutant(
        "the journal's epoch is believed, where a log knows a later one",
        "coordinator/transaction_service.py",
        "    if epoch <= value.epoch or value.state in PREPARED:\n        return value\n",
        "    if epoch >= 0 or value.state in PREPARED:\n        return value\n",
        "crash/test_lost_producer_state.py::test_an_epoch_is_not_given_twice_by_an_older_copy_of_the_journal",
        "crash matrix: a producer id or an epoch is never given twice",
    ),
    Mutant(
        "a stable group's subscribed topics expire",
        "coordinator/offsets/expiry.py",
        "if topic not in rule.kept_topics]",
        "if topic]",
        "unit/coordinator/test_removals.py::test_a_live_group_keeps_what_it_subscribes_to",
    ),
    Mutant(
        "a partition is given to a member while another one has it",
        "coordinator/consumer_groups/reconciliation.py",
        "            if is_free(topic, one):",
        "            if True:",
        "property/coordinator/consumer_groups/test_group.py::test_who_has_what",
        "consumer groups: a partition has one owner",
    ),
    Mutant(
        "what a member is to give back counts as free",
        "coordinator/consumer_groups/group.py",
        "for has in (current.assigned, current.revoking) for topic",
        "for has in (current.assigned,) for topic",
        "property/coordinator/consumer_groups/test_group.py::test_who_has_what",
        "consumer groups: a partition has one owner",
    ),
    Mutant(
        "a member that does not say what it has is taken to have given back",
        "coordinator/consumer_groups/reconciliation.py",
        "    return owned is None or any(",
        "    return owned is not None and any(",
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_who_does_not_give_back_in_time_is_removed",
        "consumer groups: a partition has one owner",
    ),
    Mutant(
        "a restart forgets in which state a member is",
        "coordinator/consumer_groups/records.py",
        "int32(epoch) + int32(previous) + _STATE.pack(state)",
        "int32(epoch) + int32(previous) + _STATE.pack(STABLE)",
        "property/coordinator/consumer_groups/test_group.py::test_who_has_what",
        "consumer groups: the records hold all that there is",
    ),
    Mutant(
        "who does not give back in time stays",
        "coordinator/consumer_groups/group.py",
        "        if current.state == UNREVOKED and member.classic is None:\n            self._revocations",
        "        if False:\n            self._revocations",
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_who_does_not_give_back_in_time_is_removed",
        "consumer groups: each partition is assigned in the end",
    ),
    Mutant(
        "a classic member of a consumer group does not hear that what it waits for is free",
        "coordinator/consumer_groups/group.py",
        "if current.epoch >= self.epoch and current.state != UNREVOKED and not is_free:",
        "if current.epoch >= self.epoch and current.state != UNREVOKED:",
        "property/coordinator/consumer_groups/test_group.py::test_who_has_what",
        "consumer groups: each partition is assigned in the end",
    ),
    Mutant(
        "a classic member that does not ask for its assignment stays",
        "coordinator/consumer_groups/group.py",
        "            self._syncs[member_id] = now_ms + request.rebalance_timeout_ms\n",
        "",
        "unit/coordinator/consumer_groups/test_consumer_group.py::"
        "test_a_classic_member_that_does_not_ask_for_its_assignment_is_removed",
        "consumer groups: each partition is assigned in the end",
    ),
    Mutant(
        "a member of KIP-848 commits by a version that does not know its epoch",
        "coordinator/consumer_groups/group.py",
        "        if not has_epochs:\n            return codes.UNSUPPORTED_VERSION\n",
        "",
        "interop/test_consumer_group_contract.py::test_commits_of_older_versions[keylane]",
    ),
    Mutant(
        "a restart forgets which members are of the classic protocol",
        "coordinator/consumer_groups/records.py",
        'b"\\x01\\x00" + _encode_classic(value.classic),',
        'b"\\x01\\x00" + _encode_classic(None),',
        "property/coordinator/consumer_groups/test_group.py::test_who_has_what",
        "consumer groups: the records hold all that there is",
    ),
    Mutant(
        "the group of the classic protocol begins before the end of the consumer group is durable",
        "coordinator/consumer_group_actions.py",
        "        if became is not None:\n            self._downgrading.add(group)\n",
        "        if became is not None:\n"
        "            self._classic_actions.adopt(group, became, is_rebalancing=is_rebalancing)\n",
        "unit/coordinator/consumer_groups/test_consumer_group_actions.py::"
        "test_a_group_has_one_protocol_on_the_disk_whatever_fails",
        "consumer groups: the records hold all that there is",
    ),
    Mutant(
        "an expression matches a part of a name",
        "coordinator/patterns.py",
        "re2.compile(pattern, options).fullmatch",
        "re2.compile(pattern, options).search",
        "unit/coordinator/consumer_groups/test_consumer_group.py::test_an_expression_matches_whole_names",
        "consumer groups: expressions match whole names",
    ),
    Mutant(
        "a failed batch leaves the group as if it were durable",
        "coordinator/group_batches.py",
        "        if failure is not None:\n            self._break(group)",
        "        if False:\n            self._break(group)",
        "unit/coordinator/consumer_groups/test_consumer_group_actions.py::test_a_failed_batch_changes_nothing",
        "consumer groups: the records hold all that there is",
    ),
]
