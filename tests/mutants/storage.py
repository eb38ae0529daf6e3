"""Mutants of the broker's storage: logs, segments, group commit, recovery, compaction, topics, a node's start."""

from __future__ import annotations

from mutants import Mutant

MUTANTS = [
    Mutant(
        "an ephemeral broker leaves its folder behind",
        "broker/run.py",
        '        folder = tempfile.TemporaryDirectory(prefix="keylane-broker-")\n',
        '        folder = contextlib.nullcontext(tempfile.mkdtemp(prefix="keylane-broker-"))\n',
        "integration/test_broker_process.py::test_an_ephemeral_broker_says_where_it_is_and_leaves_nothing[SIGTERM]",
    ),
    Mutant(
        "a round is over when it is written, and not when it is synced",
        "storage/shared_sync.py",
        """            self._file.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._file.sync()
""",
        '            self._file.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))\n',
        "crash/test_log_crashes.py::test_a_crash_at_any_operation_loses_nothing_acknowledged[lost-lost-0.0]",
        "guarantee 7",
    ),
    Mutant(
        "readers see a batch as soon as it is appended",
        "storage/log.py",
        "        self.next_offset = base_offset + header.last_offset_delta + 1\n",
        "        self.next_offset = self.high_watermark = base_offset + header.last_offset_delta + 1\n",
        "unit/storage/test_log.py::test_nothing_is_visible_before_it_is_synced",
        "guarantee 7",
    ),
    Mutant(
        "after a sync that failed the next one is believed",
        "storage/shared_sync.py",
        "failure = self._failure = StorageError(",
        "failure = StorageError(",
        "crash/test_log_crashes.py::test_a_crash_at_any_operation_loses_nothing_acknowledged[lost-kept-0.0]",
        "crash matrix: a failed write, sync or rename is never taken for a good one",
    ),
    Mutant(
        "a write without room is not cut off again",
        "storage/shared_sync.py",
        "        try:\n            self._file.cut()\n        except BaseException as worse:",
        "        try:\n            pass\n        except BaseException as worse:",
        "crash/test_full_disk.py::test_a_log_knows_what_a_restart_would_find_whatever_was_refused",
        "crash matrix: a full disk refuses what it has no room for",
    ),
    Mutant(
        "of the segments that a round without room began, only the last is cut",
        "coordinator/journal/segments.py",
        "in range(self._number, number, -1):",
        "in range(self._number, max(number, self._number - 1), -1):",
        "crash/test_full_disk.py::test_a_journal_holds_what_was_acknowledged_whatever_was_refused",
        "crash matrix: a full disk refuses what it has no room for",
    ),
    Mutant(
        "what a producer sent and found no room stays known of it",
        "storage/log.py",
        "                self._producers.put_back(lost.producer_id, lost.before)\n",
        "                pass\n",
        "crash/test_full_disk.py::test_a_log_knows_what_a_restart_would_find_whatever_was_refused",
        "crash matrix: a full disk refuses what it has no room for",
    ),
    Mutant(
        "a new segment is there before the one before it is durable",
        "storage/log.py",
        "        self.sync()\n        self._next = segment\n",
        "        self._next = segment\n",
        "crash/test_log_crashes.py::test_a_crash_at_any_operation_loses_nothing_acknowledged[lost-lost-0.0]",
        "crash matrix: topics: logs and registry",
    ),
    Mutant(
        "a log's new start is noted when its old segments are gone",
        "storage/log.py",
        "        self._facts.note(start=start_offset)\n        while self._doomed:",
        "        while self._doomed:",
        "crash/test_log_trimming.py::test_a_crash_at_any_operation_keeps_what_was_told[lost-lost]",
        "crash matrix: topics that records are removed from",
    ),
    Mutant(
        "old segments are removed from the last one on",
        "storage/log.py",
        "            path = self._doomed[0].path\n",
        "            path = self._doomed[-1].path\n",
        "crash/test_log_trimming.py::test_a_crash_at_any_operation_keeps_what_was_told[lost-lost]",
        "crash matrix: topics that records are removed from",
    ),
    Mutant(
        "a compacted segment takes the old one's place before it is durable",
        "storage/compaction.py",
        "                return None\n            file.sync()\n",
        "                return None\n",
        "crash/test_compaction_crashes.py::test_a_crash_at_any_operation_loses_and_brings_back_nothing[lost-lost]",
        "crash matrix: topics that records are removed from",
    ),
    Mutant(
        "compaction keeps the first record of a key",
        "storage/compaction.py",
        "last[_digest(record.key)] = record.offset",
        "last.setdefault(_digest(record.key), record.offset)",
        "unit/storage/test_compaction.py::test_the_last_record_of_each_key_stays_at_its_offset",
    ),
    Mutant(
        "compaction takes an aborted record for a key's last one",
        "storage/compaction.py",
        "            if header.is_control or plan.decided.is_aborted(header):\n                continue\n",
        "            if header.is_control:\n                continue\n",
        "property/storage/test_compaction_histories.py::test_readers_see_what_the_model_says",
        "crash matrix: topics that records are removed from",
    ),
    Mutant(
        "a tombstone goes before readers had its time",
        "storage/compaction.py",
        "is_due = horizon is not None and self._plan.now_ms >= horizon and not self._has_unreadable",
        "is_due = horizon is not None and not self._has_unreadable",
        "unit/storage/test_compaction.py::test_a_tombstone_goes_after_its_time",
    ),
    Mutant(
        "a whole batch at the end whose length was altered is cut off as torn",
        "storage/recovery.py",
        """    if _has_sound_checksum(tail, length, expected):
        return False  # it is whole: what the checksum leaves out was altered
""",
        "",
        "unit/storage/test_log.py::test_no_flip_in_the_last_batch_is_taken_for_a_torn_tail",
        "crash matrix: a torn tail is told from damage in the last batch of a log",
    ),
    Mutant(
        "a log is cut at damage, though sound batches follow",
        "storage/recovery.py",
        """    if follower is not None:
        raise DataFolderError(
            f"{where}: {problem}, and a sound batch""",
        """    if follower is not None and not is_last:
        raise DataFolderError(
            f"{where}: {problem}, and a sound batch""",
        "unit/storage/test_log.py::test_a_damaged_middle_is_refused_with_file_and_position",
        "guarantee 8",
    ),
    Mutant(
        "a batch's checksum is not looked at when a log is read",
        "storage/recovery.py",
        "    if not check_crc(window.data, at, header):\n",
        "    if header.record_count < 0 and not check_crc(window.data, at, header):\n",
        "unit/storage/test_log.py::test_a_torn_tail_is_cut",
        "guarantee 8",
    ),
    Mutant(
        "a state file's checksum is not looked at",
        "storage/sealed.py",
        '    if words[3] != f"{crc32c(body):08x}":\n',
        '    if not body and words[3] != f"{crc32c(body):08x}":\n',
        "crash/test_damaged_folders.py::test_no_flipped_byte_becomes_a_wrong_value",
        "crash matrix: no altered byte and no missing file of a data folder becomes a wrong value",
    ),
    Mutant(
        "a clean stop's snapshot outlives the next start",
        "broker/node.py",
        "        self.topics.load(self._read_snapshots())\n        self._remove_snapshots()\n",
        "        self.topics.load(self._read_snapshots())\n",
        "crash/test_log_node.py::test_a_crash_at_any_operation_of_two_starts_loses_nothing[lost-lost]",
        "crash matrix: topics: logs and registry",
    ),
    Mutant(
        "a topic is served before it is in the registry",
        "broker/topics.py",
        """            logs = await self._in_executor(self._files.create_logs, topic)
            await self._write(dataclasses.replace(topic, state=LIVE))
""",
        "            logs = await self._in_executor(self._files.create_logs, topic)\n",
        "crash/test_log_registry.py::test_a_crash_at_any_operation_keeps_what_was_answered[lost-lost]",
        "crash matrix: topics: logs and registry",
    ),
    Mutant(
        "a topic's files go before the registry says so",
        "broker/topics.py",
        """            await self._write(dataclasses.replace(topic, state=DELETING))
            del self._topics[name], self._partition_counts[name]
""",
        "            del self._topics[name]\n",
        "crash/test_log_registry.py::test_a_crash_at_any_operation_keeps_what_was_answered[lost-lost]",
        "crash matrix: topics: logs and registry",
    ),
    Mutant(
        "after a start ids go on right behind the highest one that a log knows",
        "broker/producer_ids.py",
        "first = highest + 1 + BLOCK_SIZE if highest >= 0 else 0",
        "first = highest + 1 if highest >= 0 else 0",
        "crash/test_lost_producer_state.py::test_ids_go_on_a_block_above_those_in_the_logs_and_it_is_told",
        "crash matrix: a producer id or an epoch is never given twice",
    ),
    Mutant(
        "a producer's batch that comes again is appended again",
        "storage/producers.py",
        """            if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                return batch
""",
        """            if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                return None
""",
        "unit/storage/test_producers.py::test_the_last_five_batches_are_answered_with_their_offset",
    ),
    Mutant(
        "a producer of an epoch before may still write",
        "storage/producers.py",
        "            if header.producer_epoch < state.epoch:\n                raise",
        "            if header.producer_epoch < state.epoch - 1:\n                raise",
        "unit/storage/test_producers.py::test_a_new_epoch_starts_at_zero_and_fences_the_old_one",
    ),
    Mutant(
        "the last stable offset goes past a transaction that is open, once a later one has ended",
        "storage/partition_transactions.py",
        "        return next(iter(self._undecided.items()), None)\n",
        "        return next(reversed(self._undecided.items()), None)\n",
        "unit/storage/test_partition_transactions.py::test_a_reader_is_told_of_every_aborted_transaction_in_its_range",
    ),
    Mutant(
        "an array's count is believed, however many bytes are left",
        "wire/bounds.py",
        "        if count * smallest > len(frame) - at:\n",
        "        if is_fixed and count * smallest > len(frame) - at:\n",
        "unit/wire/test_bounds.py::test_what_is_promised_and_not_there_is_named",
        "guarantee 8",
    ),
]
