"""`keylane operate` on lanes that are killed meanwhile: the driver answers for them."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

TOKEN = "a token for the tests"
PARTITIONS = 4


def operate(capsys: pytest.CaptureFixture[str], work: Any, verb: str, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    found = main(["operate", verb, work.group, *more, "--bootstrap", work.servers, "--json"])
    said = capsys.readouterr()
    assert found == 0, said
    shown: dict[str, Any] = json.loads(said.out)
    return shown


def ran(work: Any) -> Counter[int]:
    """How often records of each partition ran."""
    return Counter(partition for _, partition, _ in work.outputs().outputs)


@pytest.fixture
def start(spark: SparkSession, work: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], kl.spark.LaneQuery]:
    """Starts two lanes that an operator may command, and gives the operator the token."""
    monkeypatch.setenv("KEYLANE_OPERATIONS_TOKEN", TOKEN)
    pipeline = work.pipeline(operations=kl.Operations(token=TOKEN, report_interval_ms=200))
    return lambda: kl.spark.start(pipeline, spark, lanes=2, progress_interval_ms=100)


@pytest.mark.full
def test_lanes_are_paused_adjusted_sought_and_drained_from_outside(
    start: Callable[[], kl.spark.LaneQuery],
    work: Any,
    until: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    spark: SparkSession,
) -> None:
    query = start()

    def shown() -> dict[str, Any]:
        (member,) = operate(capsys, work, "show")["members"]
        assert (member["runs"], member["spark_ui"]) == ("lanes", spark.sparkContext.uiWebUrl)
        return dict(member)

    until(lambda: bool(operate(capsys, work, "show")["members"]), lambda: query.lanes)
    until(lambda: sorted(len(lane["partitions"]) for lane in shown()["lanes"]) == [2, 2], lambda: query.lanes)
    paused = operate(capsys, work, "pause", "--topic", f"{work.topic}:0", "--execute")
    assert [(one["runs"], one["state"]) for one in paused["members"]] == [("lanes", "done")]
    operate(capsys, work, "adjust", "--max-concurrency", "3", "--execute")
    work.fill(400)
    ends = work.admin.log_ends([(work.topic, partition) for partition in range(PARTITIONS)], read_committed=False)
    waiting = ends[work.topic, 0]
    until(lambda: (query.snapshot().processed, query.snapshot().buffered) == (400 - waiting, waiting), query.snapshot)
    owner = next(lane for lane in query.lanes if f"{work.topic}-0" in lane.partitions)
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    until(lambda: query.lanes[owner.lane].launches == 2 and query.snapshot().buffered == waiting, lambda: query.lanes)
    assert query.snapshot().concurrency == 6, "also of the lane that started again"
    before = ran(work)
    assert before.keys() == {1, 2, 3}

    found = operate(capsys, work, "seek", "--topic", f"{work.topic}:1", "--to-earliest", "--execute")
    assert [one["member"] for one in found["partitions"]] == [shown()["member"]]
    until(lambda: ran(work) == {**before, 1: before[1] + ends[work.topic, 1]}, query.snapshot)
    drained = operate(capsys, work, "drain", "--execute")
    assert [one["state"] for one in drained["members"]] == ["done"]
    operate(capsys, work, "resume", "--execute")
    until(lambda: work.lag() == 0, query.snapshot)
    seen, once_more = work.outputs(), (work.topic, 2, 0)
    again = operate(capsys, work, "replay-record", f"{work.topic}:2@0", "--execute")
    assert again["records"] == [{"record": f"{work.topic}:2@0", "member": shown()["member"]}]
    until(lambda: Counter(work.outputs().outputs) == Counter([*seen.outputs, once_more]), query.snapshot)
    until(lambda: work.lag() == 0, query.snapshot)
    query.stop()
    assert operate(capsys, work, "show")["members"] == [], "it has said that it ends"
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])


@pytest.mark.full
def test_what_holds_is_there_before_a_lane_starts(
    start: Callable[[], kl.spark.LaneQuery], work: Any, until: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    first = start()
    until(lambda: len(first.snapshot().partitions) == PARTITIONS, lambda: first.lanes)
    operate(capsys, work, "pause", "--execute")
    first.stop()
    work.fill(100)
    second = start()
    until(lambda: second.snapshot().buffered == 100, second.snapshot)
    until(lambda: {one["why"] for one in operate(capsys, work, "keys")["queues"]} == {"paused"}, second.work)
    assert {one["lane"] for one in operate(capsys, work, "keys")["queues"]} == {0, 1}
    assert work.outputs().outputs == []
    operate(capsys, work, "resume", "--execute")
    until(lambda: work.lag() == 0, second.snapshot)
    second.stop()


@pytest.mark.full
def test_a_held_key_is_held_on_lanes_that_are_killed_and_all_others_go_on(
    start: Callable[[], kl.spark.LaneQuery], work: Any, until: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    first = start()
    until(lambda: len(first.snapshot().partitions) == PARTITIONS, lambda: first.lanes)
    held = operate(capsys, work, "hold-key", "--key", "key-3", "--execute")
    assert [(one["runs"], one["state"]) for one in held["members"]] == [("lanes", "done")]
    first.stop()
    second = start()
    until(lambda: sorted(len(lane.partitions) for lane in second.lanes) == [2, 2], lambda: second.lanes)
    work.fill(400)
    expected = {source for source, key in work.outputs().inputs.items() if key != b"key-3"}
    until(lambda: set(work.outputs().outputs) == expected, second.snapshot)
    (queue,) = operate(capsys, work, "keys")["queues"]
    assert (queue["why"], queue["behind"]) == ("paused", 400 - len(expected) - 1)
    until(lambda: work.left() == 400 - len(expected), second.snapshot)
    owner = second.lanes[queue["lane"]]
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    until(lambda: second.lanes[owner.lane].launches == 2, lambda: second.lanes)
    work.fill(100)
    expected = {source for source, key in work.outputs().inputs.items() if key != b"key-3"}
    until(lambda: set(work.outputs().outputs) == expected, second.snapshot)
    head = (queue["topic"], queue["partition"], queue["offset"])
    skipped = operate(capsys, work, "skip-record", "{}:{}@{}".format(*head), "--execute")
    assert [bool(one["member"]) for one in skipped["records"]] == [True]
    operate(capsys, work, "release-key", "--all", "--execute")
    until(lambda: work.lag() == 0, second.snapshot)
    second.stop()
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.repeated, seen.out_of_order("key")) == ({head}, set(), set(), [])
