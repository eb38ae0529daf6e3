"""Mutants of the engine that the seeded simulation notices: each guarantee, broken once."""

from __future__ import annotations

from mutants import Mutant

ANY = "property/engine/test_simulation.py::test_the_guarantees_hold_on_any_schedule"
IN_TRANSACTIONS = "property/engine/test_transactional_simulation.py::test_the_guarantees_hold_on_any_schedule"

MUTANTS = [
    Mutant(
        "the loop forgets after its look that the bell has rung: what came meanwhile waits for the next event",
        "flow/workers/__init__.py",
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
        "flow/core.py",
        """        if not source.wanted:
            self._counters["stale"] += len(numbers)
            return
""",
        """        if not source.wanted:
            self._counters["stale"] += len(numbers)
            partitions = source.owner._keeper.partitions
            current = partitions.open.get(source.name)
            if current is not None:
                same = [number for number in numbers if number < current.tracker.position]
                partitions.buffered -= current.tracker.complete(same)
            return
""",
        ANY,
        "guarantee 6",
    ),
    Mutant(
        "a commit is one offset too far",
        "consumer/commits.py",
        "return CommitEntry(partition, offsets.base, metadata, changes)",
        'return CommitEntry(partition, offsets.base + 1, "", changes)',
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
        "flow/admission.py",
        """                if last is not number:
                    nexts[last] = payload
                    lasts[key] = number
                    continue
""",
        """                lasts[key] = number
""",
        ANY,
        "guarantee 4",
    ),
    Mutant(
        "a record that waits for its retry gives its key away",
        "flow/core.py",
        "        item.source.put_off()\n        self._schedule.add(item, due)",
        """        item.source.put_off()
        self._schedule.add(item, due)
        item.source._follow([item.number], [item.payload])""",
        ANY,
        "guarantee 4",
    ),
    Mutant(
        "the committed map is ignored at the start",
        "consumer/partitions.py",
        "self.tracker = PartitionTracker(start.offsets)",
        "self.tracker = PartitionTracker(OffsetMap(start.offsets.base))",
        ANY,
        "guarantee 3",
    ),
    Mutant(
        "nothing is held back, so that maps outgrow the cap",
        "offsets/tracker.py",
        "        last = self.position - 1\n        limit = self.base",
        "        last = self.position - 1\n        return last\n        limit = self.base",
        ANY,
        "guarantee 5",
    ),
    Mutant(
        "a record whose retry is due is forgotten",
        "flow/retries.py",
        "            if item.source.wanted:\n                due.append(item)",
        "            if item.source.wanted and item.attempt < 2:\n                due.append(item)",
        ANY,
        "option: retries",
    ),
    Mutant(
        "at most once: records start before their commit is acknowledged",
        "consumer/modes/at_most_once.py",
        "            self._marks.update(((partition, offset), partition.tracker.changes) for offset in offsets)\n",
        "",
        ANY,
        "crash matrix: at_most_once",
    ),
    Mutant(
        "at most once: a commit that failed counts as acknowledged",
        "consumer/core.py",
        "        self._mode.acknowledged([entry for entry in sent if entry.name not in problems])",
        "        self._mode.acknowledged(list(sent))",
        ANY,
        "crash matrix: at_most_once",
    ),
    Mutant(
        "almost once: a place is free before the commit is acknowledged",
        "consumer/commits.py",
        "            self.waiting += len(messages)\n",
        "",
        ANY,
        "crash matrix: almost_once",
    ),
    Mutant(
        "a rate counts half",
        "flow/rates.py",
        "self._used_to = max(self._used_to, now) + count * self._interval_s",
        "self._used_to = max(self._used_to, now) + count * self._interval_s / 2",
        ANY,
        "option: rates",
    ),
    Mutant(
        "a rate counts twice",
        "flow/rates.py",
        "self._used_to = max(self._used_to, now) + count * self._interval_s",
        "self._used_to = max(self._used_to, now) + count * self._interval_s * 2",
        "property/engine/test_engine_rates_properties.py",
        "option: rates",
    ),
    Mutant(
        "a key's rate is not taken",
        "flow/rates.py",
        "        bucket.spend(1, now)\n        return None",
        "        return None",
        ANY,
        "option: rates",
    ),
    Mutant(
        "fair: a key starves after its first record, behind what was polled before",
        "flow/items.py",
        "ready, first=self._depth_first)",
        "ready, first=not self._depth_first)",
        "property/engine/test_engine_traversal_properties.py",
        "option: traversal",
    ),
    # --- several records in one call ---
    Mutant(
        "calls that ended together complete what lies between them, too",
        "flow/admission.py",
        "        if ranges and ranges[-1][0].stop == run.start:\n",
        "        if ranges and ranges[-1][0].stop <= run.start:\n",
        "unit/engine/test_engine_ordering.py::test_what_calls_had_is_the_ranges_that_it_makes_up",
        "guarantee 1",
    ),
    Mutant(
        "what is left of a run when some of it is taken comes last",
        "flow/admission.py",
        "            self._runs.appendleft((numbers[most:], payloads[most:]))\n",
        "            self._runs.append((numbers[most:], payloads[most:]))\n",
        "unit/engine/test_engine_ordering.py::test_what_is_ready_comes_in_the_order_of_its_turn_a_run_at_a_time",
    ),
    Mutant(
        "what is taken back of a call is one too few: a record counts as through that never ran",
        "flow/items.py",
        "        rest = list(self._rest)\n",
        "        rest = list(self._rest)[1:]\n",
        ANY,
        "guarantee 1",
    ),
    Mutant(
        "what is taken back of a call is one too many: a record runs beside itself",
        "flow/items.py",
        """        rest = list(self._rest)
        begun = len(self.numbers) - len(rest)
""",
        """        begun = len(self.numbers) - len(list(self._rest)) - 1
        rest = self.payloads[begun:]
""",
        ANY,
        "guarantee 4",
    ),
    Mutant(
        "what has ended of a call that was taken apart is reported twice",
        "flow/together.py",
        "    call.reported(end)\n",
        "",
        ANY,
        "guarantee 6",
    ),
    Mutant(
        "what has not begun is put behind what was polled after it",
        "flow/items.py",
        "            self._ready.put(numbers, payloads, first=True)\n",
        "            self._ready.put(numbers, payloads)\n",
        "unit/engine/test_engine_batches.py::test_records_without_order_are_taken_back_too_and_run_before_newer_ones",
    ),
    Mutant(
        "records of one key go in a call that goes on behind one that failed",
        "flow/items.py",
        "(payload, *behind), now, ordered=True)",
        "(payload, *behind), now)",
        ANY,
        "guarantee 4",
    ),
    Mutant(
        "a call goes on behind a record of its key that failed",
        "flow/workers/threads.py",
        "                    if unit.ordered:\n                        break\n",
        "",
        "unit/engine/test_engine_workers.py::test_a_call_ends_with_the_first_that_is_not_through_where_the_others_follow_it",
        "guarantee 4",
    ),
    Mutant(
        "a call on asyncio goes on behind a record of its key that failed",
        "flow/workers/aio.py",
        "                if unit.ordered:\n                    break\n",
        "",
        "unit/engine/test_engine_workers.py::test_a_call_ends_with_the_first_that_is_not_through_where_the_others_follow_it",
        "guarantee 4",
    ),
    Mutant(
        "a call in a worker process goes on behind a record of its key that failed",
        "flow/workers/process_main.py",
        "                    if ends_early and outcome is not None:\n                        break\n",
        "",
        "unit/engine/test_engine_workers.py::test_a_call_in_a_process_ends_as_in_a_thread_and_the_next_has_its_own_answers",
        "guarantee 4",
    ),
    Mutant(
        "what has ended of a call is known only when it comes back, where a process got all of it at once",
        "flow/workers/processes.py",
        "                unit.answered(number + 1)\n",
        "",
        "unit/engine/test_engine_workers.py::test_what_a_process_has_answered_of_a_call_is_known_before_it_comes_back",
        "guarantee 2",
    ),
    Mutant(
        "records that end in a call that still runs do not count against a stall",
        "consumer/core.py",
        "        if self.flow.release_due(now):\n            self._stall.moved(now, runs=True)\n",
        "        self.flow.release_due(now)\n",
        "unit/engine/test_engine_batches.py::test_records_that_end_in_a_call_that_still_runs_are_no_stall",
        "option: stall_timeout_ms",
    ),
    Mutant(
        "what a process had not begun of a call when it died is through",
        "flow/workers/processes.py",
        "        for index in range(begun + 1, len(call)):\n            call.note(index, NOT_RUN)\n",
        "        pass\n",
        "unit/engine/test_engine_workers.py::test_of_a_call_the_record_that_its_process_died_at_has_failed_and_those_behind_it_have_not_run",
        "guarantee 1",
    ),
    Mutant(
        "a call of a lost partition that is taken apart leaves records with the workers for ever",
        "flow/core.py",
        "            if numbers:\n                give_back(call, numbers, payloads)\n",
        """            if not call.source.wanted:
                continue
            if numbers:
                give_back(call, numbers, payloads)
""",
        "unit/engine/test_engine_batches.py::test_a_call_of_a_lost_partition_that_is_taken_apart_leaves_no_record_with_the_workers",
    ),
    Mutant(
        "a call is taken apart in which nothing has begun",
        "flow/core.py",
        "if one.has_begun and one.began + RECALL_S <= now]",
        "if one.began and one.began + RECALL_S <= now]",
        "unit/engine/test_engine_batches.py::test_a_call_whose_first_record_has_not_begun_is_not_taken_apart",
    ),
    Mutant(
        "at most once: what is held is let go before its commit",
        "consumer/modes/at_most_once.py",
        "(self._held if any(one in self._marks for one in _records(unit)) else ready).append(unit)",
        "ready.append(unit)",
        ANY,
        "crash matrix: at_most_once",
    ),
    # --- transactions ---
    Mutant(
        "results go into a transaction that is being closed",
        "consumer/modes/transactional.py",
        "if not self._parts.deliveries.has_outputs or not self._is_open:",
        "if not self._parts.deliveries.has_outputs or self._transaction.state is State.ABORTING:",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "what is not acknowledged is committed",
        "consumer/modes/transaction.py",
        "return self.state is State.CLOSING and not self._unanswered",
        "return self.state is State.CLOSING",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "results of lost partitions stay in the transaction",
        "consumer/modes/transactional.py",
        "return self._transaction.state in (State.OPEN, State.CLOSING) and self._transaction.may_hold(partitions)",
        "return False",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "what was given up is produced",
        "consumer/deliveries.py",
        "wanted = [one for one in popped if one.wanted]",
        "wanted = list(popped)",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "a key that was undone starts beside its old handler",
        "consumer/modes/at_least_once.py",
        "        for unit in self._parts.flow.out:",
        "        for unit in ():",
        IN_TRANSACTIONS,
        "guarantee 4",
    ),
    Mutant(
        "a key of a partition that was lost and comes again starts beside its old handler",
        "consumer/modes/at_least_once.py",
        '        if self._ordering != "unordered":\n            self._wait',
        '        if self._parts.pipeline.guarantee == "transactional":\n            self._wait',
        "unit/engine/test_engine_core.py::test_a_key_whose_handler_still_runs_waits_for_it_in_the_next_assignment",
        "guarantee 4",
    ),
    Mutant(
        "what never ran of a lost partition is waited for when it comes again",
        "consumer/core.py",
        "self.withdrawn(self._mode.given_back())",
        "self.flow.withdrawn(self._mode.given_back())",
        "property/engine/test_simulation.py::test_the_guarantees_hold_on_any_schedule",
    ),
    Mutant(
        "an output that failed in a transaction is an attempt like any other",
        "consumer/modes/transactional.py",
        """        if not delivery.blameless:
            self._remember(delivery)
            self._transaction.forgive()
        self._undo(f"{item.name}: {delivery.error}")
        return True""",
        "        return False",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "an abort leaves the assignments open",
        "consumer/modes/transactional.py",
        """        parts.forget(undone)
        parts.acknowledgements.forget(undone)
        log =""",
        """        undone = []
        log =""",
        IN_TRANSACTIONS,
        "guarantee 6",
    ),
    Mutant(
        "what was undone does not begin anew",
        "consumer/modes/transactional.py",
        "plan.begin_anew(list(self._epochs.items()) if may_begin else [])",
        "plan.begin_anew([])",
        IN_TRANSACTIONS,
    ),
    Mutant(
        "revoked partitions do not wait for the transaction that has their results",
        "consumer/modes/transactional.py",
        "if not late and (has_results or parts.commits.wait_for(revoke.partitions)):",
        "if not late and has_results and parts.commits.wait_for(()):",
        "property/engine/test_engine_transactional_revokes.py",
        "crash matrix: transactional",
    ),
    Mutant(
        "foreign metadata that ends beyond the log is believed",
        "consumer/start.py",
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
        "consumer/intake.py",
        "SHARE = 2 / 3\n",
        "SHARE = 1.0\n",
        "unit/engine/test_engine_lease.py::test_it_lasts_two_thirds_of_the_session_from_the_first_answer_on_and_never_gets_shorter",
        "guarantee 4",
    ),
    Mutant(
        "a commit's older answer takes the acknowledged offset back",
        "consumer/partitions.py",
        "        self.committed_changes = max(self.committed_changes, changes)\n",
        "        self.committed_changes = self.tracker.changes\n",
        "property/engine/test_simulation.py::test_the_guarantees_hold_on_any_schedule",
        "guarantee 2",
    ),
    Mutant(
        "a revoke is answered while records are in handlers, and waits where none are",
        "consumer/revokes.py",
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
        "consumer/modes/transaction.py",
        "                self.touched.add(partition_of(delivery.item.source))\n",
        "                pass\n",
        IN_TRANSACTIONS,
        "crash matrix: transactional",
    ),
    Mutant(
        "each abort is followed by the wait of the second one",
        "consumer/modes/transaction.py",
        "min(FIRST_WAIT_S * 2.0 ** min(self._aborts - 1, 20), MOST_WAIT_S)",
        "min(FIRST_WAIT_S * 2.0, MOST_WAIT_S)",
        "property/engine/test_transaction_states.py",
    ),
    Mutant(
        "a commit does not forget the aborts before it",
        "consumer/modes/transaction.py",
        "            self._aborts = self._fences = 0\n        self._to",
        "            self._fences = 0\n        self._to",
        "property/engine/test_transaction_states.py",
    ),
    Mutant(
        "a record whose output was not acknowledged is complete",
        "consumer/outputs.py",
        "        if answer.error is not None and (self.error is None or self.blameless):\n",
        "        if answer.refused and (self.error is None or self.blameless):\n",
        "unit/engine/test_engine_core.py::test_a_failed_delivery_is_a_failed_attempt",
        "crash matrix: at_least_once",
    ),
    Mutant(
        "a failure while the service is down uses up an attempt",
        "flow/core.py",
        "if self._is_held(item, breakers.failed(target, item.since, now)):",
        "if breakers.failed(target, item.since, now) and False:",
        "unit/engine/test_engine_breaker.py::test_a_ten_minute_outage_burns_no_record_and_is_probed_once_a_second",
        "option: breaker",
    ),
    Mutant(
        "probes go as fast as they fail",
        "flow/breakers.py",
        "        one.probe(now, self._interval_s)\n        return None\n",
        "        return None\n",
        "unit/engine/test_engine_breaker.py::test_a_ten_minute_outage_burns_no_record_and_is_probed_once_a_second",
    ),
    Mutant(
        "a last attempt is given up though nothing says that the service is up",
        "flow/breakers.py",
        "if one.succeeded_s <= first_s else None",
        "if False else None",
        "unit/engine/test_engine_breaker.py::test_nothing_is_burnt_whatever_the_attempts_and_the_order",
    ),
    Mutant(
        "a call that began while the service was down uses up an attempt once it is back",
        "flow/breakers.py",
        "if one.opened_s is None and since < one.back_s:",
        "if False:",
        "unit/engine/test_engine_breaker.py::test_a_failure_that_began_before_it_was_back_is_nobodys_attempt",
    ),
    Mutant(
        "a breaker that is open stays so",
        "flow/breakers.py",
        "        self.opened_s = None\n        self.in_a_row = 0",
        "        self.in_a_row = 0",
        "unit/engine/test_engine_breaker.py::test_a_ten_minute_outage_burns_no_record_and_is_probed_once_a_second",
    ),
    Mutant(
        "failures are counted and not in a row",
        "flow/breakers.py",
        "        self.in_a_row = 0\n        self.succeeded_s = now",
        "        self.succeeded_s = now",
        "unit/engine/test_engine_breaker.py::test_failures_count_in_a_row",
    ),
    Mutant(
        "one service that is down holds all",
        "flow/breakers.py",
        '        if self._target_of is None:\n            return ""',
        '        if True:\n            return ""',
        "unit/engine/test_engine_breaker.py::test_a_service_that_is_down_holds_no_other_one_up",
    ),
    Mutant(
        "the record that failed probes again and again",
        "flow/breakers.py",
        "AFTER_OTHERS = 0.5",
        "AFTER_OTHERS = 0.0",
        "unit/engine/test_engine_breaker.py::test_a_poisoned_record_that_opens_it_lets_another_one_probe",
    ),
    Mutant(
        "every error counts",
        "flow/breakers.py",
        "return isinstance(error, self._errors) and",
        "return isinstance(error, Exception) and",
        "unit/engine/test_engine_breaker.py::test_errors_that_do_not_count_are_judged_as_without_a_breaker",
    ),
    Mutant(
        "a success from before it was down says that it is back",
        "flow/breakers.py",
        "            if since < one.opened_s:\n                return\n",
        "",
        "unit/engine/test_engine_breaker.py::test_a_success_that_began_before_says_nothing",
    ),
]
