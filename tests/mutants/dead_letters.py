"""Mutants of dead letters: what they say, who comes back, and what is remembered of it."""

from __future__ import annotations

from mutants import Mutant

KILLS = "integration/test_dlq.py::test_a_redrive_that_is_killed_loses_none_and_sends_none_twice"

IN_GROUP = "unit/operations/test_redrive_in_group.py"

MUTANTS = [
    Mutant(
        "a redrive in the group that was killed asks for the same records once more",
        "desk/redrive_in_group.py",
        "if before is not None and before.is_done:",
        "if False:",
        "integration/test_operations_replay.py::"
        "test_records_of_dead_letters_run_again_in_their_group_once_each_without_a_copy",
    ),
    Mutant(
        "a record that dies again before its replay is said to be done is taken for back",
        "desk/redrive_in_group.py",
        "began_ms = members.accepted_ms.get((one.command, one.member), one.at_ms)",
        "began_ms = one.at_ms",
        f"{IN_GROUP}::test_a_letter_is_back_when_a_member_began_after_it_was_written_and_said_that_it_was_done",
        "crash matrix: records of dead letters run again in their group",
    ),
    Mutant(
        "a replay that nobody has said to be done is asked for once more",
        "desk/redrive_in_group.py",
        'reason = "unknown" if before is not None else run',
        "reason = run",
        f"{IN_GROUP}::test_a_letter_whose_replay_may_have_been_done_waits_for_an_operator",
    ),
    Mutant(
        "a redrive's position is not in the transaction of its records",
        "kafka/redriving.py",
        "        self._until_told(lambda: send_offsets(self._producer, self._asking, positions, CALL_S))\n",
        "",
        KILLS,
        "crash matrix: dead letters go back to their topics",
    ),
    Mutant(
        "a redrive has a transactional id of its own, and fences nobody",
        "kafka/redriving.py",
        "NO_NEW_TOPICS | producing, group, TRANSACTION_TIMEOUT_MS",
        "NO_NEW_TOPICS | producing, f'{group}-{time.monotonic_ns()}', TRANSACTION_TIMEOUT_MS",
        "integration/test_dlq.py::test_a_later_redrive_fences_an_earlier_one",
    ),
    Mutant(
        "letters of an aborted transaction are letters",
        "kafka/redriving.py",
        '"isolation.level": "read_committed"',
        '"isolation.level": "read_uncommitted"',
        "integration/test_dlq.py::test_list_and_show",
    ),
    Mutant(
        "payloads are shown to everybody",
        "desk/letters.py",
        "return shown | (_payload(queue, record, letter) if payloads else {})",
        "return shown | _payload(queue, record, letter)",
        "integration/test_dlq.py::test_list_and_show",
    ),
    Mutant(
        "what was not chosen counts as sent back",
        "desk/redrive.py",
        "            self.others += 1\n",
        "            self.others += 1\n            self.trackers[record.partition].complete([record.offset])\n",
        "unit/cli/test_cli_dlq.py::test_what_did_not_go_waits_and_what_went_never_goes_again",
    ),
    Mutant(
        "a letter goes back that the position cannot remember",
        "desk/redrive.py",
        'return "too far" if record.offset > limit else None',
        "return None",
        "unit/cli/test_cli_dlq.py::test_a_letter_that_the_position_cannot_remember_is_left",
    ),
    Mutant(
        "rounds are counted and bound nothing",
        "desk/redrive.py",
        "if letter.rounds + more_rounds >= self.max_rounds:",
        "if letter.rounds + more_rounds > self.max_rounds:",
        "unit/cli/test_cli_dlq.py::test_each_reason_leaves_its_letter_waiting",
    ),
    Mutant(
        "a share group's letter without the record goes back as a tombstone",
        "desk/redrive.py",
        'if letter.death.kind == "share group" and',
        'if letter.death.kind == "none" and',
        "unit/cli/test_cli_dlq.py::test_each_reason_leaves_its_letter_waiting",
    ),
    Mutant(
        "a record comes back to any partition of its topic",
        "desk/redrive.py",
        "partition=partition if is_there else None",
        "partition=None",
        "unit/cli/test_cli_dlq.py::test_a_record_goes_back_to_its_own_partition_and_to_another_topic_by_its_key",
    ),
    Mutant(
        "a record that dies again has a set of headers for each death",
        "consumer/dead_letters.py",
        "return [one for one in headers if one[0] not in _OURS]",
        "return list(headers)",
        "unit/engine/test_engine_dead_letters.py::"
        "test_a_record_that_dies_again_has_one_set_of_its_last_death_and_keeps_its_rounds",
    ),
    Mutant(
        "a round does not count",
        "consumer/dead_letters.py",
        "str(letter.rounds + 1)",
        "str(letter.rounds)",
        "unit/engine/test_engine_dead_letters.py::test_what_comes_back_has_one_set_and_one_more_round",
    ),
    Mutant(
        "a letter that died twice is sent to the dead-letter topic it was in",
        "consumer/dead_letters.py",
        'first_topic = said.get(of.topic, [b""])[0]',
        'first_topic = said.get(of.topic, [b""])[-1]',
        "unit/engine/test_engine_dead_letters.py::test_a_letter_whose_own_consumer_failed_goes_back_to_the_first_topic",
    ),
    Mutant(
        "a purge of what came back takes letters that wait",
        "desk/purge.py",
        "redriven[name[1]].base if",
        "redriven[name[1]].highest_completed + 2 if",
        "integration/test_dlq.py::test_redrive_and_purge",
    ),
]
