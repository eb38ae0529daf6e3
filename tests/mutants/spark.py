"""Mutants of the part on Spark: plans, carry-over, what tasks and the driver tell each other, and lanes."""

from __future__ import annotations

from mutants import Mutant

MUTANTS = [
    Mutant(
        "a batch that is planned anew reads what the group had complete",
        "spark/structured/plans.py",
        """            known = decode(self.done[name][1], self.done[name][0]) if name in self.done else None
            parts""",
        "            known = None\n            parts",
        "unit/spark/test_structured_plans.py::test_what_the_group_had_complete_is_left_out_until_it_is_passed",
        "guarantee 3",
    ),
    Mutant(
        "the group is told the end of a batch, though records of it are carried",
        "spark/structured/plans.py",
        "        base = min(left[name], default=known.first_incomplete(stop))\n",
        "        base = known.first_incomplete(stop)\n",
        "unit/spark/test_structured_plans.py::test_the_group_stands_at_the_first_carried_record_with_the_rest_complete",
        "guarantee 1",
    ),
    Mutant(
        "a log that begins beyond the plan is read from there on, and nobody is told",
        "spark/structured/plans.py",
        "        if first < log_starts[name]:\n            _lost(",
        "        if first < log_starts[name] and not fail_on_data_loss:\n            _lost(",
        "unit/spark/test_structured_plans.py::test_lost_records_are_an_error_or_passed",
        "guarantee 8",
    ),
    Mutant(
        "a partition with many carried records gets new ones",
        "spark/structured/plans.py",
        "        if log_ends[name] > first and carried.get(name, 0) <= CARRIED_A_PARTITION\n",
        "        if log_ends[name] > first\n",
        "unit/spark/test_structured_plans.py::test_a_partition_with_many_carried_records_gets_no_new_ones",
    ),
    Mutant(
        "shares of a batch are rounded down, and what is left over is left",
        "spark/structured/spans.py",
        "    for name in by_remainder[: limit - sum(given.values())]:\n        given[name] += 1\n",
        "",
        "property/spark/test_span_properties.py::test_shares_are_exactly_the_limit_and_never_more_than_there_is",
    ),
    Mutant(
        "what is left over when a batch is split into tasks is left out",
        "spark/structured/spans.py",
        "        room, part = total * number // parts - given, []\n",
        "        room, part = total // parts, []\n",
        "property/spark/test_span_properties.py",
    ),
    Mutant(
        "a list that is there is written over",
        "spark/structured/carry_lists.py",
        "                os.link(part, path)  # the one call that creates a whole file, or fails where there is one\n",
        "                os.replace(part, path)\n                os.link(path, part)\n",
        "unit/spark/test_structured_carry_lists.py::test_the_first_write_wins",
        "DataFrames' crash matrix: after the sink",
    ),
    Mutant(
        "a replay calls the function for what its list leaves out",
        "spark/structured/carry_over.py",
        "        if self.frozen is None:\n            return rows\n        return [",
        "        if self.frozen is None or not self.frozen.carried:\n            return rows\n        return rows or [",
        "unit/spark/test_structured_carry_over.py::test_a_batch_with_a_list_leaves_out_exactly_that_and_carries_nothing_else",
        "DataFrames' crash matrix: before the sink",
    ),
    Mutant(
        "a replay carries what fails, though its list is written",
        "spark/structured/carry_over.py",
        "        if outcome.error is None or self.is_frozen:\n            return outcome\n",
        "        if outcome.error is None:\n            return outcome\n",
        "unit/spark/test_structured_carry_over.py::test_a_batch_with_a_list_leaves_out_exactly_that_and_carries_nothing_else",
        "DataFrames' crash matrix: after the sink",
    ),
    Mutant(
        "the sink writes before the list is there",
        "spark/structured/acknowledged.py",
        """            found = lists.write_once(made_of(plan, batch, carry_over.collected(batch)))
            self._write(kept, batch)
""",
        """            self._write(kept, batch)
            found = lists.write_once(made_of(plan, batch, carry_over.collected(batch)))
""",
        "unit/spark/test_structured_acknowledged.py::test_rows_are_made_then_the_list_is_written_then_the_sink_and_then_the_group_has_them",
        "DataFrames' crash matrix: before the list",
    ),
    Mutant(
        "the rows of a batch are made by an action that plans three jobs",
        "spark/structured/running.py",
        "    rows.count()\n",
        "    frame.count()\n",
        "spark/test_acknowledged.py::test_the_rows_of_a_batch_with_carry_over_are_made_in_one_job",
    ),
    Mutant(
        "the group's offsets are committed before the sink has the batch",
        "spark/structured/acknowledged.py",
        "        self._member.check()\n        carried: list[tuple[str, int, int]] = []\n",
        """        self._member.check()
        self._member.commit(to_commit(group_offsets(running.plan)))
        carried: list[tuple[str, int, int]] = []
""",
        "unit/spark/test_structured_acknowledged.py::test_what_the_sink_does_not_have_is_not_committed",
        "DataFrames' crash matrix: before the sink",
    ),
    Mutant(
        "a list of another query is taken for this one's",
        "spark/structured/acknowledged.py",
        "        if last is not None and last.id != plan.id:\n            found = last\n",
        "",
        "unit/spark/test_structured_acknowledged.py::test_lists_of_another_query_are_refused",
        "guarantee 8",
    ),
    Mutant(
        "a record that is carried keeps no attempts",
        "spark/structured/carry_over.py",
        "        attempts = outcome.attempts = self._before(_name(outcome.row))[0] + 1\n",
        "        attempts = outcome.attempts = 1\n",
        "unit/spark/test_structured_carry_over.py::test_attempts_of_earlier_batches_count",
        "DataFrames' crash matrix: after the checkpoint",
    ),
    Mutant(
        "a key's later records run though an earlier one is carried",
        "spark/structured/carry_over.py",
        "            blocked = key is not None and key in self._blocked\n",
        "            blocked = False\n",
        "unit/spark/test_structured_carry_over.py::test_a_failure_is_carried_with_the_later_records_of_its_key",
        "guarantee 4",
    ),
    Mutant(
        "a row that fails finally is tried again",
        "spark/structured/row_calls.py",
        "super().__init__(failure.error, final=failure.final, places=failure.places)",
        "super().__init__(failure.error, places=failure.places)",
        "unit/spark/test_structured_parallel_map.py::test_what_is_fatal_is_not_tried_again",
    ),
    Mutant(
        "what follows of a key that is not due is due before it",
        "spark/structured/carry_over.py",
        "due_ms = self._blocked[key] = max(due_ms, self._blocked.get(key, 0))",
        "self._blocked.setdefault(key, due_ms)",
        "unit/spark/test_structured_parallel_map.py::test_what_is_not_due_leaves_the_batch_with_what_follows_of_its_key",
        "guarantee 4",
    ),
    Mutant(
        "rows that failed with another one's error meet it in the next batch again",
        "spark/structured/row_task.py",
        "tries = 1 if options.batch is None or not options.tries.allow(1) else 2",
        "tries = 1",
        "unit/spark/test_structured_parallel_map.py"
        "::test_the_row_that_fails_a_call_for_many_is_carried_and_the_others_are_not",
    ),
    Mutant(
        "a batch of rows waits to its end for more that do not come",
        "spark/structured/row_engine.py",
        "                self._flow.end_lingering()\n",
        "                pass\n",
        "unit/spark/test_structured_rows_in_batches.py::test_the_last_rows_of_a_task_linger_for_no_others",
    ),
    Mutant(
        "quick rows under carry-over go to a worker one at a time",
        "spark/structured/row_engine.py",
        "(held, None) if not_before is None else (None, held)",
        "(None, held)",
        "unit/spark/test_structured_row_engine.py"
        "::test_quick_rows_of_which_some_are_held_go_to_a_worker_several_at_a_time",
    ),
    Mutant(
        "dead letters are counted that the broker does not have yet",
        "spark/structured/row_task.py",
        """            if letters is not None:
                letters.acknowledged()
            if carry is not None:
""",
        "            if carry is not None:\n",
        "spark/test_contract_rows.py::test_on_exhausted",
    ),
    Mutant(
        "rows are given back before the dead letters before them are acknowledged",
        "spark/structured/row_task.py",
        """                    if letters is not None:
                        letters.acknowledged()
""",
        "",
        "unit/spark/test_structured_parallel_map.py"
        "::test_dead_letters_are_acknowledged_before_what_follows_them_is_given_back",
        "guarantee 3",
    ),
    Mutant(
        "a dead letter of the topic that is read goes round without end",
        "spark/structured/dead_letters.py",
        "is not None and place[0] == self._topic:",
        "is not None and not place[0]:",
        "spark/test_contract_rows.py::test_a_dead_letter_that_the_broker_does_not_take_fails_the_task",
    ),
    Mutant(
        "a task's counts replace those of the tasks before",
        "spark/structured/step_counts.py",
        "        return value1.merge(value2)\n",
        "        return value2\n",
        "spark/test_contract_rows.py::test_counts_of_all_tasks_of_a_step_add_up",
    ),
    Mutant(
        "the rate of each partition is one of all rows of the task",
        "spark/structured/row_task.py",
        "replace(rates, per_key=rates.per_partition, per_partition=None)",
        "replace(rates, records_per_s=rates.per_partition, per_partition=None)",
        "spark/test_contract_rows.py::test_rates",
        "option: rates",
    ),
    Mutant(
        "limits of steps that have ended are kept for as long as the process lives",
        "spark/structured/row_task.py",
        "@lru_cache(STEPS_KEPT)\n",
        "@lru_cache(None)\n",
        "unit/spark/test_structured_row_map.py::test_a_process_keeps_the_automatic_limits_of_the_steps_that_ran_last",
    ),
    Mutant(
        "rows go in the order in which Spark gives them, whatever order_by says",
        "spark/structured/row_task.py",
        "    rows.sort(key=lambda pair: tuple(pair[0][name] for name in order_by))\n",
        "",
        "unit/spark/test_structured_parallel_map.py::test_rows_run_in_the_order_that_is_asked_for",
    ),
    Mutant(
        "the progress of a query that was given a name counts for every one",
        "spark/structured/group_commits.py",
        "if self._stopped or (self._query is not None and progress.name != self._query):",
        "if self._stopped:",
        "unit/spark/test_structured_group_commits.py::test_each_batch_of_the_named_query_is_committed_until_another_driver_has_the_group",
    ),
    Mutant(
        "a lane's failures of long ago count",
        "spark/restarts.py",
        "        while self._failures[0] < now - self.limits.window_ms / 1000:\n            self._failures.popleft()\n",
        "",
        "unit/spark/test_spark_restarts.py::test_failures_that_left_the_window_do_not_count",
    ),
    Mutant(
        "lanes are taken away as soon as one less is enough",
        "spark/scaling.py",
        "now - self._too_many_since >= SHRINK_AFTER_S",
        "now - self._too_many_since >= 0",
        "unit/spark/test_spark_scaling.py::test_lanes_shrink_one_by_one_when_one_less_is_enough_for_long",
    ),
    Mutant(
        "a query goes on under the ids of another one that runs",
        "spark/static_members.py",
        "return [one for one in self._used if one in listed and one not in free]",
        "return [one for one in self._used if one in listed and one not in free and not _ended_here]",
        "unit/spark/test_spark_static_members.py::test_ids_that_a_query_of_this_process_ended_are_taken_over",
    ),
    Mutant(
        "a lane whose driver is gone goes on",
        "spark/lanes.py",
        """        except ConnectionError:
            self._end("driver gone")
            self._leave()
            return False
        return True
""",
        "        except ConnectionError:\n            self._leave()\n            return False\n        return True\n",
        "unit/spark/test_spark_lane_task.py::test_a_lane_whose_driver_is_gone_drains_and_ends",
    ),
    Mutant(
        "partitions that move between lanes take their committed offsets back",
        "spark/progress.py",
        "self._committed[name] = max(one.committed, self._committed.get(name, one.committed))",
        "self._committed[name] = one.committed",
        "unit/spark/test_spark_progress.py::test_a_partition_between_two_lanes_keeps_what_was_known",
    ),
    Mutant(
        "a connection that did not prove the query's key is heard",
        "spark/channel.py",
        "        first(connection, key)\n        then(connection, key)\n",
        "        first(connection, key)\n",
        "unit/spark/test_spark_channel.py::test_a_lane_tells_nothing_to_who_does_not_prove_the_key",
    ),
    Mutant(
        "speculation is refused only where it is on by default",
        "spark/checks.py",
        'if threshold is not None and _is_true(settings, "spark.speculation"):',
        'if threshold is not None and settings.get("spark.speculation") is True:',
        "unit/spark/test_spark_checks.py::test_speculation_by_duration_is_refused_when_speculation_is_on",
        "guarantee 8",
    ),
    Mutant(
        "a row without a topic goes where the row before it went",
        "spark/structured/sink.py",
        '        if topic is None:\n            raise UsageError("a row has',
        '        if topic == "":\n            raise UsageError("a row has',
        "unit/spark/test_structured_sink.py::test_a_row_without_a_topic_fails",
        "guarantee 8",
    ),
]
