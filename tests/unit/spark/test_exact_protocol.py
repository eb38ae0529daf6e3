"""The driver's part of exactly once into Kafka, request by request: in which order, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import PeerError, UsageError
from keylane.spark.structured.exact import protocol
from keylane.spark.structured.exact.protocol import (
    Add,
    Answer,
    Append,
    Decide,
    Describe,
    Described,
    End,
    FencedError,
    ForgottenError,
    Init,
    NotOpenError,
    Open,
    Plan,
    Producer,
    Read,
    ReplayDiffersError,
    Transaction,
    Undo,
)
from keylane.spark.structured.exact.record import Entry, SinkRecord
from keylane.spark.structured.exact.task_ids import TaskIds
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

DRIVER = Producer(1, 5)
FIRST, SECOND = Entry(0, "a", 10, 0, 3, 300, 0), Entry(1, "b", 11, 0, 4, 400, 0)
LISTED = SinkRecord("q", 7, (FIRST, SECOND))
DONE = SinkRecord("q", 7)
FRESH = Plan(DRIVER, 0, None, may_begin=True)


def driven(steps: Generator[Any, Answer, Any], answers: Callable[[Any], Answer | None]) -> tuple[list[Any], Any]:
    """What is asked, and what comes of it; what `answers` leaves out is answered as on a quiet cluster."""
    asked: list[Any] = []
    request = next(steps)
    while True:
        asked.append(request)
        try:
            request = steps.send(answers(request) or usual(request))
        except StopIteration as end:
            return asked, end.value


def usual(request: Any) -> Answer:
    match request:
        case Open():
            return Answer(value=[])
        case Init():
            return Answer(value=DRIVER)
        case Describe(ids):
            held = {"a": Producer(10, 0), "b": Producer(11, 0)}
            return Answer(value={one: Described(held[one], True, 0, 60_000) for one in ids})
    return Answer()


def ends(entry: Entry, *, committed: bool = True) -> End:
    return End(entry.id, Producer(entry.producer_id, entry.epoch), committed)


def test_a_record_that_is_missing_behind_the_first_batch_is_refused_unless_the_query_begins() -> None:
    _, plan = driven(protocol.start(), lambda _: None)
    protocol.check(plan, "q", 0)
    with pytest.raises(
        PeerError, match=r"has no record, and batch 9 of query q is not the first.*onMissingRecord=begin"
    ):
        protocol.check(plan, "q", 9)
    _, plan = driven(protocol.start(may_begin=True), lambda _: None)
    protocol.check(plan, "q", 9)


def test_a_record_that_lies_batches_behind_the_checkpoint_was_put_back() -> None:
    plan = Plan(DRIVER, 0, DONE)
    protocol.check(plan, "q", 8)
    with pytest.raises(
        PeerError, match=r"batch 9 of query q comes, and the last one that the sink knows is 7.*from 8 on"
    ):
        protocol.check(plan, "q", 9)
    of_before = SinkRecord.of_json(DONE.to_json().replace(b',"gapless":true', b""))
    protocol.check(plan._replace(record=of_before), "q", 9)  # batches without rows left no record then


def test_a_start_ends_what_is_listed_and_aborts_the_rest() -> None:
    loser = Transaction("c", Producer(12, 3))
    answers = {Open(): Answer(value=[Transaction("a", Producer(10, 0)), loser]), Read(): Answer(value=LISTED)}
    asked, plan = driven(protocol.start(), answers.get)
    assert asked == [
        Open(),
        Init(None),
        Read(),
        ends(FIRST),
        ends(SECOND),
        Add(DRIVER),
        Append(DRIVER, 0, DONE),
        Decide(DRIVER),
        End(*loser, committed=False),
    ]
    assert plan == Plan(DRIVER, 1, DONE)


def test_a_commit_decides_by_the_end_of_the_drivers_transaction() -> None:
    loser = Transaction("c", Producer(12, 3))
    answers = {Open(): Answer(value=[loser, Transaction("a", Producer(10, 0))])}
    asked, _ = driven(protocol.commit(FRESH, "q", 7, [FIRST, SECOND], 0), answers.get)
    assert asked == [
        Open(),
        Describe(("a", "b")),
        Add(DRIVER),
        Append(DRIVER, 0, LISTED),
        Decide(DRIVER),
        ends(FIRST),
        ends(SECOND),
        End(*loser, committed=False),
        Add(DRIVER),
        Append(DRIVER, 1, DONE),
        Decide(DRIVER),
    ]


def test_a_batch_without_rows_is_recorded_once() -> None:
    asked, _ = driven(protocol.commit(FRESH, "q", 7, [], 0), lambda _: None)
    assert asked == [Open(), Add(DRIVER), Append(DRIVER, 0, DONE), Decide(DRIVER)]
    asked, _ = driven(protocol.commit(Plan(DRIVER, 0, DONE), "q", 7, [], 0), lambda _: None)
    assert asked == [Open()]


@pytest.mark.parametrize(
    "second",
    [
        None,
        Described(Producer(11, 0), False, 0, 60_000),
        Described(Producer(11, 1), True, 0, 60_000),
        Described(Producer(11, 0), True, -55_000, 60_000),
    ],
)
def test_a_batch_whose_transaction_is_gone_or_about_to_be_is_not_listed(second: Described | None) -> None:
    held = {"a": Described(Producer(10, 0), True, 0, 60_000)} | ({} if second is None else {"b": second})
    asked: list[Any] = []

    def answers(request: Any) -> Answer | None:
        asked.append(request)
        return Answer(value=held) if isinstance(request, Describe) else None

    with pytest.raises(NotOpenError, match="batch 7: the transactions of partitions 1 ended"):
        driven(protocol.commit(FRESH, "q", 7, [FIRST, SECOND], 0), answers)
    assert not [one for one in asked if isinstance(one, Append)]


def test_answers_of_a_coordinator_that_moves_or_is_busy_are_asked_again() -> None:
    codes_left = [codes.CONCURRENT_TRANSACTIONS, codes.NOT_COORDINATOR, codes.NETWORK_EXCEPTION]

    def answers(request: Any) -> Answer | None:
        return Answer(codes_left.pop()) if isinstance(request, End) and codes_left else None

    asked, _ = driven(protocol.commit(FRESH, "q", 7, [FIRST], 0), answers)
    assert [one for one in asked if isinstance(one, End)] == [ends(FIRST)] * 4


@pytest.mark.parametrize("code", [codes.INVALID_TXN_STATE, codes.PRODUCER_FENCED])
def test_lost_partitions_alone_are_written_again(code: int) -> None:
    answers = {Read(): Answer(value=LISTED), ends(SECOND): Answer(code)}
    _, plan = driven(protocol.start(), answers.get)
    assert plan.record == SinkRecord("q", 7, (SECOND,))
    assert [protocol.writes(plan, "q", 7, partition) for partition in range(3)] == [False, True, False]
    again = SECOND._replace(id="c", producer_id=12)
    held = {"c": Described(Producer(12, 0), True, 0, 60_000)}
    describes = {Describe(("c",)): Answer(value=held)}
    asked, _ = driven(protocol.commit(plan, "q", 7, [again], 0), describes.get)
    assert Append(DRIVER, 0, SinkRecord("q", 7, (again,))) in asked
    for entries in ([], [again._replace(rows=5)], [again._replace(digest=1)]):
        with pytest.raises(ReplayDiffersError, match="batch 7 of query q: partitions 1 timed out"):
            driven(protocol.commit(plan, "q", 7, entries, 0), describes.get)
    with pytest.raises(PeerError, match="batch 7 of query q is not whole"):
        protocol.writes(plan, "q", 8, 0)


def test_what_the_brokers_have_forgotten_is_not_guessed() -> None:
    answers = {Read(): Answer(value=LISTED), ends(SECOND): Answer(codes.INVALID_PRODUCER_ID_MAPPING)}
    with pytest.raises(ForgottenError, match="partitions 1 were decided"):
        driven(protocol.start(), answers.get)


def test_a_transaction_that_a_late_request_began_behind_the_listed_one_says_nothing_of_it() -> None:
    later = Described(Producer(11, 1), False, 5, 60_000)
    answers = {
        Read(): Answer(value=LISTED),
        ends(SECOND): Answer(codes.PRODUCER_FENCED),
        Describe(("b",)): Answer(value={"b": later}),
    }
    with pytest.raises(ForgottenError, match="partitions 1 were decided"):
        driven(protocol.start(), answers.get)


def test_a_batch_that_is_done_is_read_and_not_written() -> None:
    plan = Plan(DRIVER, 0, DONE)
    assert not protocol.writes(plan, "q", 7, 0)
    assert protocol.writes(plan, "q", 8, 0)
    asked, _ = driven(protocol.commit(plan, "q", 7, [], 0), lambda _: None)
    assert asked == [Open()]


def test_a_record_of_another_query_is_refused() -> None:
    with pytest.raises(UsageError, match="the name belongs to query q, which wrote batch 7"):
        protocol.writes(Plan(DRIVER, 0, DONE), "other", 8, 0)


def test_a_checkpoint_that_was_set_back_is_refused() -> None:
    with pytest.raises(UsageError, match="batch 6 of query q comes after batch 7"):
        protocol.writes(Plan(DRIVER, 0, DONE), "q", 6, 0)


@pytest.mark.parametrize("request_", [Add(DRIVER), Append(DRIVER, 0, LISTED), Decide(DRIVER)])
def test_a_driver_that_is_fenced_decides_nothing(request_: Any) -> None:
    asked: list[Any] = []

    def answers(request: Any) -> Answer | None:
        asked.append(request)
        return Answer(codes.PRODUCER_FENCED) if request == request_ else None

    with pytest.raises(FencedError, match="another run of this sinkName"):
        driven(protocol.commit(FRESH, "q", 7, [FIRST, SECOND], 0), answers)
    assert asked[-1] == request_


def test_an_abort_touches_nothing_once_another_run_has_begun() -> None:
    fenced = Answer(codes.PRODUCER_FENCED)
    open_now = {Open(): Answer(value=[Transaction("a", Producer(10, 0))])}
    assert driven(protocol.abort(FRESH), (open_now | {Undo(DRIVER): fenced}).get) == ([Undo(DRIVER)], False)
    asked, is_ours = driven(protocol.abort(FRESH), (open_now | {Init(DRIVER): fenced}).get)
    assert (asked, is_ours) == ([Undo(DRIVER), Open(), Init(DRIVER)], False)


def test_an_abort_ends_what_is_listed_and_aborts_the_rest() -> None:
    answers = {
        Undo(DRIVER): Answer(codes.INVALID_TXN_STATE),  # it was decided
        Open(): Answer(value=[Transaction("a", Producer(10, 0)), Transaction("c", Producer(12, 0))]),
        Read(): Answer(value=LISTED),
    }
    asked, is_ours = driven(protocol.abort(FRESH), answers.get)
    assert is_ours
    assert [one for one in asked if isinstance(one, End)] == [
        ends(FIRST),
        ends(SECOND),
        End("c", Producer(12, 0), committed=False),
    ]


def test_a_refusal_says_what_and_which_right() -> None:
    answers = {Open(): Answer(codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    with pytest.raises(PeerError, match=r"refuses to list transactions .right Describe.*TRANSACTIONAL_ID_AUTHORIZ"):
        driven(protocol.start(), answers.get)


def test_the_record_survives_its_topic() -> None:
    assert SinkRecord.of_json(LISTED.to_json()) == LISTED
    with pytest.raises(PeerError, match="version 2, and this keylane reads 1"):
        SinkRecord.of_json(LISTED.to_json().replace(b'"version":1', b'"version":2'))
    with pytest.raises(PeerError, match="something else than its record"):
        SinkRecord.of_json(b"[]")


def test_ids_serve_again_in_later_batches_alone() -> None:
    numbers = iter("0123456789")
    ids = TaskIds(lambda: next(numbers))
    assert [ids.take("p/", "q", 1) for _ in range(2)] == ["p/0", "p/1"]
    assert [ids.take("p/", "q", 2) for _ in range(3)] == ["p/0", "p/1", "p/2"]
    assert ids.take("p/", "q", 2) == "p/3"
    assert ids.take("p/", "other", 3) == "p/4"
