"""Results and commits on their way to user code in the driver: what cannot travel, who is slow, and who goes."""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

import keylane as kl
from keylane.consumer.commits import Told
from keylane.consumer.outputs import NO_RESULTS, ResultsRule
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.records import PlainMessage
from keylane.spark.channel import Moved, Show, Void
from keylane.spark.from_lanes import MOST_SETTLED, FromLanes
from keylane.spark.outcome import BRIEF_BYTES, LaneFailure
from keylane.spark.start import results_of_lanes
from keylane.spark.to_driver import SHOW_BYTES, ToDriver
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.outputs import Delivery, ResultsMoved
    from keylane.spark.channel import Ships

T0 = ("t", 0)
PATIENCE_S = 10.0
PIPELINE = kl.Pipeline(kafka={"bootstrap.servers": "b", "group.id": "g"}, topics=["t"], handler=print)


class Shown:
    def __init__(self, offset: int, value: object = None) -> None:
        self.offset, self.value, self.wanted = offset, value, True

    def result(self) -> kl.Result:
        record = kl.Record(PlainMessage("t", 0, self.offset))
        return kl.Result(record, self.value, (kl.Produced(record, kl.Output("out"), "out", 0, self.offset),))


class Lane:
    """A lane's end, whose thread is the test's. As a lane's socket, it takes what the driver offers."""

    def __init__(self, rule: ResultsRule | None) -> None:
        self.posted: list[Ships] = []
        self.taken: list[Moved | Literal["left"]] = []
        self.keeps_up = True
        self.settled: list[tuple[int, Any]] = []
        self.passed = 0
        self.end = ToDriver(rule or NO_RESULTS, self.posted.append)
        self.end.report_to(self.moved)

    def moved(self, event: ResultsMoved[Delivery]) -> None:
        self.settled += [(one.offset, outcome) for one, outcome in cast("list[tuple[Shown, Any]]", event.settled)]
        self.passed += len(event.passed)

    def offer(self, order: Moved | Literal["left"]) -> bool:
        if self.keeps_up:
            self.taken.append(order)
        return self.keeps_up

    def show(self, *shown: Shown) -> list[Ships]:
        self.end.put(cast("list[Delivery]", shown))
        return self.pump()

    def pump(self) -> list[Ships]:
        with suppress(Empty):
            while True:
                self.end.pump(wait=False)
        posted, self.posted[:] = list(self.posted), []
        return posted


def started(driver: FromLanes, lane: int = 0) -> Lane:
    made = Lane(None)
    rule = driver.started(lane, made)
    assert rule is not None
    made.end.rule = rule
    return made


def show(driver: FromLanes, lane: Lane, *shown: Shown) -> None:
    for message in lane.show(*shown):
        driver.spoke(lane, message)


def read(driver: FromLanes) -> int | None:
    assert driver._queue is not None
    try:
        result = driver._queue.read(wait=False)
    except Empty:
        return None
    assert result is not None
    return result.record.offset


def answered(lane: Lane) -> None:
    for order in lane.taken:
        assert isinstance(order, Moved)
        lane.end.moved(order)
    lane.taken.clear()


def test_a_record_is_complete_once_its_reader_asks_for_the_next() -> None:
    driver = FromLanes(complete="read", max_unread=5)
    lane = started(driver)
    show(driver, lane, Shown(0), Shown(1))
    assert (read(driver), lane.taken) == (0, [])
    assert read(driver) == 1
    answered(lane)
    assert (lane.settled, lane.passed) == ([(0, None)], 1)


def test_a_record_is_complete_as_soon_as_its_result_is_here_and_still_waits() -> None:
    driver = FromLanes(complete="handled", max_unread=5)
    lane = started(driver)
    show(driver, lane, Shown(0))
    answered(lane)
    assert (lane.settled, lane.passed) == ([(0, None)], 0)
    assert (read(driver), read(driver)) == (0, None)
    answered(lane)
    assert (lane.settled, lane.passed) == ([(0, None)], 1)


