"""Plans of a stream: the next one, what it reads, and that it survives the checkpoint."""

from __future__ import annotations

import json

import pytest

from keylane.errors import PeerError
from keylane.offsets import OffsetMap, encode
from keylane.spark.structured.plans import (
    CARRIED_A_PARTITION,
    Plan,
    follow,
    group_offsets,
    new_records,
    still_there,
)

T0, T1 = ("t", 0), ("t", 1)
FIRST = Plan("q", 0, {T0: 5, T1: 0}, {T0: 5, T1: 0})
STARTS = {T0: 0, T1: 0}


def test_nothing_new_is_the_same_plan() -> None:
    assert follow(FIRST, STARTS, {T0: 5, T1: 0}) is FIRST


def test_a_plan_reads_from_where_the_last_one_ended() -> None:
    plan = follow(FIRST, STARTS, {T0: 8, T1: 2})
    assert (plan.seq, plan.start, plan.next) == (1, FIRST.next, {T0: 8, T1: 2})
    assert plan.spans() == {T0: ((5, 8),), T1: ((0, 2),)}
    assert follow(plan, STARTS, {T0: 9, T1: 2}).spans() == {T0: ((8, 9),)}


def test_a_limit_is_shared_in_proportion() -> None:
    plan = follow(FIRST, STARTS, {T0: 35, T1: 10}, limit=8)
    assert plan.next == {T0: 11, T1: 2}


def test_a_new_partition_starts_at_its_log_start() -> None:
    plan = follow(FIRST, {**STARTS, ("t", 2): 3}, {T0: 5, T1: 0, ("t", 2): 4})
    assert plan.spans() == {("t", 2): ((3, 4),)}
    assert new_records(FIRST, {T0: 7, ("t", 2): 4}) == 6


def test_what_the_group_had_complete_is_left_out_until_it_is_passed() -> None:
    done = {T0: (5, encode(OffsetMap(5, [5, 7], 9)))}
    first = Plan("q", 0, {T0: 5}, {T0: 5}, done)
    plan = follow(first, {T0: 0}, {T0: 20}, limit=4)
    assert plan.spans() == {T0: ((5, 6), (7, 8))}
    assert plan.done == done
    second = follow(plan, {T0: 0}, {T0: 12})
    assert second.spans() == {T0: ((10, 12),)}
    assert follow(second, {T0: 0}, {T0: 13}).done == {}


def test_carried_records_are_planned_with_new_ones_and_alone_when_they_are_due() -> None:
    plan = follow(FIRST, STARTS, {T0: 8, T1: 0}, redo=0, carried={T0: 1})
    assert plan.redo == 0
    assert plan.spans([("t", 0, 2)]) == {T0: ((2, 3), (5, 8))}
    assert follow(plan, STARTS, {T0: 8, T1: 0}, redo=1, carried={T0: 1}) is plan
    alone = follow(plan, STARTS, {T0: 8, T1: 0}, redo=1, carried={T0: 1}, due=True)
    assert alone.seq == 2
    assert alone.spans([("t", 0, 2)]) == {T0: ((2, 3),)}
    assert alone.to_json() != plan.to_json()


def test_a_partition_with_many_carried_records_gets_no_new_ones() -> None:
    ends = {T0: 8, T1: 2}
    assert follow(FIRST, STARTS, ends, redo=0, carried={T0: CARRIED_A_PARTITION}).next == ends
    assert follow(FIRST, STARTS, ends, redo=0, carried={T0: CARRIED_A_PARTITION + 1}).next == {T0: 5, T1: 2}


@pytest.mark.parametrize(
    ("starts", "ends", "says", "goes_on_at"),
    [
        ({T0: 7, T1: 0}, {T0: 9, T1: 0}, "t-0 starts at 7, and 5 is next", 7),
        ({T0: 0, T1: 0}, {T0: 3, T1: 0}, "t-0 ends at 3, and 5 is next", 3),
    ],
)
def test_lost_records_are_an_error_or_passed(
    starts: dict[tuple[str, int], int], ends: dict[tuple[str, int], int], says: str, goes_on_at: int
) -> None:
    with pytest.raises(PeerError, match=says):
        follow(FIRST, starts, ends)
    plan = follow(FIRST, starts, {**ends, T1: 1}, fail_on_data_loss=False)
    assert plan.start[T0] == goes_on_at


