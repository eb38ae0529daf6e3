"""When a failed lane starts again."""

from __future__ import annotations

import pytest

from keylane.errors import UsageError
from keylane.spark.restarts import FIRST_WAIT_S, LONGEST_WAIT_S, RestartLimits, Restarts


def test_waits_double_up_to_the_longest() -> None:
    restarts = Restarts(RestartLimits(max_failures=20))
    waits = []
    for _ in range(12):
        at = restarts.failed(100.0)
        assert at is not None
        waits.append(at - 100.0)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S


def test_one_failure_more_than_the_limit_is_the_last() -> None:
    restarts = Restarts(RestartLimits(max_failures=2, window_ms=10_000))
    assert restarts.failed(0.0) is not None
    assert restarts.failed(1.0) is not None
    assert restarts.failed(2.0) is None
    assert restarts.in_window == 3


def test_failures_that_left_the_window_do_not_count() -> None:
    restarts = Restarts(RestartLimits(max_failures=1, window_ms=10_000))
    assert restarts.failed(0.0) == FIRST_WAIT_S
    assert restarts.failed(10.5) == 10.5 + FIRST_WAIT_S
    assert restarts.failed(20.0) is None


def test_no_failure_is_forgiven_when_the_limit_is_0() -> None:
    assert Restarts(RestartLimits(max_failures=0)).failed(0.0) is None


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="max_lane_failures=-1"):
        RestartLimits(max_failures=-1)
    with pytest.raises(UsageError, match="lane_failure_window_ms=0"):
        RestartLimits(window_ms=0)