def test_what_cannot_travel_is_the_failure_of_its_record_and_shows_no_payload() -> None:
    lane = Lane(ResultsRule(every=True))
    [sent] = lane.show(Shown(0, threading.Lock()), Shown(1, "secret"))
    assert isinstance(sent, Show)
    assert [number for number, _ in sent.results] == [2]
    [(offset, failure)] = lane.settled
    assert (offset, failure.final, lane.passed) == (0, True, 1)
    assert str(failure.error).startswith("what the handler returned cannot travel to the driver (TypeError: ")


def test_what_the_driver_cannot_load_is_the_failure_of_its_record() -> None:
    driver = FromLanes(complete="read", max_unread=5)
    lane = started(driver)
    [sent] = lane.show(Shown(0), Shown(1))
    assert isinstance(sent, Show)
    (first, _), second = sent.results
    driver.spoke(lane, Show(((first, b"cno_such_module\nThing\n."), second)))
    answered(lane)
    [(offset, failure)] = lane.settled
    assert (offset, lane.passed) == (0, 1)
    assert "the driver cannot load what the handler returned (ModuleNotFoundError: " in str(failure.error)
    assert read(driver) == 1


def test_classes_of_the_users_program_travel() -> None:
    class Local:
        number = 5

    driver = FromLanes(complete="read", max_unread=5)
    lane = started(driver)
    show(driver, lane, Shown(0, Local()))
    assert driver._queue is not None
    result = driver._queue.read(wait=False)
    assert result is not None
    assert result.value.number == 5


def test_large_results_go_in_messages_of_their_own() -> None:
    lane = Lane(ResultsRule(every=True))
    sent = lane.show(*(Shown(offset, b"x" * SHOW_BYTES) for offset in range(3)), Shown(3), Shown(4))
    assert [[number for number, _ in cast("Show", one).results] for one in sent] == [[1], [2], [3], [4, 5]]


def test_a_lane_that_does_not_keep_up_holds_up_nobody_and_is_told_later() -> None:
    driver = FromLanes(complete="read", max_unread=2_000)
    slow, other = started(driver, 0), started(driver, 1)
    slow.keeps_up = False
    show(driver, slow, *(Shown(offset) for offset in range(MOST_SETTLED + 1)))
    show(driver, other, Shown(7_000), Shown(7_001))
    while read(driver) is not None:
        pass
    answered(other)
    assert (slow.taken, other.passed) == ([], 2)
    slow.keeps_up = True
    driver.go_on(slow)
    assert len(slow.taken) == 2
    answered(slow)
    assert [offset for offset, _ in slow.settled] == list(range(MOST_SETTLED + 1))
    assert slow.passed == MOST_SETTLED + 1


@pytest.mark.parametrize("complete", ["read", "handled"])
def test_results_of_a_process_that_is_gone_wait_on_account_of_its_successor(complete: Any) -> None:
    driver = FromLanes(complete=complete, max_unread=3)
    first = started(driver)
    show(driver, first, Shown(0), Shown(1), Shown(2))
    assert read(driver) == 0
    driver.went(first)
    second = started(driver)
    assert second.end.rule.waiting == 3, "one is being read"
    show(driver, second, Shown(1))
    show(driver, first, Shown(3))
    assert [read(driver) for _ in range(4)] == ([1, None, None, None] if complete == "read" else [1, 2, 1, None])
    answered(second)
    assert second.passed == 4
    assert driver._unread.total() == 0


def test_what_a_lane_takes_back_is_not_read() -> None:
    driver = FromLanes(complete="read", max_unread=5)
    lane = started(driver)
    shown = [Shown(offset) for offset in range(3)]
    show(driver, lane, *shown)
    lane.end.put(cast("list[Delivery]", [Shown(3)]))
    shown[1].wanted = False
    lane.end.look()
    sent = lane.pump()
    assert sent == [sent[0], Void((2,))]
    for message in sent:
        driver.spoke(lane, message)
    assert (lane.settled, lane.passed) == ([(1, NOT_RUN)], 0)
    assert [read(driver) for _ in range(4)] == [0, 2, 3, None]
    answered(lane)
    assert ([offset for offset, _ in lane.settled], lane.passed) == ([1, 0, 2, 3], 4)


