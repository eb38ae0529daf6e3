"""Transactions that commit and abort in any order: what an abort undid begins anew from what is committed, and waits
twice as long after each abort without a commit in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.offsets import OffsetMap, decode
from keylane.pipeline import Commit, Pipeline
from keylane.records import Output, PlainMessage
from kit.driven import KAFKA
from kit.engines import make_engine
from kit.examples import examples
from kit.seam import Item, Make, Problem, Start, Workers

if TYPE_CHECKING:
    from random import Random

T0 = ("t", 0)
WAITS_S = [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
"""After the first abort since a commit, the second, and so on; the last one then stays."""


class World:
    """One partition whose records have an output each, a producer that does as it is told, and what is committed."""

    def __init__(self, random: Random) -> None:
        pipeline = Pipeline(
            kafka=KAFKA, topics=["t"], handler=_never_called, delivery="transactional", commit=Commit(every_records=1)
        )
        self.now = 0.0
        self.engine = make_engine(pipeline, Make(Workers(4)), random.random)
        self.offsets = OffsetMap(0)
        self.epoch = 0
        self.begin()
        self.engine.transaction_answered("start", None, self.now)

    def begin(self) -> None:
        """What is committed is read, and the record behind it polled."""
        self.epoch += 1
        self.engine.assigned([Start(T0, self.epoch, self.offsets, 0, 1_000)], self.now)
        self.poll()

    def poll(self) -> None:
        self.engine.polled(T0, self.epoch, [PlainMessage(*T0, self.offsets.base, b"k")])

    def run(self) -> Item:
        """The next record runs, and its output goes into the transaction."""
        (item,) = (item for call in self.engine.plan(self.now).calls for item in call.items)
        self.engine.ended([(item, (Output("out"),))], self.now)
        (sending,) = self.engine.plan(self.now).produce
        self.engine.answered(sending, 0, None, self.now)
        return item

    def commit(self, *, fails: bool, fenced: bool = False) -> None:
        """The transaction is decided, one way or the other."""
        commit = self.soon("commit")
        ((_, _, offset, metadata, _),) = commit.entries
        self.engine.transaction_answered("commit", Problem("simulated", fenced=fenced) if fails else None, self.now)
        if fails:
            assert self.engine.plan(self.now).abort is fenced
            self.engine.transaction_answered("abort", None, self.now)
        else:
            self.offsets = decode(metadata, offset)
            self.poll()

    def wait(self) -> float:
        """Until what was undone is to begin anew; how long that took."""
        aborted_at = self.now
        assert list(self.soon("reload")) == [(T0, self.epoch)]
        return self.now - aborted_at

    def soon(self, what: Literal["commit", "reload"]) -> Any:
        """What the first plan asks for that has any of it; time goes on to whatever is due."""
        while not (found := getattr(self.engine.plan(self.now), what)):
            due = self.engine.next_check(self.now)
            assert due is not None, f"no {what} comes, and nothing is due"
            self.now = max(self.now, due)
        return found


@settings(max_examples=examples(60), deadline=None)
@given(fails=st.lists(st.booleans() | st.just(True), min_size=1, max_size=14), random=st.randoms())
def test_what_was_undone_begins_anew_after_twice_the_wait(fails: list[bool], random: Random) -> None:
    world = World(random)
    aborts = 0
    for number, one in enumerate(fails):
        item = world.run()
        assert item.offset == fails[:number].count(False), "it runs again after an abort, and only then"
        world.commit(fails=one, fenced=aborts == 1)
        if not one:
            aborts = 0
            continue
        assert world.wait() == pytest.approx(WAITS_S[min(aborts, len(WAITS_S) - 1)])
        aborts += 1
        world.begin()


def _never_called(_: object) -> None:
    """The test decides what handlers come to."""
