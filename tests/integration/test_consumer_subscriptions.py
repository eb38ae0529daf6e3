"""What a pipeline reads: names, regular expressions, and what comes while it runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.offsets import OffsetMap
from kit.stage import Stage, until

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
    stage.run(lambda record: seen.append(record.topic), topics=[f"^{stage.topic}-.*"])
    assert len(seen) == 8


def test_partitions_assigned_by_hand_are_read_without_a_group_and_committed_to_it(stage: Stage) -> None:
    stage.create(3)
    stage.fill((b"%d" % number, number % 3) for number in range(30))
    seen: list[tuple[int, int]] = []

    def handler(record: kl.Record) -> None:
        seen.append((record.partition, record.offset))

    options: dict[str, Any] = {"topics": kl.Partitions([(stage.topic, 0), (stage.topic, 2)])}
    with kl.ParallelConsumer(stage.pipeline(handler, **options), ending_offsets="latest") as consumer:
        consumer.run()
    assert sorted(seen) == [(partition, offset) for partition in (0, 2) for offset in range(10)]
    assert stage.committed() == {(stage.topic, 0): OffsetMap(10), (stage.topic, 2): OffsetMap(10)}
    assert stage.admin.describe_group(stage.group).members == ()
    stage.fill((b"more", number % 3) for number in range(3))
    stage.run(handler, **options)
    assert sorted(seen[20:]) == [(0, 10), (2, 10)], "it went on from what was committed"


def test_a_listener_hears_of_partitions_assigned_by_hand(stage: Stage) -> None:
    stage.create(2)
    told: list[str] = []

    class Listener(kl.RebalanceListener):
        def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
            told.append(f"assigned {partitions}")

        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            told.append(f"revoked {partitions}")

    where = [(stage.topic, 1)]
    stage.run(lambda _: None, topics=kl.Partitions(where), rebalance_listener=Listener())
    assert told == [f"assigned {where}", f"revoked {where}"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": kl.Partitions([("$", 7)])}, "assignment: '.*' has no partition 7; it has 1"),
        ({"topics": kl.Partitions([("no-such", 0)])}, "topic 'no-such' does not exist"),
        ({"outputs": ["no-such"]}, "topic 'no-such', which the pipeline produces to, does not exist at .*: create it"),
        ({"on_exhausted": kl.DeadLetter("no-such")}, "topic 'no-such', which the pipeline produces to, does not exist"),
        ({"kafka": {"acks": 0}}, "acks.*=0 would break offset tracking"),
        ({"kafka": {"compression.type": "best"}}, r"librdkafka refuses these producer settings.*compression"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(stage: Stage, options: dict[str, Any], says: str) -> None:
    stage.create(1)
    given = {**options}
    if isinstance(given.get("topics"), kl.Partitions):
        given["topics"] = kl.Partitions([(topic.replace("$", stage.topic), one) for topic, one in given["topics"].of])
    given["kafka"] = stage.kafka | given.get("kafka", {})
    with pytest.raises(kl.UsageError, match=says):
        stage.run(lambda _: None, **given)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_expression_is_about_whole_names_and_about_no_internal_topic(stage: Stage, protocol: str) -> None:
    own = f"own-{stage.topic}".lower()
    for topic in (own, f"{own}.more", f"__{own}"):
        stage.create(1, topic)
        stage.fill([(b"k", 0)], topic)
    kafka = {"bootstrap.servers": stage.servers, "group.id": own, "group.protocol": protocol}
    seen: list[str] = []
    stage.run(lambda record: seen.append(record.topic), topics=[f"^.*{own}"], kafka=kafka)
    assert seen == [own]
    seen.clear()
    kafka |= {"group.id": f"{own}-2"}
    stage.run(lambda record: seen.append(record.topic), topics=[rf"^{own}\.more$", f"__{own}"], kafka=kafka)
    assert sorted(seen) == [f"__{own}", f"{own}.more"]