def test_a_lane_without_a_driver_takes_all_as_not_run() -> None:
    lane = Lane(ResultsRule(every=True))
    lane.show(Shown(0), Shown(1))
    lane.end.moved(Moved(((1, None),), passed=1))
    lane.end.leave()
    lane.show(Shown(2))
    assert lane.settled == [(0, None), (1, NOT_RUN), (2, NOT_RUN)]
    assert lane.passed == 3


def test_leaving_settles_what_was_read_and_tells_lanes_and_those_to_come() -> None:
    driver = FromLanes(complete="read", max_unread=5)
    lane = started(driver)
    show(driver, lane, Shown(0), Shown(1))
    read(driver)
    ended = threading.Event()
    stream = driver.stream(lambda: None, ended.set)
    with pytest.raises(kl.UsageError, match="has one already"):
        driver.stream(lambda: None, ended.set)
    with stream:
        assert next(stream).record.offset == 1
    assert ended.is_set()
    assert lane.taken == [Moved(((1, None),), passed=1), Moved(((2, None),), passed=1), "left"]
    late = started(driver)
    driver.go_on(late)
    assert late.taken == ["left"]


def test_on_produced_fails_a_record_and_comes_before_the_stream() -> None:
    class Own(Exception):  # noqa: N818
        pass

    def note(one: kl.Produced) -> None:
        if one.offset == 1:
            raise Own("no room")
        told.append(one.offset)

    told: list[int] = []
    driver = FromLanes(complete="read", max_unread=5, on_produced=note)
    driver.start(lambda: None)
    lane = started(driver)
    assert lane.end.rule == ResultsRule(produced=True, every=True, max_unseen=5)
    show(driver, lane, Shown(0), Shown(1), Shown(2))
    driver.close(PATIENCE_S)
    assert told == [0, 2]
    assert [read(driver), read(driver)] == [0, 2]
    answered(lane)
    outcomes = dict(lane.settled)
    assert isinstance(outcomes[1], Failure)
    assert str(outcomes[1].error).endswith("Own: no room"), "a class that cannot travel is quoted"
    assert lane.passed == 2, "the one that is being read waits"


def test_commits_are_heard_in_the_driver_and_acknowledged_one_by_one() -> None:
    heard: list[Any] = []
    driver = FromLanes(
        on_commit=lambda offsets, error: heard.append((offsets, error)),
        on_committed=lambda record: heard.append(record.offset),
    )
    driver.start(lambda: None)
    lanes = [started(driver, number) for number in range(2)]
    acknowledged: list[int] = []
    for number, lane in enumerate(lanes):
        commits = lane.end.commits(lambda told: acknowledged.append(told.count))
        assert commits is not None
        commits.put(Told({T0: 5}, {}, "", [PlainMessage("t", 0, 4)]))
        commits.close(0.01)
        for message in lane.pump():
            driver.spoke(lane, message)
        until(lambda count=number: len(heard) == 2 * count + 2, "it is heard", PATIENCE_S)  # type: ignore[misc]
    driver.close(PATIENCE_S)
    for lane in lanes:
        answered(lane)
    assert heard == [({T0: 5}, None), 4] * 2
    assert acknowledged == [2, 2]


def test_only_what_the_driver_wants_to_hear_travels() -> None:
    driver = FromLanes(on_commit=print)
    lane = started(driver)
    commits = lane.end.commits(lambda _: None)
    assert commits is not None
    commits.put(Told({T0: 5}, {}, "", [PlainMessage("t", 0, 4)]))
    assert lane.pump() == [Told({T0: 5}, {}, "", [])]
    assert Lane(ResultsRule(every=True)).end.commits(lambda _: None) is None
    assert FromLanes().started(0, lane) is None, "and a lane with nothing to show is told nothing"


