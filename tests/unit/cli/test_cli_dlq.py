"""Which dead letters a redrive sends where, and how it remembers: without a broker."""

from __future__ import annotations

from keylane.consumer.dead_letters import ROUNDS, read, said_of
from keylane.desk.letters import Wanted
from keylane.desk.redrive import Pace, Redrive
from keylane.offsets import OffsetMap, decode
from keylane.records import PlainMessage, Record

TOPICS = {"orders": 4, "orders.dead": 2, "repaired": 1}


def letter(offset: int, error: Exception | None = None, topic: str = "orders", *, partition: int = 3) -> Record:
    said = said_of((topic, partition, 7), 1, error or ValueError("x"), 1)
    return Record(PlainMessage("orders.dead", 0, offset, b"k", b"v", tuple(said), (1, 1_000 + offset)))


def run(records: list[Record], redrive: Redrive, committed: OffsetMap | None = None) -> list[int]:
    """Offsets of those that go."""
    redrive.begin({0: 0, 1: 0}, {} if committed is None else {0: committed})
    redrive.observe(records)
    return [record.offset for record in records if redrive.goes(record) is not None]


def position(redrive: Redrive) -> OffsetMap:
    (found,) = redrive.positions([0])
    return decode(found.metadata, found.offset)


def test_what_did_not_go_waits_and_what_went_never_goes_again() -> None:
    records = [letter(n, ValueError("x") if n % 2 else TimeoutError("x")) for n in range(10)]
    first = Redrive("orders.dead", Wanted(error="TimeoutError"), TOPICS)
    assert run(records, first) == [0, 2, 4, 6, 8]
    assert (first.others, position(first).base) == (5, 1)
    second = Redrive("orders.dead", Wanted(), TOPICS)
    assert run(records, second, position(first)) == [1, 3, 5, 7, 9]
    assert second.before == 5
    assert (position(second).base, position(second).incomplete_count) == (10, 0)
    third = Redrive("orders.dead", Wanted(), TOPICS)
    assert run([*records, letter(10)], third, position(second)) == [10]


def test_a_record_goes_back_to_its_own_partition_and_to_another_topic_by_its_key() -> None:
    back, gone, repaired = letter(0), letter(1, partition=4), letter(2)
    redrive = Redrive("orders.dead", Wanted(), TOPICS)
    redrive.begin({0: 0, 1: 0}, {})
    redrive.observe([back, gone])
    outputs = [redrive.goes(back), redrive.goes(gone)]
    assert [(one.topic, one.partition) for one in outputs if one] == [("orders", 3), ("orders", None)]
    elsewhere = Redrive("orders.dead", Wanted(), TOPICS, to="repaired")
    elsewhere.begin({0: 0, 1: 0}, {})
    elsewhere.observe([repaired])
    output = elsewhere.goes(repaired)
    assert output is not None
    assert (output.topic, output.partition, output.key, output.value) == ("repaired", None, b"k", b"v")


def test_each_reason_leaves_its_letter_waiting() -> None:
    plain = PlainMessage("orders.dead", 0, 1, b"k", b"v", (), (1, 1))
    places = {"topic": b"orders", "partition": b"0", "offset": b"7"}
    bare = [(f"__dlq.errors.{name}", value) for name, value in places.items()]
    records = [
        Record(PlainMessage("orders.dead", 0, 0, b"k", b"v", (*letter(0).headers, (ROUNDS, b"2")), (1, 1))),
        Record(plain),
        letter(2, topic="gone"),
        letter(3, topic="orders.dead"),
        Record(PlainMessage("orders.dead", 0, 4, None, None, tuple(bare), (1, 1))),
        letter(5),
    ]
    redrive = Redrive("orders.dead", Wanted(), TOPICS, max_rounds=2)
    assert run(records, redrive) == [5]
    assert redrive.left == {"rounds": 1, "no topic": 1, "missing topic": 1, "own topic": 1, "no copy": 1}
    assert list(position(redrive).incomplete) == [0, 1, 2, 3, 4]


def test_a_letter_that_the_position_cannot_remember_is_left() -> None:
    records = [letter(n, ValueError("x") if n % 60 else TimeoutError("x")) for n in range(30_000)]
    redrive = Redrive("orders.dead", Wanted(error="TimeoutError"), TOPICS)
    went = run(records, redrive)
    assert went == list(range(0, 24_529, 60))
    assert redrive.left == {"too far": 500 - len(went)}
    assert len(redrive.positions([0])[0].metadata) <= 4_096


def test_wanted() -> None:
    record = letter(5, TimeoutError("the service is slow"))
    death = read(record.headers).death
    assert Wanted().has(record, death)
    for yes in (
        Wanted(topic="orders"),
        Wanted(error="TimeoutError"),
        Wanted(reason="is slow"),
        Wanted(key=b"k"),
        Wanted(since_ms=1_005, until_ms=1_006),
    ):
        assert yes.has(record, death), yes
    for no in (
        Wanted(topic="order"),
        Wanted(error="Error"),
        Wanted(reason="is fast"),
        Wanted(key=b"K"),
        Wanted(since_ms=1_006),
        Wanted(until_ms=1_005),
    ):
        assert not no.has(record, death), no


def test_lots_are_no_larger_than_a_seconds_letters() -> None:
    assert [Pace(rate).lot for rate in (None, 0.1, 20.0, 1e6)] == [500, 1, 20, 500]
