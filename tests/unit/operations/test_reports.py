"""Who is there, and what members answered, by what stands in the topic of reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given
from hypothesis import strategies as st

from keylane import Snapshot
from keylane.cli.operate_show import print_log, print_members
from keylane.consumer.events import Pause
from keylane.consumer.passing import Passing
from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Wait
from keylane.desk.members import keys_report, log_report, members_report
from keylane.flow.breakers import OpenBreaker
from keylane.flow.failures import FailureKind
from keylane.flow.keys import KeyRule, Where
from keylane.kafka.membership import Seek, Target
from keylane.operations.commands import Command, Holding
from keylane.operations.reports import NOT_TOLD_BEFORE, SILENT_MS, Members, is_report, key_of, value_of
from keylane.operations.results import Result, read_result
from keylane.ui.views import member_rows, work

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


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def busy() -> Report:
    """With something of everything in it."""
    snapshot = Snapshot(
        processed=3,
        partitions=(PartitionSnapshot("t", 0, 1, 1, 0, 0, 1, 5, remaining=4),),
        oldest=OldestRecord("t", 0, 1, 5),
        failures=(FailureKind("ValueError", "f (a.py:1)", 2, ""),),
        breakers=(OpenBreaker("s", 5),),
        waits=Wait("g", ("m",), 5),
    )
    row = {"lane": 0, "topic": "t", "partition": 0, "offset": 1, "why": "runs", "attempt": 1, "age_ms": 5}
    row |= {"due_in_ms": None, "behind": 1, "key": None}
    lanes = [
        {
            "lane": 0,
            "state": "running",
            "pid": 1,
            "host": "h",
            "executorId": "1",
            "launches": 1,
            "failures": 0,
            "partitions": ["t-0"],
        }
    ]
    held = Holding().after(KeyRule(Where.parse("key=a"), "hold")).to_dict()
    more: Any = {"snapshot": snapshot.to_dict(), "holding": held, "lanes": lanes}
    more |= {"in_hand": [row], "waiting": [row], "queues": [row]}
    made: Any = {**report(), **more}
    return cast("Report", json.loads(value_of(made)))


def change(value: Any, data: st.DataObject) -> Any:
    """The same with something else somewhere in it."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 4)):
        name = data.draw(st.sampled_from(sorted(value)))
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            return {other: one for other, one in value.items() if other != name}
        return value | {name: change(value[name], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 4)):
        return [change(value[0], data), *value[1:]]
    return data.draw(ANY_JSON)


def test_a_report_of_an_older_member_that_knows_fewer_figures_is_one() -> None:
    said: Any = busy()
    for name in NOT_TOLD_BEFORE:
        del said["snapshot"][name]
    assert is_report(said)
    del said["snapshot"]["in_flight"]
    assert not is_report(said)


def test_a_report_with_something_of_everything_is_one() -> None:
    members = Members("g")
    members.take(key_of("m"), value_of(busy()), 0)
    assert members.reports.keys() == {"m"}


@given(st.data())
def test_whatever_somebody_writes_for_a_report_who_shows_it_goes_on(data: st.DataObject) -> None:
    members = Members("g")
    members.take(key_of("m"), value_of(report("m")), 0)
    members.take(key_of("x"), json.dumps(change(busy(), data)).encode(), 0)
    members.take(key_of("y"), data.draw(st.binary(max_size=20)), 0)
    answered = Result.of(Command("c", "g", 1, 5, "me", Pause(None)), "m", "done", 6)
    members.take(answered.key, json.dumps(change(json.loads(answered.value("g")), data)).encode(), 0)
    assert "m" in members.reports
    json.dumps([member_rows(members, 0), work(members, 0), keys_report(members, 0, 9)])
    print_members(members_report(members, 0))
    print_log(log_report(members))
