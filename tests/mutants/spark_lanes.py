"""Mutants of what the driver and its lanes tell each other: what users ask of lanes, and what lanes show to users."""

from __future__ import annotations

from mutants import Mutant

CONTROLS = "unit/spark/test_spark_controls.py"
RESULTS = "unit/spark/test_spark_results.py"
SIMULATED = "property/spark/test_lane_results_properties.py"

MATRIX = "spark/test_lanes_matrix.py"
CONNECT = "unit/spark/test_spark_connect_session.py"

MUTANTS = [
    # What travels to lanes, and what holds there.
    Mutant(
        "two queries that start at once tell cloudpickle by turns what travels as code",
        "flow/workers/cargo.py",
        "        with _packing, _user_modules_by_value(cloudpickle):\n",
        "        with _user_modules_by_value(cloudpickle):\n",
        "unit/spark/test_spark_shipping.py::test_queries_that_start_at_once_do_not_spoil_each_others_cargo",
    ),
    Mutant(
        "lanes take every guarantee for at least once",
        "spark/lanes.py",
        "            ours = replace(pipeline, kafka={**pipeline.kafka, **task.kafka}, topics=topics)\n",
        "            ours = replace(\n"
        "                pipeline, kafka={**pipeline.kafka, **task.kafka}, topics=topics, delivery='at_least_once'\n"
        "            )\n",
        f"{MATRIX}::test_a_kill_at_each_point[keylane-at_most_once]",
        "crash matrix: at_most_once",
    ),
    Mutant(
        "lanes start again and again where the executors have another Python than the driver",
        "spark/jobs.py",
        """    if (wrong := wrong_python(text, python)) is not None:
        return wrong
""",
        "",
        f"{CONNECT}::test_a_server_with_another_python_ends_the_query_with_a_sentence",
    ),
    # Through Spark Connect.
    Mutant(
        "a lane of a Connect client is interrupted together with the other ones",
        "spark/connect.py",
        '        return f"keylane-{self._run_id}-lane-{lane}"\n',
        '        return f"keylane-{self._run_id}"\n',
        f"{CONNECT}::test_a_lane_has_a_tag_of_its_own_and_is_interrupted_by_it",
    ),
    Mutant(
        "a Connect client's lanes take every slot of a local server",
        "spark/connect.py",
        "int(local[1] or 1) - (not self.allow_all)",
        "int(local[1] or 1)",
        f"{CONNECT}::test_a_local_server_keeps_a_slot_free",
    ),
    Mutant(
        "lanes look for their Connect client under another name than the one that is set",
        "spark/connect.py",
        "        if (host := self.setting(CLIENT_HOST)) is not None:",
        "        if (host := self.setting(CLIENT_HOST)) is None:",
        f"{CONNECT}::test_lanes_connect_to_the_clients_address_on_the_way_to_the_server_or_to_what_is_set",
    ),
    Mutant(
        "settings that start a lane twice are not looked for through Spark Connect",
        "spark/connect.py",
        "        check_settings({name: value for name in LOOKED_AT if (value := self.setting(name)) is not None})\n",
        "",
        f"{CONNECT}::test_what_a_client_cannot_have_is_refused_by_name",
    ),
    # What users ask of lanes.
    Mutant(
        "a lane that starts later begins with nothing of what was asked",
        "spark/controls.py",
        "        return self.settings.changes\n",
        "        return ()\n",
        f"{CONTROLS}::test_a_lane_that_went_holds_up_nobody_and_its_successor_begins_with_what_was_asked",
    ),
    Mutant(
        "a call ends with the first lane that answers",
        "spark/controls.py",
        "        return not self.waits_for and not self.left\n",
        "        return not self.left\n",
        f"{CONTROLS}::test_a_call_ends_when_every_lane_has_answered",
    ),
    Mutant(
        "a lane that went is waited for",
        "spark/controls.py",
        "            call.waits_for.discard(lane)\n            lost =",
        "            lost =",
        f"{CONTROLS}::test_a_lane_that_went_holds_up_nobody_and_its_successor_begins_with_what_was_asked",
    ),
    Mutant(
        "what a lane that went was to seek in is nobody's",
        "spark/controls.py",
        "            call.left.update(dict.fromkeys(lost))\n",
        "",
        f"{CONTROLS}::test_a_seek_goes_to_the_next_one_that_has_the_partition",
    ),
    Mutant(
        "two lanes seek in one partition",
        "spark/controls.py",
        "if at is None and name in has and name not in sought]",
        "if name in has and name not in sought]",
        f"{CONTROLS}::test_a_seek_goes_to_the_next_one_that_has_the_partition",
    ),
    Mutant(
        "a lane in the middle of a seek is asked again",
        "spark/controls.py",
        " and not is_at_it:",
        ":",
        f"{CONTROLS}::test_a_partition_that_a_lane_gets_in_the_middle_of_a_seek_is_sought_once",
    ),
    Mutant(
        "of two seeks in one partition either may be the last",
        "spark/controls.py",
        "            sought.update(call.left)\n",
        "",
        f"{CONTROLS}::test_of_two_seeks_in_one_partition_the_later_one_is_the_last",
    ),
    Mutant(
        "a seek ends every lane that starts",
        "spark/controls.py",
        "            call.losses += bool(lost)\n",
        "",
        f"{CONTROLS}::test_a_seek_that_ends_lanes_does_not_end_them_all",
    ),
    Mutant(
        "resuming one partition goes on with all",
        "consumer/settings.py",
        "            case Resume(None):\n                return replace(self, all_paused=False, paused=frozenset())\n",
        "            case Resume(_):\n                return replace(self, all_paused=False, paused=frozenset())\n",
        f"{CONTROLS}::test_pauses_and_bounds_add_up_as_in_a_consumer",
    ),
    Mutant(
        "a lane that does not answer is waited for, for ever",
        "spark/controls.py",
        "        late = [call for call in self._calls.values() if now >= call.due]\n",
        "        late = [call for call in self._calls.values() if now >= call.due + 1]\n",
        f"{CONTROLS}::test_a_lane_that_does_not_answer_is_named",
    ),
    Mutant(
        "a seek in all partitions passes over one whose lane went",
        "spark/controls.py",
        "                expected = ours | call.tried | set(call.what.targets)\n",
        "                expected = ours | set(call.what.targets)\n",
        f"{CONTROLS}::test_a_seek_in_all_does_not_pass_over_what_a_lane_had_or_what_was_named",
    ),
    # What lanes show to users.
    Mutant(
        "what a lane that is gone showed is still read",
        "spark/from_lanes.py",
        "        return not (self.is_void or self.process.is_gone)\n",
        "        return not self.is_void\n",
        f"{RESULTS}::test_results_of_a_process_that_is_gone_wait_on_account_of_its_successor",
        "guarantee 4",
    ),
    Mutant(
        "a lane counts nothing of what its predecessors left in the driver",
        "spark/from_lanes.py",
        "            return replace(self._rule, waiting=self._unread[lane])\n",
        "            return self._rule\n",
        f"{SIMULATED}::test_nothing_is_lost_the_order_is_kept_and_so_is_the_bound",
    ),
    Mutant(
        "what a successor found waiting never counts as read",
        "spark/from_lanes.py",
        "                    process = self._current[process.lane]\n",
        "                    continue\n",
        f"{RESULTS}::test_results_of_a_process_that_is_gone_wait_on_account_of_its_successor",
    ),
    Mutant(
        "what a lane could not take at once is dropped",
        "spark/from_lanes.py",
        "            if not process.end.offer(Moved(tuple(some), process.passed, process.heard)):\n",
        "            if process.end.offer(Moved(tuple(some), process.passed, process.heard)) is None:\n",
        f"{RESULTS}::test_a_lane_that_does_not_keep_up_holds_up_nobody_and_is_told_later",
        "guarantee 1",
    ),
    Mutant(
        "the driver hears of commits, and no lane learns it",
        "spark/from_lanes.py",
        "            process.heard += 1\n",
        "",
        f"{RESULTS}::test_commits_are_heard_in_the_driver_and_acknowledged_one_by_one",
    ),
    Mutant(
        "a record is complete although its driver went",
        "spark/to_driver.py",
        "        self._settle([(number, NOT_RUN) for number in numbers], range(len(numbers)))\n",
        "        self._settle([(number, None) for number in numbers], range(len(numbers)))\n",
        f"{RESULTS}::test_a_lane_without_a_driver_takes_all_as_not_run",
        "guarantee 1",
    ),
    Mutant(
        "what a lane takes back is read",
        "spark/to_driver.py",
        "            self._queue.put(Void(void))\n",
        "",
        f"{RESULTS}::test_what_a_lane_takes_back_is_not_read",
        "guarantee 4",
    ),
    Mutant(
        "results after the driver has gone wait for ever",
        "spark/to_driver.py",
        "        if left:\n            self._report(",
        "        if left and not deliveries:\n            self._report(",
        f"{SIMULATED}::test_who_leaves_leaves_the_rest_to_do",
    ),
    Mutant(
        "a result that cannot travel holds its record up",
        "spark/to_driver.py",
        "            self._settle([(number, Failure(HandlerError(text), final=True))], range(1))\n",
        "            logger.warning(text)\n",
        f"{RESULTS}::test_what_cannot_travel_is_the_failure_of_its_record_and_shows_no_payload",
        "guarantee 8",
    ),
    Mutant(
        "a result is complete before it is in the queue, and what follows may come before it",
        "consumer/results.py",
        """            if not left:
                self._queue.put(deliveries)
        if self._at_once:  # now that nothing that follows can come before it
            self._report(ResultsMoved([(delivery, None) for delivery in deliveries]))
""",
        """            if self._at_once:
                self._report(ResultsMoved([(delivery, None) for delivery in deliveries]))
            if not left:
                self._queue.put(deliveries)
""",
        "unit/engine/test_engine_results.py::test_a_handled_result_is_in_the_queue_before_what_follows_it",
        "guarantee 4",
    ),
]