def test_a_log_that_was_cut_is_remembered_by_an_empty_batch() -> None:
    plan = follow(FIRST, STARTS, {T0: 3, T1: 0}, fail_on_data_loss=False)
    assert (plan.seq, plan.spans()) == (1, {})
    assert follow(plan, STARTS, {T0: 4, T1: 0}).spans() == {T0: ((3, 4),)}


def test_a_log_with_other_records_is_an_error_or_read_from_where_it_was_cut() -> None:
    done = {T0: (5, encode(OffsetMap(5, [5], 12)))}
    before = Plan("q", 3, {T0: 2, T1: 0}, {T0: 9, T1: 4}, done, {T0: 1, T1: 1})
    ends = {T0: 20, T1: 4}
    with pytest.raises(PeerError, match="t-0 was read up to 9, and was cut at 7 since then"):
        follow(before, STARTS, ends, epochs={T0: 2}, changes={T0: 7})
    plan = follow(before, STARTS, ends, epochs={T0: 2}, changes={T0: 7}, fail_on_data_loss=False)
    assert plan.spans() == {T0: ((7, 20),)}, "what the group had complete is of the log before, too"
    assert (plan.done, plan.epochs) == ({}, {T0: 2, T1: 1})
    assert follow(before, STARTS, ends, epochs={T0: 2}, changes={T0: 11}).spans() == {T0: ((11, 20),)}


def test_a_partition_that_is_gone_is_lost() -> None:
    with pytest.raises(PeerError, match="do not exist any more"):
        follow(FIRST, {T0: 0}, {T0: 6})
    assert follow(FIRST, {T0: 0}, {T0: 6}, fail_on_data_loss=False).spans() == {T0: ((5, 6),)}


def test_a_plan_comes_back_from_the_checkpoint_as_it_was() -> None:
    done = {T0: (5, encode(OffsetMap(5, [5], 9)))}
    for plan in (FIRST, Plan("q", 3, {T0: 6, T1: 0}, {T0: 8, T1: 1}, done, {T0: 4}, redo=2)):
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_what_adds_up_partitions_reads_a_plan_as_an_offset_of_sparks_own_source() -> None:
    offset = Plan("q", 3, {T0: 6, T1: 0}, {T0: 8, T1: 1}, {T0: (5, "")}, {T0: 4}, redo=2, ids={"t": "id"}).to_json()
    assert {(topic, int(one)): at for topic, some in offset.items() for one, at in some.items()} == {T0: 8, T1: 1}
    assert next(iter(offset)) == "t"


def test_a_plan_of_a_checkpoint_that_has_its_fields_side_by_side_is_read() -> None:
    fields = {"id": "q", "seq": 3, "from": {"t": {"0": 6}}, "next": {"t": {"0": 8}}, "redo": 2, "ids": {"t": "id"}}
    plan = Plan("q", 3, {T0: 6}, {T0: 8}, redo=2, ids={"t": "id"})
    assert Plan.from_json(fields) == Plan.taken_over(fields) == plan


@pytest.mark.parametrize(
    "foreign",
    [{"t": {"0": 5}}, {}, {"id": "x", "seq": 1, "from": 3, "next": {}}, {"t": {"0": 5}, "keylane plan {": {}}],
)
def test_an_offset_of_another_source_is_refused(foreign: dict[str, object]) -> None:
    with pytest.raises(PeerError, match="not of this source"):
        Plan.from_json(foreign)


def test_the_group_stands_at_the_first_carried_record_with_the_rest_complete() -> None:
    plan = Plan("q", 1, {T0: 5, T1: 0}, {T0: 20, T1: 3})
    found = group_offsets(plan, [("t", 0, 7), ("t", 0, 2)])
    assert found == {T0: OffsetMap(2, [2, 7], 19), T1: OffsetMap(3)}


def test_what_the_group_had_complete_beyond_the_batch_stays_complete() -> None:
    done = {T0: (5, encode(OffsetMap(5, [5, 7], 9)))}
    assert group_offsets(Plan("q", 1, {T0: 5}, {T0: 6}, done)) == {T0: OffsetMap(7, [7], 9)}
    assert group_offsets(Plan("q", 1, {T0: 5}, {T0: 8}, done)) == {T0: OffsetMap(10)}
    assert group_offsets(Plan("q", 1, {T0: 5}, {T0: 8}, done), [("t", 0, 5)]) == {T0: OffsetMap(5, [5], 9)}


