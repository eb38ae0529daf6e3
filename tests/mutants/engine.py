"""Mutants of the engine that the seeded simulation notices: each guarantee, broken once."""

from __future__ import annotations

from mutants import Mutant

ANY = "property/engine/test_simulation.py::test_the_guarantees_hold_on_any_schedule"
IN_TRANSACTIONS = "property/engine/test_transactional_simulation.py::test_the_guarantees_hold_on_any_schedule"

MUTANTS = [
    Mutant(
        "the loop forgets after its look that the bell has rung: what came meanwhile waits for the next event",
        "engine/events.py",
        """        self._has_rung = False
        events = self._events[:]
""",
        """        events = self._events[:]
        self._has_rung = False
""",
        "unit/engine/test_engine_inbox.py",
    ),
    Mutant(
        "a closed assignment's work completes the record of the assignment that followed it",
        "engine/outcomes.py",
        """            if not assignment.wanted:
                self._counters.stale += len(finished)
            elif finished:""",
        """            if not assignment.wanted:
                self._counters.stale += len(finished)
                current = self._partitions.open.get(assignment.name)
                if current is not None:
                    same = [work.offset for work in finished if work.offset < current.tracker.position]
                    self._partitions.buffered -= current.tracker.complete(same)
            elif finished:""",
        ANY,
        "guarantee 6",
    ),
    Mutant(
        "a commit is one offset too far",
        "engine/commits.py",
        "return CommitEntry(assignment, offsets.base, metadata, changes)",
        'return CommitEntry(assignment, offsets.base + 1, "", changes)',
        ANY,
        "guarantee 1",
    ),
    Mutant(
        "the range's top is read after the incomplete offsets (the JVM consumer's defect #893)",
        "offsets/tracker.py",
        "        return OffsetMap.from_runs(self.base, starts, stops, highest)",
        "        return OffsetMap.from_runs(self.base, starts, stops, max(highest, self.highest_dispatched))",
        ANY,
        "guarantee 2",
    ),
    Mutant(
        "a key lets every record out at once",
        "engine/ordering.py",
        """            if last is offset:
                ready.append(message)
            else:
                nexts[last] = message
                lasts[key] = offset
        return ready""",
        """            ready.append(message)
            lasts[key] = offset
        return ready""",
        ANY,
        "guarantee 4",
    ),
    Mutant(
        "a record that waits for its retry gives its key away",
        "engine/outcomes.py",
        "        self._dispatcher.waiting.add(work, due)",
        """        self._dispatcher.waiting.add(work, due)
        work.assignment.ready.extend(work.assignment.shards.release([work.offset], [work.message]))""",
        ANY,
        "guarantee 4",
    ),
    Mutant(
        "the committed map is ignored at the start",
        "engine/assignment.py",
        "self.tracker = PartitionTracker(start.offsets)",
        "self.tracker = PartitionTracker(OffsetMap(start.offsets.base))",
        ANY,
        "guarantee 3",
    ),
    Mutant(
        "nothing is held back, so that maps outgrow the cap",
        "offsets/tracker.py",
        "        last = self.position - 1\n        limit = max(",
        "        last = self.position - 1\n        return last\n        limit = max(",
        ANY,
        "guarantee 5",
    ),
    Mutant(
        "a record whose retry is due is forgotten",
        "engine/retries.py",
        "            if work.assignment.wanted:\n                due.append(work)",
        "            if work.assignment.wanted and work.attempt < 2:\n                due.append(work)",
        ANY,
        "option: retries",
    ),
    Mutant(
        "at most once: records start before their commit is acknowledged",
        "engine/commit_first.py",
        "            self._marks.update(dict.fromkeys(works, assignment.tracker.changes))\n",
        "",
        ANY,
        "crash matrix: at_most_once",
    ),
    Mutant(
        "at most once: a commit that failed counts as acknowledged",
        "engine/core.py",
        "            self._commit_first.acknowledged([entry for entry in sent if entry.name not in problems])",
        "            self._commit_first.acknowledged(list(sent))",
        ANY,
        "crash matrix: at_most_once",
    ),
    Mutant(
        "almost once: a place is free before the commit is acknowledged",
        "engine/acknowledgements.py",
        "            self.waiting += len(messages)\n",
        "",
        ANY,
        "crash matrix: almost_once",
    ),
    Mutant(
        "a rate counts half",
        "engine/rates.py",
        "self._used_to = max(self._used_to, now) + count * self._interval_s",
        "self._used_to = max(self._used_to, now) + count * self._interval_s / 2",
        ANY,
        "option: rates",
    ),
    Mutant(
        "a rate counts twice",
        "engine/rates.py",
        "self._used_to = max(self._used_to, now) + count * self._interval_s",
        "self._used_to = max(self._used_to, now) + count * self._interval_s * 2",
        "property/engine/test_engine_rates_properties.py",
        "option: rates",
    ),
    Mutant(
        "a key's rate is not taken",
        "engine/rates.py",
        "        bucket.take(1, now)\n        return None",
        "        return None",
        ANY,
        "option: rates",
    ),
    Mutant(
        "fair: a key starves after its first record, behind what was polled before",
        "engine/partitions.py",
        "        if self._depth_first:\n            assignment.ready.extendleft(following)",
        "        if not self._depth_first:\n            assignment.ready.extendleft(following)",
        "property/engine/test_engine_traversal_properties.py",
        "option: traversal",
    ),
    # --- transactions ---
    Mutant(
        "results go into a transaction that is being closed",
        "engine/outcomes.py",
        "        if not self._produce or not transacting.is_open:\n            return []",
        "        if not self._produce or transacting.transaction.state.value == 'aborting':\n            return []",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "what is not acknowledged is committed",
        "engine/transactions.py",
        "return self.state is State.CLOSING and not self._unanswered",
        "return self.state is State.CLOSING",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "results of lost partitions stay in the transaction",
        "engine/transacting.py",
        "return self.transaction.state in (State.OPEN, State.CLOSING) and self.transaction.may_hold(assignments)",
        "return False",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "what was given up is produced",
        "engine/outcomes.py",
        "wanted = [one for one in self._produce if one.work.assignment.wanted and not one.void]",
        "wanted = list(self._produce)",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "a key that was undone starts beside its old handler",
        "engine/transacting.py",
        "            self._running.update(works_in(unit))",
        "            self._running.update(())",
        IN_TRANSACTIONS,
        "guarantee 4",
    ),
    Mutant(
        "an output that failed in a transaction is an attempt like any other",
        "engine/transacting.py",
        '        return f"{work.name}: {delivery.error}"',
        "        return None",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "an abort leaves the assignments open",
        "engine/core.py",
        """        self._forget(undone)
        self._acknowledgements.forget(undone)
        self._transacting.undo(reason, undone, fenced=fenced)""",
        "        self._transacting.undo(reason, [], fenced=fenced)",
        IN_TRANSACTIONS,
        "guarantee 6",
    ),
    Mutant(
        "what was undone does not begin anew",
        "engine/transacting.py",
        "plan.reload = list(self._epochs.items()) if may_begin else []",
        "plan.reload = []",
        IN_TRANSACTIONS,
    ),
    Mutant(
        "revoked partitions do not wait for the transaction that has their results",
        "engine/core.py",
        "if not late and (has_results or self.commits.wait_for(revoke.assignments)):",
        "if not late and has_results and self.commits.wait_for(()):",
        "property/engine/test_engine_transactional_revokes.py",
        "crash matrix: transactional",
    ),
    Mutant(
        "foreign metadata that ends beyond the log is believed",
        "engine/start.py",
        "            if offsets.highest_completed >= found.log_end:\n",
        "            if offsets.highest_completed > found.log_end:\n",
        "unit/engine/test_engine_start.py::TestForeignMetadata::test_it_is_ignored_and_logged",
        "guarantee 8",
    ),
    Mutant(
        "a damaged map is read as far as it goes",
        "offsets/codec.py",
        '    if not whole.eof:\n        raise _Damaged("its zstd frame is cut short")\n',
        "",
        "unit/offsets/test_codec.py::test_hostile_metadata_is_one_line_of_error_and_costs_nothing",
        "guarantee 8",
    ),
    Mutant(
        "a hostile map is unfolded, however many offsets it claims",
        "offsets/codec.py",
        '    if span > max_span:\n        raise _Damaged(f"it speaks of {span} offsets, and',
        '    if span > MAX_OFFSET:\n        raise _Damaged(f"it speaks of {span} offsets, and',
        "unit/offsets/test_codec.py::test_hostile_metadata_is_one_line_of_error_and_costs_nothing",
        "guarantee 8",
    ),
    Mutant(
        "an option that does not exist is passed over",
        "options.py",
        "    if value not in choices:\n",
        "    if value not in choices and isinstance(value, str):\n",
        "unit/test_options.py::test_a_wrong_option_is_refused_by_name",
        "guarantee 8",
    ),
    Mutant(
        "a gap in the log is a record that never completes",
        "offsets/tracker.py",
        "            self._window.extend(_COMPLETE_BYTE * (stop - first))\n        else:",
        "            self._window.extend(bytes(stop - first))\n        else:",
        "property/offsets/test_tracker_model.py",
    ),
    Mutant(
        "a stuck record that left the window is complete",
        "offsets/tracker.py",
        "            self._stuck.append(self._start + index)\n",
        "",
        "unit/offsets/test_tracker.py::test_one_stuck_record_never_stops_its_partition",
        "guarantee 1",
    ),
    Mutant(
        "the bound counts records behind the highest dispatched twice",
        "offsets/tracker.py",
        "        self.incomplete += self._count(self.highest_dispatched + 1, highest + 1)\n",
        "        self.incomplete += self._count(self.highest_dispatched, highest + 1)\n",
        "property/offsets/test_tracker_model.py",
        "guarantee 5",
    ),
    Mutant(
        "what retention removed counts as lost, though the committed map has it complete",
        "offsets/tracker.py",
        "        known = self._ahead.highest_completed + 1 if self._ahead is not None else first\n",
        "        known = first\n",
        "unit/offsets/test_tracker.py::test_retention_drops_what_was_not_polled_and_counts_what_is_lost",
    ),
    Mutant(
        "a lease lasts as long as the session",
        "engine/lease.py",
        "SHARE = 2 / 3\n",
        "SHARE = 1.0\n",
        "unit/engine/test_engine_lease.py::test_it_lasts_two_thirds_of_the_session_from_the_first_answer_on_and_never_gets_shorter",
        "guarantee 4",
    ),
    Mutant(
        "a commit's older answer takes the acknowledged offset back",
        "engine/commits.py",
        "        assignment.committed_changes = max(assignment.committed_changes, entry.changes)\n",
        "        assignment.committed_changes = assignment.tracker.changes\n",
        "property/engine/test_simulation.py::test_the_guarantees_hold_on_any_schedule",
        "guarantee 2",
    ),
    Mutant(
        "a revoke is answered while records are in handlers, and waits where none are",
        "engine/revokes.py",
        "at_once or now >= one.deadline or not one.busy]",
        "at_once or now >= one.deadline or one.busy]",
        "unit/engine/test_engine_core.py::test_a_revoke_waits_for_handlers_and_answers_with_the_last_commit",
        "guarantee 4",
    ),
    Mutant(
        "a handler that fails leaves its identity behind",
        "delivery/sqlite.py",
        '            self.end("ROLLBACK")\n            raise\n        self.end("COMMIT")\n',
        '            self.end("COMMIT")\n            raise\n        self.end("COMMIT")\n',
        "unit/delivery/test_exactly_once.py::test_a_record_that_is_skipped_has_no_effect_and_no_identity",
        "crash matrix: exactly_once",
    ),
    Mutant(
        "outputs that are acknowledged are in no transaction any more",
        "engine/transactions.py",
        "                self.touched.add(delivery.work.assignment)\n",
        "                pass\n",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "each abort is followed by the wait of the second one",
        "engine/transactions.py",
        "min(FIRST_WAIT_S * 2.0 ** min(self._aborts - 1, 20), MOST_WAIT_S)",
        "min(FIRST_WAIT_S * 2.0, MOST_WAIT_S)",
        "property/engine/test_transaction_states.py",
    ),
    Mutant(
        "a commit does not forget the aborts before it",
        "engine/transactions.py",
        "            self._aborts = self._fences = 0\n        self._to",
        "            self._fences = 0\n        self._to",
        "property/engine/test_transaction_states.py",
    ),
    Mutant(
        "a record whose output was not acknowledged is complete",
        "engine/deliveries.py",
        "        if answer.error is not None and (self.error is None or self.blameless):\n",
        "        if answer.refused and (self.error is None or self.blameless):\n",
        "unit/engine/test_engine_core.py::test_a_failed_delivery_is_a_failed_attempt",
        "crash matrix: at_least_once",
    ),
]
