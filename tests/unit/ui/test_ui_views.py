"""What a page is told makes it show what is there; what is shown of partitions, members and work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane import Snapshot
from keylane.consumer.snapshot import PartitionSnapshot
from keylane.kafka.admin import CommittedOffset
from keylane.offsets import OffsetMap, encode
from keylane.operations.commands import Holding
from keylane.operations.reports import Members, Seen
from keylane.ui.views import ROWS, changes, head, joined_rows, member_rows, partition_rows, work

if TYPE_CHECKING:
    from keylane.operations.reports import Report

NOW_MS = 1_000_000


def taken(before: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """What a page shows after it was told, as live.js does it."""
    after = dict(before)
    for section, now in told.items():
        if section in ROWS and section in before:
            after[section] = {name: row for name, row in (before[section] | now).items() if row is not None}
        else:
            after[section] = now
    return after


rows = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2).map(lambda value: {"value": value}))
views = st.fixed_dictionaries(
    {},
    optional={
        "partitions": rows,
        "members": rows,
        "log": st.lists(st.integers(0, 2)),
        "error": st.sampled_from([None, "x"]),
    },
)


@given(st.lists(views, max_size=6))
def test_a_page_that_is_told_every_change_shows_the_last_view(seen: list[dict[str, Any]]) -> None:
    shown: dict[str, Any] = {}
    view: dict[str, Any] = {}
    for one in seen:
        before, view = view, view | one
        told = changes(before, view)
        shown = taken(shown, told)
        assert shown == view
        assert changes(view, view) == {}


def test_of_a_thousand_partitions_those_that_moved_are_told() -> None:
    before = {"partitions": {f"t-{n}": {"lag": n} for n in range(1_000)}}
    after = {"partitions": {**before["partitions"], "t-7": {"lag": 0}}}
    del after["partitions"]["t-8"]
    assert changes(before, after) == {"partitions": {"t-7": {"lag": 0}, "t-8": None}}


def report(member: str = "m", **changed: Any) -> Report:
    said = {
        "member": member,
        "runs": "process",
        "client_id": "c",
        "host": "h",
        "pid": 1,
        "keylane": "0",
        "started_ms": 0,
        "reported_ms": NOW_MS,
        "interval_ms": 2_000,
        "takes_commands": True,
        "command": 0,
        "holding": Holding().to_dict(),
        "snapshot": Snapshot(
            partitions=(PartitionSnapshot("t", 0, 5, 5, 4, 0, 5, 5, in_handlers=3, on_hold=True),)
        ).to_dict(),
        "lanes": [],
        "in_hand": [],
        "waiting": [],
        "queues": [],
    }
    return cast("Report", said | changed)


def described(*partitions: dict[str, Any], members: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "group": "g",
        "state": "stable",
        "protocol": "classic",
        "assignor": None,
        "coordinator": None,
        "members": list(members),
        "partitions": list(partitions),
        "lag": 3,
        "remaining": 2,
        "unassigned": [],
    }


def stands(number: int, committed: int | None, end: int = 100, member: str | None = None) -> dict[str, Any]:
    return {
        "topic": "t",
        "partition": number,
        "committed": committed,
        "metadata_error": None,
        "log_end_offset": end,
        "lag": None,
        "remaining": None,
        "member_id": member,
    }


def test_services_that_are_down_are_said_once_whoever_keeps_them() -> None:
    members = Members("g")
    for name, open_ms in (("a", 2_000), ("b", 69_000)):
        snapshot = Snapshot().to_dict() | {"breakers": [{"target": "X", "open_ms": open_ms, "probe_in_ms": 400}]}
        members.reports[name] = Seen(report(name, snapshot=snapshot), NOW_MS)
    assert work(members, NOW_MS)["down"] == ["the service X has been down for 69 s, next probe in 0.4 s"]


def test_a_partition_has_its_strip_and_what_its_member_tells() -> None:
    maps = {
        ("t", 0): CommittedOffset(10, encode(OffsetMap(10, [10, 12], 19))),
        ("t", 1): CommittedOffset(7, "not a map"),
        ("t", 2): CommittedOffset(7, ""),
    }
    consumer = {"member_id": "id", "client_id": "their client", "host": "h", "assignment": {"t": [1]}}
    group = described(stands(0, 10), stands(1, 7, member="id"), stands(2, 7), stands(3, None), members=(consumer,))
    found = partition_rows(group, maps, {"m": Seen(report(), NOW_MS)})
    assert list(found) == ["t-0", "t-1", "t-2", "t-3"]
    first = found["t-0"]
    assert (first["strip"], first["highest"], first["incomplete"]) == ("0909999999", 19, 2)
    assert (first["in_handlers"], first["paused"], first["member"]) == (3, True, "m")
    assert [found[name]["strip"] for name in ("t-1", "t-2", "t-3")] == ["", "", ""]
    assert (found["t-1"]["member"], found["t-1"]["in_handlers"], found["t-1"]["paused"]) == (
        "their client",
        None,
        False,
    )


def test_members_that_do_not_report_are_those_of_the_coordinator() -> None:
    consumer = {"member_id": "id", "client_id": "c", "host": "/10.0.0.1", "assignment": {"t": [0, 2], "u": [1]}}
    found = joined_rows(described(members=(consumer,)))
    assert (found["id"]["partitions"], found["id"]["names"]) == (3, ["t-0", "t-2", "u-1"])
    shown = head(described(members=(consumer,)), reports=False)
    assert (shown["lag"], shown["remaining"], shown["reports"]) == (3, 2, False)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://driver:4040", "http://driver:4040"),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        (None, None),
    ],
)
def test_only_the_address_of_a_page_becomes_a_link(address: str | None, shown: str | None) -> None:
    """Whoever may write reports could else have a script run in the operator's page."""
    members = Members("g", {"m": Seen(report(spark_ui=address), NOW_MS)})
    assert member_rows(members, NOW_MS)["m"]["spark_ui"] == shown