def test_a_topic_that_was_made_anew_starts_again_or_fails() -> None:
    """Also where the new one has more records than the old one had: its offsets look as if the query could go on."""
    before = Plan("q", 3, {T0: 0}, {T0: 5}, ids={"t": "old"})
    with pytest.raises(
        PeerError,
        match="the topic t was deleted and made anew, or this is another cluster, and 5 of the old t-0 is next",
    ):
        follow(before, STARTS, {T0: 9}, ids={"t": "new"})
    plan = follow(before, STARTS, {T0: 9}, ids={"t": "new"}, fail_on_data_loss=False)
    assert (plan.spans(), plan.ids) == ({T0: ((0, 9),)}, {"t": "new"})
    assert Plan.from_json(plan.to_json()) == plan
    assert follow(before, STARTS, {T0: 9}, ids={"t": "old"}).spans() == {T0: ((5, 9),)}
    assert follow(Plan("q", 3, {T0: 0}, {T0: 5}), STARTS, {T0: 9}, ids={"t": "x"}).ids == {"t": "x"}


def test_a_topic_that_the_options_name_no_more_was_not_deleted() -> None:
    before = Plan("q", 3, {T0: 0, ("u", 0): 0}, {T0: 5, ("u", 0): 5})
    with pytest.raises(PeerError, match="the checkpoint reads u, which the query's options do not name any more"):
        follow(before, STARTS, {T0: 9}, reads="t".__eq__)
    with pytest.raises(PeerError, match="do not exist any more: records were deleted"):
        follow(before, STARTS, {T0: 9})
    assert follow(before, STARTS, {T0: 9}, reads="t".__eq__, fail_on_data_loss=False).spans() == {T0: ((5, 9),)}


def test_an_offset_of_sparks_own_source_is_where_the_query_stands() -> None:
    plan = Plan.taken_over({"t": {"0": 10, "1": 3}})
    assert (plan.id, plan.seq, plan.next) == ("", 0, {T0: 10, T1: 3})
    ours = Plan("q", 3, {T0: 0}, {T0: 5}, ids={"t": "old"})
    assert Plan.taken_over(ours.to_json()) == ours
    for other in ({"logOffset": 3}, {"t": {"0": "x"}}, {"t": {"a": 3}}, {}):
        with pytest.raises(PeerError, match="which is not of this source"):
            Plan.taken_over(other)


def test_of_a_plan_that_was_made_earlier_is_read_what_its_logs_still_have() -> None:
    plan = Plan("q", 3, {T0: 5, T1: 0}, {T0: 9, T1: 4}, ids={"t": "old"}, redo=2)
    same = still_there(plan, {T0, T1}, {}, {"t": "old"}, fail_on_data_loss=True)
    assert same.spans([("t", 0, 2)]) == {T0: ((2, 3), (5, 9)), T1: ((0, 4),)}
    for there, changes, ids, says, left in (
        ({T0, T1}, {T0: 7}, {}, "t-0 was read up to 9, and was cut at 7", {T0: ((2, 3), (5, 7)), T1: ((0, 4),)}),
        ({T0, T1}, {T0: 2}, {}, "t-0 was read up to 9, and was cut at 2", {T1: ((0, 4),)}),
        ({T1}, {}, {}, "t-0 does not exist any more", {T1: ((0, 4),)}),
        ({T0, T1}, {}, {"t": "new"}, "the topic t was deleted and made anew, or this is another cluster", {}),
    ):
        with pytest.raises(PeerError, match=says):
            still_there(plan, there, changes, ids, fail_on_data_loss=True)
        found = still_there(plan, there, changes, ids, fail_on_data_loss=False)
        assert found.spans([("t", 0, 2)]) == left


def test_a_carried_record_is_read_where_it_was() -> None:
    """From where a plan has gone back to, the log has others, which are read in their turn."""
    before = Plan("q", 3, {T0: 0}, {T0: 9}, epochs={T0: 1}, ids={"t": "old"})
    plan = follow(before, STARTS, {T0: 20}, limit=2, redo=2, changes={T0: 5}, fail_on_data_loss=False)
    assert plan.spans([("t", 0, 2), ("t", 0, 7)]) == {T0: ((2, 3), (5, 7))}
    plan = follow(before, STARTS, {T0: 20}, limit=2, redo=2, ids={"t": "new"}, fail_on_data_loss=False)
    assert plan.spans([("t", 0, 2), ("t", 0, 7)]) == {T0: ((0, 2),)}
