"""What a pipeline reads: names, regular expressions, and what comes while it runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.testing.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("subscriptions") / "data") as running:
        yield running


@pytest.fixture
def stage(broker: BrokerProcess, request: pytest.FixtureRequest) -> Stage:
    return Stage(broker.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))


def test_a_regular_expression_reads_what_matches_now_and_later(stage: Stage) -> None:
    prefix = stage.topic
    for topic in (f"{prefix}-one", f"other-{prefix}"):
        stage.create(1, topic)
        stage.fill([(b"k", 0)] * 3, topic)
    seen: list[str] = []
    kafka = stage.kafka | {"topic.metadata.refresh.interval.ms": 200}
    pipeline = stage.pipeline(lambda record: seen.append(record.topic), topics=f"^{prefix}-.*", kafka=kafka)
    with kl.ParallelConsumer(pipeline) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        until(lambda: len(seen) == 3, "what matches is read")
        stage.create(1, f"{prefix}-two")
        stage.fill([(b"k", 0)] * 2, f"{prefix}-two")
        until(lambda: len(seen) == 5, "what came later is read")
        consumer.stop()
        thread.join(30)
    assert set(seen) == {f"{prefix}-one", f"{prefix}-two"}


def test_ending_offsets_are_of_all_topics_that_match(stage: Stage) -> None:
    for topic in ("a", "b"):
        stage.create(2, f"{stage.topic}-{topic}")
        stage.fill([(b"k", number % 2) for number in range(4)], f"{stage.topic}-{topic}")
    seen: list[str] = []
    stage.run(lambda record: seen.append(record.topic), topics=[f"^{stage.topic}-"])
    assert len(seen) == 8
