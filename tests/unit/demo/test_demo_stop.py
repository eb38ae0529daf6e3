"""A request reaches what runs now, or what starts later."""

import threading
import time

import pytest

from keylane.demo.stop import StopRequest


def test_a_request_calls_what_runs_and_only_that() -> None:
    stop, calls = StopRequest(), []
    with stop.calling(lambda: calls.append("first")):
        stop.request()
    stop.request()
    assert calls == ["first"]


def test_what_starts_after_the_request_is_called_at_once() -> None:
    stop, calls = StopRequest(), []
    stop.request()
    with stop.calling(lambda: calls.append("late")):
        assert calls == ["late"]


def test_the_callback_goes_with_its_block_when_it_raises() -> None:
    stop = StopRequest()
    with pytest.raises(ZeroDivisionError), stop.calling(lambda: None):
        raise ZeroDivisionError
    with stop.calling(lambda: None):
        pass


def test_a_wait_ends_with_the_request_or_with_its_time() -> None:
    stop = StopRequest()
    assert not stop.wait(0.01)
    threading.Timer(0.05, stop.request).start()
    started = time.monotonic()
    assert stop.wait(30)
    assert time.monotonic() - started < 10
