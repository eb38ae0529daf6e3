"""Who is there, and what members answered, by what stands in the topic of reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from keylane import Snapshot
from keylane.consumer.events import Pause
from keylane.consumer.passing import Passing
from keylane.desk.members import log_report
from keylane.kafka.membership import Seek, Target
from keylane.operations.commands import Command, Holding
from keylane.operations.reports import SILENT_MS, Members, key_of, value_of
from keylane.operations.results import Result, read_result

if TYPE_CHECKING:
    from keylane.operations.reports import Report


def report(member: str = "m", group: str = "g", interval_ms: int = 2_000) -> Report:
    return {
        "version": 1,
        "group": group,
        "member": member,
        "runs": "process",
        "client_id": None,
        "host": "h",
        "pid": 1,
        "keylane": "0",
        "started_ms": 0,
        "reported_ms": 0,
        "interval_ms": interval_ms,
        "takes_commands": True,
        "command": 0,
        "holding": Holding().to_dict(),
        "snapshot": Snapshot().to_dict(),
        "lanes": [],
        "in_hand": [],
        "waiting": [],
        "queues": [],
    }


def test_a_member_is_there_while_it_is_heard_and_until_it_says_that_it_ends() -> None:
    members = Members("g")
    members.take(key_of("a"), value_of(report("a")), 0)
    members.take(key_of("slow"), value_of(report("slow", interval_ms=60_000)), 0)
    assert sorted(members.present(SILENT_MS)) == ["a", "slow"]
    assert sorted(members.present(SILENT_MS + 1)) == ["slow"]
    assert sorted(members.reports) == ["a", "slow"], "one that is silent is shown, and said to be"
    members.take(key_of("slow"), None, 1)
    assert sorted(members.reports) == ["a"]


def test_other_groups_other_versions_and_garbage_are_passed_over() -> None:
    members = Members("g")
    members.take(key_of("a"), value_of(report(group="h")), 0)
    members.take(key_of("a"), json.dumps(dict(report()) | {"version": 2}).encode(), 0)
    members.take(key_of("a"), b"\xff", 0)
    members.take(b"result:x:y", b"[]", 0)
    members.take(None, b"", 0)
    assert (members.reports, members.results) == ({}, {})


def test_the_last_answer_of_a_member_counts() -> None:
    members = Members("g")
    command = Command("c", "g", 1, 5, "ops", Seek({("t", 0): Target(3)}))
    for state, done in (("accepted", None), ("done", (("t", 0),))):
        at_ms = 7 if state == "accepted" else 9
        result = Result.of(command, "a", state, at_ms, partitions=done)  # type: ignore[arg-type] # a Literal
        assert read_result("g", result.key, result.value("g")) == result
        assert read_result("h", result.key, result.value("g")) is None
        members.take(result.key, result.value("g"), 0)
    assert members.results == {"c": {"a": result}}
    assert members.accepted_ms == {("c", "a"): 7}
    assert (result.state, result.partitions, result.about) == ("done", (("t", 0),), "t-0 to 3")


def test_when_a_member_began_stays_in_the_log_when_it_has_ended() -> None:
    """A compacted topic keeps the last record of each key."""
    command = Command("c", "g", 1, 5_000, "ops@host", Pause(None))
    answers = [Result.of(command, "a", "accepted", 7_000), Result.of(command, "a", "done", 9_000)]
    members = Members("g")
    for one in {answer.key: answer for answer in answers}.values():
        members.take(one.key, one.value("g"), 0)
    (told,) = log_report(members)["commands"]
    (answer,) = told["members"]
    assert (told["by"], told["sent"][17:19]) == ("ops@host", "05")
    assert (answer["state"], answer["accepted"][17:19], answer["at"][17:19]) == ("done", "07", "09")
    refused = Result.of(command, "b", "refused", 7_000)
    members.take(refused.key, refused.value("g"), 0)
    assert log_report(members)["commands"][0]["members"][1]["accepted"] is None


def test_an_answer_of_records_is_read_and_one_without_any_by_an_older_keylane_too() -> None:
    command = Command("c", "g", 1, 5, "ops", Passing((("t", 0, 7),), "dead"))
    result = Result.of(command, "a", "done", 7, records=("t:0@7",))
    assert read_result("g", result.key, result.value("g")) == result
    assert (result.verb, result.about) == ("park-record", "t:0@7 to dead")
    assert b"records" not in Result.of(command, "a", "accepted", 7).value("g")


def test_what_a_command_is_about_is_said() -> None:
    assert Command("c", "g", 1, 5, "ops", Pause(None)).about == "all"
    assert Command("c", "g", 1, 5, "ops", Pause((("t", 0), ("t", 2)))).about == "t-0, t-2"
