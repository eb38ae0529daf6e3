"""Python's search for cycles begins later while consumers run, unless the program has its own mind about it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from keylane import Pipeline
from keylane.flow.host.collector import OURS, PYTHONS, collected_rarely
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def pythons_own() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*PYTHONS)
    yield
    gc.set_threshold(*before)


def test_a_consumer_moves_the_threshold_and_gives_it_back() -> None:
    seen = []
    broker = FakeBroker([("t", 0)])
    broker.append(("t", 0), [(b"k", b"v")])
    pipeline = Pipeline(
        kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"},
        topics=["t"],
        handler=lambda _: seen.append(gc.get_threshold()),
        offset_reset="earliest",
    )
    with FakeEngine(pipeline, broker, ending_offsets={("t", 0): 1}) as engine:
        assert engine.loop.ended.wait(20)
    assert seen == [OURS]
    assert gc.get_threshold() == PYTHONS


def test_the_last_of_several_gives_it_back() -> None:
    with collected_rarely():
        with collected_rarely():
            pass
        assert gc.get_threshold() == OURS
    assert gc.get_threshold() == PYTHONS


@pytest.mark.parametrize("own", [(0, 10, 10), (5_000, 10, 10)])
def test_a_programs_own_threshold_is_kept(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with collected_rarely():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own
    with collected_rarely():
        gc.set_threshold(*own)
    assert gc.get_threshold() == own
