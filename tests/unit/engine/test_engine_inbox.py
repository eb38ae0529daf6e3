"""What the loop waits on: every event is taken once, and none waits without a bell."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

from keylane.flow.workers import Inbox

WAIT_S = 20.0


def test_everything_that_is_there_is_taken_in_order() -> None:
    inbox = Inbox()
    assert inbox.get(0) == []
    for number in range(3):
        inbox.put(number)
    assert inbox.get(0) == [0, 1, 2]
    assert inbox.get(0) == []


def test_a_wait_ends_with_its_time_or_with_an_event() -> None:
    inbox = Inbox()
    start = monotonic()
    assert inbox.get(0.05) == []
    assert monotonic() - start >= 0.05
    assert inbox.get(-1.0) == [], "it is due already"
    later = threading.Timer(0.05, inbox.put, ["event"])
    later.start()
    assert inbox.get(WAIT_S) == ["event"]
    later.join()


def test_a_wait_that_is_longer_than_any_lock_waits_for_an_event() -> None:
    inbox = Inbox()
    later = threading.Timer(0.05, inbox.put, ["event"])
    later.start()
    assert inbox.get(threading.TIMEOUT_MAX * 10) == ["event"]
    later.join()


class PutMeanwhile(list[Any]):
    """Another thread puts something right after the loop has looked."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.left = 1

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if self.left:
            self.left -= 1
            self.inbox.put("meanwhile")
        return found


def test_what_comes_while_the_loop_looks_rings_again() -> None:
    inbox = Inbox()
    inbox._events = PutMeanwhile(inbox)
    inbox.put("first")
    assert inbox.get(0) == ["first"]
    assert inbox.get(0) == ["meanwhile"]


def test_events_of_many_threads_are_taken_once_each_and_in_each_one_s_order() -> None:
    inbox = Inbox()
    threads, events = 8, 5_000

    def put(thread: int) -> None:
        for number in range(events):
            inbox.put((thread, number))

    putters = [threading.Thread(target=put, args=(number,)) for number in range(threads)]
    for one in putters:
        one.start()
    taken: list[tuple[int, int]] = []
    deadline = monotonic() + WAIT_S
    while len(taken) < threads * events and monotonic() < deadline:
        taken += inbox.get(WAIT_S)
    for one in putters:
        one.join()
    for thread in range(threads):
        assert [number for of, number in taken if of == thread] == list(range(events))
