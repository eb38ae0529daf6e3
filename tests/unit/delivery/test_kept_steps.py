"""Steps of a member whose logs give no answer: who waits for one is told when its partition goes, or the run ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.consumer.start import Start
from keylane.delivery.kept_steps import KeptSteps
from keylane.errors import InternalError, StepLostError
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.stage import until
from kit.step_world import Broker, Connection, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = ("orders", 0)
START = Start(*NAME, 1, OffsetMap(0), 0, 10)
RECORD = kl.Record(PlainMessage(*NAME, 4))


class SilentTopics:
    """Nobody answers there."""

    def prepare(self, topic: str, partition: int) -> None: ...

    def topic_ids(self, topics: Any) -> dict[str, str]:
        return dict.fromkeys(topics, "id")

    def max_batch_bytes(self, topic: str) -> int:
        assert topic
        return 1_000_000

    def connect(self, name: Any, call: Any) -> Connection:
        assert (name, bool(call)) == (NAME, True)
        return Connection(Broker())

    def begins(self, topics: Any) -> dict[Any, int]:
        assert topics
        return {}

    def delete_below(self, offsets: Any) -> None: ...


def handle(record: kl.Record, context: kl.Context) -> None:
    context.step(str, name="ask")


@pytest.fixture
def failures() -> list[BaseException]:
    """What has ended the run."""
    return []


@pytest.fixture
def kept(failures: list[BaseException]) -> Iterator[KeptSteps]:
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"}, topics=["orders"], handler=handle, steps=kl.Steps()
    )
    made = KeptSteps(pipeline, SilentTopics(), lambda: True, failures.append)
    made.check([START])
    yield made
    made.close()


@pytest.mark.parametrize("what", ["the run ends", "the partition is revoked", "it is lost", "it is given anew"])
def test_who_waits_for_a_step_is_told_that_it_is_lost(kept: KeptSteps, what: str) -> None:
    listener = kept.pipeline.rebalance_listener
    steps = kept.steps_of(RECORD)
    assert steps is not None
    assert listener is not None
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(kept.pipeline.handler, RECORD, kl.Context())  # type: ignore[arg-type]
        until(lambda: steps.is_used, "it waits")
        if what == "the run ends":
            kept.close()
        elif what == "it is given anew":
            kept.check([START])
        else:
            (listener.on_revoked if what == "the partition is revoked" else listener.on_lost)([NAME])
        with pytest.raises(StepLostError, match="step 'ask': its partition is not read here any more"):
            attempt.result(60)
    assert isinstance(steps.ask(step_of(4)).exception(60), StepLostError), "one that comes later"


def test_a_step_of_a_partition_that_has_gone_is_lost_at_once(kept: KeptSteps) -> None:
    kept.close()
    with pytest.raises(StepLostError):
        kept.pipeline.handler(RECORD, kl.Context())  # type: ignore[call-arg]


def test_what_a_log_raises_ends_the_run_by_name_and_nobody_waits(
    kept: KeptSteps, failures: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = kept.steps_of(RECORD)
    assert steps is not None
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(kept.pipeline.handler, RECORD, kl.Context())  # type: ignore[arg-type]
        until(lambda: steps.is_used, "it waits")
        monkeypatch.setattr(steps.log, "keep", lambda *_: 1 // 0)
        reason = "steps of group 'g' are not kept any more: ZeroDivisionError"
        assert reason in str(steps.keep(step_of(5), b"").exception(60)), "whose question it was"
        with pytest.raises(InternalError, match=reason):
            attempt.result(60)
    assert reason in str(steps.ask(step_of(4)).exception(60)), "one that comes later"
    (failure,) = failures
    assert isinstance(failure, InternalError)
    assert str(failure).startswith(reason)
