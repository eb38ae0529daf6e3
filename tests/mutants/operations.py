"""Mutants of operations: which commands count, what holds, who does what once, and what is told."""

from __future__ import annotations

from mutants import Mutant

COMMANDS = "unit/operations/test_commands.py"
MEMBERS = "integration/test_operations.py"

MUTANTS = [
    Mutant(
        "a command without the token counts",
        "operations/commands.py",
        "if mac is None or not hmac.compare_digest(mac, mac_of(self._token, value)):",
        "if False:",
        f"{COMMANDS}::test_a_command_without_the_token_changes_nothing_and_is_refused",
    ),
    Mutant(
        "the token is stored beside the command",
        "operations/commands.py",
        "hmac.new(token.encode(), value, hashlib.sha256).hexdigest().encode()",
        "hmac.new(token.encode(), value, hashlib.sha256).hexdigest().encode() + token.encode()",
        f"{COMMANDS}::test_the_token_is_not_in_what_is_stored",
    ),
    Mutant(
        "another group's command counts",
        "operations/commands.py",
        "if command.group != self._group or command.id.encode() != key:",
        "if command.id.encode() != key:",
        f"{COMMANDS}::test_another_groups_command_is_none_of_ours",
    ),
    Mutant(
        "an old command that is written once more counts",
        "operations/commands.py",
        "if command.number <= self.number:",
        "if False:",
        f"{COMMANDS}::test_an_old_command_that_is_written_again_is_refused",
    ),
    Mutant(
        "of two senders at once both count",
        "operations/commands.py",
        "if command.number <= self.number:",
        "if command.number < self.number:",
        f"{COMMANDS}::test_of_two_senders_at_once_the_later_one_is_refused_by_every_reader",
    ),
    Mutant(
        "what holds is deleted when it is old",
        "operations/commands.py",
        "now_ms - command.sent_ms > KEPT_MS and _held(rest) == _held(kept)",
        "now_ms - command.sent_ms > KEPT_MS",
        f"{COMMANDS}::test_what_is_deleted_changes_nothing",
    ),
    Mutant(
        "the number of the last command is deleted with it",
        "operations/commands.py",
        "for command in counted[:-1]:",
        "for command in counted:",
        f"{COMMANDS}::test_what_is_deleted_changes_nothing",
    ),
    Mutant(
        "a rate that is not named goes back to the pipeline's",
        "operations/commands.py",
        "known = dict(self.rates) | dict(rates or {})",
        "known = dict(rates or {})",
        f"{COMMANDS}::test_what_holds_is_what_a_consumer_does_that_was_told_all_of_it",
    ),
    Mutant(
        "a seek is done however late it comes",
        "operations/commands.py",
        "return isinstance(self.asked, Seek) and now_ms - self.sent_ms > LATE_MS",
        "return False",
        f"{COMMANDS}::test_only_what_is_done_once_is_ever_late",
    ),
    Mutant(
        "a member that is late is not asked whether it is",
        "operations/agent.py",
        "if command.is_late(_now_ms()):",
        "if False:",
        f"{MEMBERS}::test_a_seek_that_comes_too_late_is_refused",
    ),
    Mutant(
        "a consumer starts before it knows what holds",
        "parallel_consumer.py",
        "            self._told[:0] = held.changes\n",
        "            self._told[:0] = []\n",
        f"{MEMBERS}::test_a_paused_group_stays_paused_while_members_are_killed_and_others_start",
    ),
    Mutant(
        "a member that starts does what was done before",
        "operations/agent.py",
        "                for entry in self._reader.to_end():\n                    self._take(entry)\n",
        "",
        f"{MEMBERS}::test_a_seek_is_done_once_by_the_member_that_has_the_partition",
    ),
    Mutant(
        "nothing is said before a command is carried out",
        "operations/agent.py",
        '        self._answer(command, "accepted")\n',
        "",
        f"{MEMBERS}::test_a_member_that_is_killed_in_the_middle_is_said_to_be_and_nobody_else_does_it",
    ),
    Mutant(
        "a refused right is told again and again",
        "operations/agent.py",
        "            self._told.add(what)\n",
        "",
        f"{MEMBERS}::test_without_rights_it_says_so_once_and_goes_on_without",
    ),
    Mutant(
        "a member that ends stays in the reports",
        "operations/agent.py",
        "            writer.write(key_of(self._member), None)\n",
        "",
        f"{MEMBERS}::test_a_member_that_ends_says_so",
    ),
    Mutant(
        "a drain believes a report that was made before the pause",
        "cli/operate_send.py",
        'seen.report["command"] < command.number or not is_drained(seen, command.partitions)',
        "not is_drained(seen, command.partitions)",
        "unit/cli/test_cli_operate.py::test_a_drain_waits_for_a_report_that_was_made_after_the_pause",
    ),
    Mutant(
        "a drain does not wait for commits",
        "cli/operate_send.py",
        'one["in_handlers"] or one["uncommitted"]',
        'one["in_handlers"]',
        f"{MEMBERS}::test_drain_returns_when_nothing_is_in_handlers_and_what_is_complete_is_committed",
    ),
    Mutant(
        "a member that did not answer has done it",
        "cli/operate_send.py",
        """all(row["state"] == "done" for row in rows)""",
        """all(row["state"] in ("done", "silent") for row in rows)""",
        f"{MEMBERS}::test_a_member_that_is_killed_in_the_middle_is_said_to_be_and_nobody_else_does_it",
    ),
    Mutant(
        "a silent member is taken for one that is there",
        "operations/reports.py",
        'max(SILENT_MS, SILENT_INTERVALS * self.report["interval_ms"])',
        '10 * max(SILENT_MS, SILENT_INTERVALS * self.report["interval_ms"])',
        "unit/operations/test_reports.py::test_a_member_is_there_while_it_is_heard_and_until_it_says_that_it_ends",
    ),
    Mutant(
        "lanes begin without what holds",
        "spark/controls.py",
        "self.settings = settings or Settings()",
        "self.settings = Settings()",
        "unit/spark/test_spark_controls.py::test_what_held_before_is_what_lanes_begin_with",
    ),
    Mutant(
        "a reader waits for an end that is told, while others write on",
        "kafka/keyed_topic.py",
        "if is_end or self._position >= end:",
        "if is_end:",
        f"{MEMBERS}::test_members_without_a_token_only_report",
    ),
]
