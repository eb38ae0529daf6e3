"""Behind which open transactions a reader of committed records stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.consumer.snapshot import OpenTransactions, Snapshot, Wait
from keylane.kafka.open_wait import AFTER_S, OpenWait

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

ONE, OTHER = ("orders", 0), ("orders", 1)


def seen(reader: OpenWait, log_ends: Mapping[tuple[str, int], int], now: float) -> OpenTransactions | None:
    reader.look(log_ends, (), now)
    return reader.wait


def test_it_is_told_once_when_it_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    reader = OpenWait()
    reader.ended(ONE, 5)
    waits = OpenTransactions((("orders", 0, 5),))
    assert [seen(reader, {ONE: 9, OTHER: 3}, now) for now in (0.0, AFTER_S - 0.1)] == [None, None]
    assert [seen(reader, {ONE: 12, OTHER: 3}, now) for now in (AFTER_S, AFTER_S + 60)] == [waits, waits]
    reader.read(ONE, 4)  # of before
    assert seen(reader, {ONE: 12}, AFTER_S + 60) == waits
    reader.read(ONE, 11)
    assert seen(reader, {ONE: 12}, AFTER_S + 61) is None
    assert caplog.messages == [str(waits)], "once"


def test_it_counts_from_when_there_was_more() -> None:
    reader = OpenWait()
    reader.ended(ONE, 5)
    assert seen(reader, {ONE: 5}, 0.0) is None
    assert seen(reader, {ONE: 6}, 100.0) is None
    reader.ended(ONE, 8)  # one is over, and another one open
    assert seen(reader, {ONE: 9}, 105.0) is None
    assert seen(reader, {ONE: 9}, 105.0 + AFTER_S - 1) is None
    reader.ended(ONE, 8)  # said again
    assert seen(reader, {ONE: 9}, 105.0 + AFTER_S) is not None
    reader.forget(ONE)
    assert seen(reader, {ONE: 9}, 106.0 + AFTER_S) is None


def test_a_paused_partition_stands_still_by_itself() -> None:
    reader = OpenWait()
    reader.ended(ONE, 5)
    reader.ended(OTHER, 5)
    reader.look({ONE: 9, OTHER: 9}, (), 0.0)
    reader.look({ONE: 9, OTHER: 9}, {ONE}, AFTER_S)
    assert reader.wait == OpenTransactions((("orders", 1, 5),))


def test_those_of_several_members_are_one() -> None:
    first, second = OpenTransactions((("b", 0, 7),)), OpenTransactions((("a", 1, 3), ("b", 0, 7)))
    merged = Snapshot.merged([Snapshot(waits=first), Snapshot(), Snapshot(waits=second)])
    assert merged.waits == second
    rebalance = Wait("g", ("m",), 45_000)
    assert Snapshot(waits=first).merge(Snapshot(waits=rebalance)).waits == rebalance


def test_what_it_says() -> None:
    one = str(OpenTransactions((("orders", 0, 5),)))
    assert one.startswith("waits for an open transaction: orders-0 from offset 5 on; kafka-transactions.sh ")
    many = str(OpenTransactions(tuple(("t", number, 0) for number in range(5))))
    assert "t-0 from offset 0 on, t-1 from offset 0 on, t-2 from offset 0 on and 2 more; " in many