def test_an_older_member_is_shown_without_what_it_does_not_tell() -> None:
    members = Members("g", {"m": Seen(report(), NOW_MS)})
    assert member_rows(members, NOW_MS)["m"]["spark_ui"] is None
    assert work(members, NOW_MS)["dead_letter_topics"] == []


def test_work_is_that_of_all_members_that_are_heard_the_oldest_first() -> None:
    def record(offset: int, age_ms: int | None, due_in_ms: int | None = None) -> dict[str, Any]:
        return {"topic": "t", "partition": 0, "offset": offset, "age_ms": age_ms, "due_in_ms": due_in_ms, "behind": 0}

    members = Members(
        "g",
        {
            "a": Seen(
                report("a", in_hand=[record(1, 10)], waiting=[record(5, 1, 900)], dead_letter_topic="dead"), NOW_MS
            ),
            "b": Seen(
                report("b", in_hand=[record(2, 99), record(3, None)], waiting=[record(6, 1, 20)], command=3), NOW_MS
            ),
            "silent": Seen(report("silent", in_hand=[record(4, 1_000_000)]), 0),
        },
    )
    found = work(members, NOW_MS)
    assert [(one["member"], one["offset"]) for one in found["in_hand"]] == [("b", 2), ("a", 1), ("b", 3)]
    assert [one["offset"] for one in found["waiting"]] == [6, 5]
    assert found["dead_letter_topics"] == ["dead"]


def test_what_holds_is_told_by_the_member_that_has_seen_most() -> None:
    behind = Holding().to_dict()
    ahead = behind | {"all_paused": True, "max_concurrency": 3}
    members = Members(
        "g", {"a": Seen(report("a", holding=ahead, command=4), NOW_MS), "b": Seen(report("b", command=2), NOW_MS)}
    )
    assert work(members, NOW_MS)["holds"] == ["all partitions are paused", "max_concurrency=3"]
    assert work(Members("g"), NOW_MS)["holds"] == []