def test_a_lane_that_ends_waits_until_its_commits_are_heard_but_not_for_a_driver_that_is_gone() -> None:
    driver = FromLanes(on_commit=lambda *_: None)
    lane = started(driver)
    commits = lane.end.commits(lambda _: None)
    assert commits is not None
    commits.put(Told({T0: 5}, {}, "", []))
    closing = threading.Thread(target=commits.close, args=(PATIENCE_S,))
    closing.start()
    lane.end.moved(Moved(heard=1))
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    commits.put(Told({T0: 6}, {}, "", []))
    closing = threading.Thread(target=commits.close, args=(PATIENCE_S,))
    closing.start()
    lane.end.leave()
    closing.join(PATIENCE_S / 2)
    assert not closing.is_alive()


def test_what_on_commit_raises_is_the_querys_failure() -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not today")

    failed = threading.Event()
    driver = FromLanes(on_commit=refuse)
    driver.start(failed.set)
    lane = started(driver)
    driver.spoke(lane, Told({T0: 5}, {}, "", []))
    assert failed.wait(PATIENCE_S)
    driver.close(PATIENCE_S)
    assert str(driver.failure) == "on_commit raised ValueError: not today"
    assert lane.taken == [Moved(heard=1)]


def test_a_query_without_a_stream_says_how_to_get_one() -> None:
    with pytest.raises(kl.UsageError, match=r"start\(…, stream='read'\)"):
        FromLanes(on_produced=print).stream(lambda: None, lambda: None)


def wants(**options: Any) -> Callable[[], FromLanes]:
    usual: dict[str, Any] = dict.fromkeys(("stream", "on_produced", "on_commit", "on_committed"))
    pipeline = options.pop("pipeline", PIPELINE)
    return lambda: results_of_lanes(pipeline, **(usual | {"max_unread": 1_000} | options))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (wants(stream="soon"), "stream='soon': give one of 'read', 'handled'"),
        (wants(stream="read", max_unread=0), "max_unread=0: give a whole number of at least 1"),
        (wants(on_committed=5), "on_committed=5"),
        (
            wants(
                stream="read",
                pipeline=kl.Pipeline(
                    kafka=PIPELINE.kafka,
                    topics=["t"],
                    handler=print,
                    delivery="at_most_once",
                    retries=kl.Retries(max_attempts=1),
                ),
            ),
            "give stream='handled'",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(made: Callable[[], FromLanes], text: str) -> None:
    with pytest.raises(kl.UsageError) as raised:
        made()
    assert text in str(raised.value)


def test_failures_go_to_a_lane_one_by_one_and_briefly() -> None:
    def refuse(one: kl.Produced) -> None:
        raise ValueError("no room" * 10_000)

    driver = FromLanes(on_produced=refuse)
    driver.start(lambda: None)
    lane = started(driver)
    lane.keeps_up = False
    show(driver, lane, *(Shown(offset) for offset in range(3)))
    driver.close(PATIENCE_S)
    lane.keeps_up = True
    driver.go_on(lane)
    assert [len(one.settled) for one in lane.taken if isinstance(one, Moved)] == [1, 1, 1]
    assert all(len(pickle.dumps(one)) < 2 * BRIEF_BYTES for one in lane.taken)
    answered(lane)
    assert [offset for offset, _ in lane.settled] == [0, 1, 2]
    assert lane.passed == 3


def test_a_failure_by_value_is_the_original_where_it_can_be() -> None:
    assert isinstance(LaneFailure.of(ValueError("no")).original, ValueError)
    quoted = LaneFailure("Own", "no", "", lasting=False, pickled=b"cno_such_module\nOwn\n.").original
    assert (type(quoted), str(quoted)) == (kl.HandlerError, "Own: no")
