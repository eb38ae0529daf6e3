"""Mutants of the broker's fetch sessions: what they tell, what their epochs refuse, which one goes for another."""

from __future__ import annotations

from mutants import Mutant

SESSIONS = "broker/fetch_sessions.py"
ORACLE = "property/broker/test_fetch_sessions_properties.py::test_a_session_tells_what_a_whole_fetch_would"
UNIT = "unit/broker/test_fetch_sessions.py"
IDS = "interop/test_topic_id_contract.py"

MUTANTS = [
    Mutant(
        "a session looks at every partition in each fetch",
        SESSIONS,
        "            self._session.awake.discard(self._partition)\n",
        "",
        f"{UNIT}::test_a_partition_rests_until_its_log_tells_of_something",
    ),
    Mutant(
        "a partition of which a session has not told all rests",
        SESSIONS,
        "and self.wanted.offset >= log.high_watermark ",
        "",
        ORACLE,
    ),
    Mutant(
        "a partition that is asked in another way rests on",
        SESSIONS,
        "        self.wake()\n        name = self.wanted.topic\n",
        "        self._session.awake.discard(self._partition)\n        name = self.wanted.topic\n",
        ORACLE,
    ),
    Mutant(
        "a log calls sessions that are over",
        SESSIONS,
        "            known.wake()\n",
        "            pass\n",
        ORACLE,
    ),
    Mutant(
        "nobody is told when a log begins elsewhere",
        "storage/log.py",
        "            self._tell_of_no_bytes()\n",
        "            pass\n",
        "interop/test_fetch_session_contract.py::test_a_session_tells_what_has_changed[keylane-12]",
    ),
    Mutant(
        "a fetch that waits does not hear of partitions that rest",
        "broker/handlers/fetch.py",
        "            listeners.append(begun.session.listeners)\n",
        "            pass\n",
        "interop/test_fetch_session_contract.py::test_a_fetch_waits_for_any_partition_of_its_session[keylane]",
    ),
    Mutant(
        "a session does not tell of a high watermark that moved alone",
        SESSIONS,
        "before != (answer.high_watermark, answer.log_start_offset)",
        "before[1] != answer.log_start_offset",
        ORACLE,
    ),
    Mutant(
        "a session does not tell of a log start offset that moved alone",
        SESSIONS,
        "before != (answer.high_watermark, answer.log_start_offset)",
        "before[0] != answer.high_watermark",
        ORACLE,
    ),
    Mutant(
        "a session tells of what has not changed",
        SESSIONS,
        "        self.log_start_offset = answer.log_start_offset\n",
        "",
        ORACLE,
    ),
    Mutant(
        "a session does not tell that an error is over",
        SESSIONS,
        "        self.high_watermark = -1 if has_error else answer.high_watermark\n",
        "        self.high_watermark = answer.high_watermark\n",
        f"{UNIT}::test_the_end_of_an_error_is_told_though_the_log_has_not_moved",
    ),
    Mutant(
        "a session reads on from where it was first asked",
        SESSIONS,
        "            known.ask(how)\n",
        "            known.wake()\n",
        "interop/test_fetch_session_contract.py::test_a_session_tells_what_has_changed[keylane-12]",
    ),
    Mutant(
        "a session goes on with partitions that its client has forgotten",
        SESSIONS,
        "            gone = self.partitions.pop(partition, None)\n",
        "            gone = None\n",
        "interop/test_fetch_session_contract.py::test_partitions_come_and_are_forgotten[keylane-12]",
    ),
    Mutant(
        "a session reads busy partitions first, and the others starve",
        SESSIONS,
        "            known.turn = next(self._turns)\n        return known.tell(answer)",
        "            pass\n        return known.tell(answer)",
        "interop/test_fetch_session_contract.py::test_what_gave_records_is_read_last_the_next_time[keylane]",
    ),
    Mutant(
        "a fetch of an epoch that was taken already is taken again",
        SESSIONS,
        "        if session.epoch != epoch:\n",
        "        if session.epoch < epoch:\n",
        f"{UNIT}::test_epochs_and_ids_that_are_wrong",
    ),
    Mutant(
        "a fetch that waited tells what the next one of its session has to tell",
        SESSIONS,
        "        if session.epoch != begun.epoch:",
        "        if session.epoch < begun.epoch:",
        "interop/test_fetch_session_contract.py::test_a_fetch_that_another_one_of_its_session_overtakes[keylane]",
    ),
    Mutant(
        "a full fetch leaves the session that it closes",
        SESSIONS,
        "            self._close(session_id)\n            return Begun(wanted, opens",
        "            return Begun(wanted, opens",
        f"{UNIT}::test_a_full_fetch_closes_the_session_that_it_names",
    ),
    Mutant(
        "a session without partitions stays for ever",
        SESSIONS,
        "        if not session.partitions:\n            return Begun(wanted)\n",
        "",
        f"{UNIT}::test_partitions_come_to_a_session_and_are_forgotten",
    ),
    Mutant(
        "a session that was used a moment ago goes for a new one",
        SESSIONS,
        "        if now_ms - oldest.used_ms > EVICTION_MS:\n",
        "        if now_ms - oldest.opened_ms > EVICTION_MS:\n",
        f"{UNIT}::test_one_that_was_not_used_for_two_minutes_goes_for_any_other",
    ),
    Mutant(
        "sessions of one size drive each other out",
        SESSIONS,
        "len(smallest.partitions) >= size",
        "len(smallest.partitions) > size",
        f"{UNIT}::test_one_that_is_older_than_two_minutes_goes_for_a_larger_one",
    ),
    Mutant(
        "a young session goes for a larger one",
        SESSIONS,
        "one.used_ms - one.opened_ms > EVICTION_MS",
        "one.used_ms >= one.opened_ms",
        f"{UNIT}::test_one_that_is_older_than_two_minutes_goes_for_a_larger_one",
    ),
    Mutant(
        "there are more sessions than slots",
        SESSIONS,
        "        if len(self._sessions) >= self._slots and",
        "        if len(self._sessions) > self._slots and",
        f"{UNIT}::test_without_room_a_full_fetch_is_answered_without_a_session",
    ),
    Mutant(
        "a fetch that closes its session waits for records of nothing",
        "broker/handlers/fetch.py",
        " or not (known or resting > 0):",
        ":",
        "integration/test_broker_protocol.py::test_a_fetch_of_nothing_waits_for_nothing",
    ),
    Mutant(
        "a fetch of a partition that does not exist beside others is answered at once",
        "broker/handlers/fetch.py",
        "for read in reads.values() if read.code not in NOBODYS]",
        "for read in reads.values()]",
        "interop/test_fetch_session_contract.py::test_a_partition_that_does_not_exist_ends_no_wait[keylane]",
    ),
    Mutant(
        "partitions that do not exist stand among the others",
        "broker/handlers/fetch.py",
        "sorted(reads.items(), key=lambda one: one[1].code in NOBODYS)",
        "reads.items()",
        "interop/test_fetch_session_contract.py::test_a_partition_that_does_not_exist[keylane-12]",
    ),
    Mutant(
        "a session of ids takes fetches of names",
        SESSIONS,
        "        if session.has_ids is not has_ids:\n",
        "        if session.has_ids is None:\n",
        f"{UNIT}::test_fetches_of_a_session_all_give_ids_or_all_names",
    ),
    Mutant(
        "a session forgets the name of a topic that was deleted",
        SESSIONS,
        "        self.wanted = wanted if name is None or name == wanted.topic else wanted._replace(topic=name)\n",
        "        self.wanted = wanted\n",
        f"{UNIT}::test_a_session_keeps_the_names_that_its_ids_had",
    ),
    Mutant(
        "a session that knew a topic is given the records of another one of its name",
        "broker/handlers/fetch.py",
        "node.topics.topic_id(topic) not in (named, None)",
        "node.topics.topic_id(topic) is NO_TOPIC_ID",
        f"{IDS}::test_a_session_is_told_that_its_topic_is_gone_and_that_another_has_its_name[keylane-18]",
    ),
]
