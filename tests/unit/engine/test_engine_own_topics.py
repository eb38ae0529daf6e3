"""A pipeline that would feed itself ends instead, whatever kind of worker its handler runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keylane import DeadLetter, HandlerError, Output, Pipeline, Retries, Skip
from keylane.consumer.own_topics import OwnTopicError
from keylane.options import Batch, Processes
from keylane.pipeline import Partitions
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


def run(handler: Callable[..., Any], **options: Any) -> tuple[BaseException | None, list[Output], int]:
    """The failure, what was produced, and how many records count as done."""
    broker = FakeBroker([T0])
    broker.append(T0, [(b"k", b"%d" % n) for n in range(20)])
    made: dict[str, Any] = {"kafka": KAFKA, "topics": ["t"], "offset_reset": "earliest", "retries": Retries(5, 0)}
    pipeline = Pipeline(handler=handler, **(made | options))
    with FakeEngine(pipeline, broker, ending_offsets={T0: 20}) as engine:
        assert engine.loop.ended.wait(20)
        snapshot = engine.loop.snapshot()
        return engine.loop.failure, engine.producer.sent, snapshot.processed + snapshot.skipped + snapshot.dead_lettered


def feeds_itself(record: Any) -> list[Output]:
    return [Output("elsewhere"), Output("t")] if record.offset == 3 else [Output("elsewhere")]


async def feeds_itself_async(record: Any) -> list[Output]:
    return feeds_itself(record)


def feeds_itself_in_batches(records: Any) -> Any:
    return [feeds_itself(record) for record in records]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"topics": "^t$"},
        {"topics": Partitions([T0])},
        {"ordering": "unordered"},
        {"ordering": "partition"},
        {"on_exhausted": Skip()},
        {"on_exhausted": DeadLetter("dead")},
        {"handler": feeds_itself_async},
        {"handler": feeds_itself_in_batches, "batch": Batch(4)},
        {"workers": Processes(1)},
    ],
)
def test_an_output_to_a_topic_that_is_read_ends_the_run(options: dict[str, Any]) -> None:
    failure, produced, done = run(**({"handler": feeds_itself} | options))
    assert isinstance(failure, HandlerError)
    assert isinstance(failure.__cause__, OwnTopicError)
    assert "t-0@3: an Output is for 't', which the pipeline reads itself" in str(failure)
    assert {one.topic for one in produced} == {"elsewhere"}, "nothing of that record was produced"
    assert done < 20


def test_other_topics_are_nobodys_business() -> None:
    failure, produced, done = run(lambda _: Output("t2"), topics=["t", "^t[^2]$"])
    assert (failure, len(produced), done) == (None, 20, 20)
