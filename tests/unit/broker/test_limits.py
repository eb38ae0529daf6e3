from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.broker.config import parse_config
from keylane.broker.memory import SharedMemory
from keylane.broker.server import ConnectionLimits, TooManyConnectionsError


def test_connections_are_bounded_in_all_and_by_address() -> None:
    config = parse_config(
        {
            "max.connections": "4",
            "max.connections.per.ip": "2",
            "max.connections.per.ip.overrides": "10.0.0.9:3,[::1]:0",
        }
    )
    limits = ConnectionLimits(lambda: config)
    limits.enter("10.0.0.1")
    limits.enter("10.0.0.1")
    with pytest.raises(TooManyConnectionsError, match=r"10\.0\.0\.1 has 2 connections already \(max\.connections\.per"):
        limits.enter("10.0.0.1")
    limits.leave("10.0.0.1")
    with pytest.raises(TooManyConnectionsError, match="::1 has 0"):
        limits.enter("::1")
    limits.leave("::1")
    limits.enter("10.0.0.9")
    limits.enter("10.0.0.9")
    with pytest.raises(TooManyConnectionsError, match=r"there are 4 connections already \(max\.connections\)"):
        limits.enter("10.0.0.9")
    limits.leave("10.0.0.9")
    limits.leave("10.0.0.1")
    limits.enter("10.0.0.9")


@given(st.lists(st.integers(-50, 100)), st.integers(-1, 200))
def test_it_is_told_each_time_that_room_goes_and_comes(changes: list[int], limit: int) -> None:
    told: list[int] = []
    memory = SharedMemory(limit, lambda: told.append(memory.held))
    for by in changes:
        was_full, before = memory.is_full, len(told)
        memory.change(by)
        assert memory.is_full is (limit >= 0 and memory.held >= limit)
        assert len(told) - before == (was_full is not memory.is_full)


def test_limits_that_are_changed_hold_for_those_who_come_then() -> None:
    config = parse_config({"max.connections": "1"})
    limits = ConnectionLimits(lambda: config)
    limits.enter("10.0.0.1")
    with pytest.raises(TooManyConnectionsError):
        limits.enter("10.0.0.2")
    limits.leave("10.0.0.2")
    config = parse_config({"max.connections": "2"})
    limits.enter("10.0.0.2")
