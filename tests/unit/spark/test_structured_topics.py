"""How often the source asks brokers that do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from pyspark.sql.types import BinaryType, StructField, StructType

from keylane.errors import BrokerUnavailableError, PeerError
from keylane.kafka.admin import CommittedOffset, LedOffset
from keylane.offsets import OffsetMap, encode
from keylane.spark.structured import topics
from keylane.spark.structured.options import parse_source
from keylane.spark.structured.plans import Plan
from keylane.spark.structured.source import KeylaneSource

if TYPE_CHECKING:
    from collections.abc import Mapping

KAFKA = {"kafka.bootstrap.servers": "none:1"}


class Brokers:
    """What `Admin` answers, when it does."""

    def __init__(self, *, dead: bool) -> None:
        self.dead = dead
        self.asked = 0
        self.waits_ms = 0
        self.metadata = ""
        """Of the group's commit of offset 10."""
        self.leader_epoch = -1
        """Of that commit."""
        self.led_by = -1

    def topics(self, _named: object = ()) -> dict[str, int]:
        self.asked += 1
        if self.dead:
            raise BrokerUnavailableError("no Kafka broker answered at 'none:1' within 10 s")
        return {"t": 1}

    cluster_id = topics

    def committed_offsets(self, _group: str) -> dict[tuple[str, int], CommittedOffset]:
        return {("t", 0): CommittedOffset(10, self.metadata, self.leader_epoch)}

    def led_log_ends(self, names: list[tuple[str, int]], *, read_committed: bool) -> dict[tuple[str, int], LedOffset]:
        del read_committed
        return dict.fromkeys(names, LedOffset(100, self.led_by))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers(dead=True)

    def admin(_settings: Mapping[str, str], timeout_ms: int = 10_000) -> Brokers:
        made.waits_ms = timeout_ms
        return made

    monkeypatch.setattr(topics, "Admin", admin)
    monkeypatch.setattr("keylane.kafka.admin.Admin", admin)
    return made


def test_a_broker_that_never_answered_is_told_after_one_question(brokers: Brokers) -> None:
    asks = topics.Topics(parse_source(KAFKA | {"subscribe": "t"}, streaming=True))
    with pytest.raises(BrokerUnavailableError, match="within 10 s"):
        asks.partitions()
    assert brokers.asked == 1


def test_a_broker_that_has_answered_is_asked_again(brokers: Brokers) -> None:
    options = KAFKA | {"subscribe": "t", "fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "0"}
    asks = topics.Topics(parse_source(options, streaming=True))
    brokers.dead = False
    assert asks.partitions() == [("t", 0)]
    brokers.dead, brokers.asked = True, 0
    with pytest.raises(BrokerUnavailableError):
        asks.partitions()
    assert brokers.asked == 3


def test_a_groups_map_of_an_unknown_kind_is_refused_and_other_metadata_is_not(brokers: Brokers) -> None:
    """Rows that it has complete would come once more, and nobody would know."""
    options = KAFKA | {"subscribe": "t", "startingOffsets": "committed", "kafka.group.id": "g"}
    asks = topics.Topics(parse_source(options, streaming=True))
    where = ([("t", 0)], {("t", 0): 0}, {("t", 0): 100})
    brokers.metadata = "UWxhdGVy"
    with pytest.raises(PeerError, match=r"group 'g', t-0: .*unknown magic byte b'Q'; use another kafka.group.id"):
        asks._committed(*where)
    brokers.metadata = "somebody else's"
    assert asks._committed(*where) == ({("t", 0): 10}, {})


def test_a_log_is_asked_for_changes_once_when_its_leader_is_another_one(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = KAFKA | {"subscribe": "t", "startingOffsets": "committed", "kafka.group.id": "g"}
    asks = topics.Topics(parse_source(options, streaming=True))
    where = ([("t", 0)], {("t", 0): 0}, {("t", 0): 100})
    asked: list[object] = []
    answer: dict[tuple[str, int], int | None] = {("t", 0): None}

    def changes_of(_kafka: object, reached: dict[object, object], _pause: object) -> dict[tuple[str, int], int | None]:
        asked.extend(reached)
        return answer if reached else {}

    monkeypatch.setattr(topics, "changes_of", changes_of)
    brokers.metadata, brokers.leader_epoch, brokers.led_by = encode(OffsetMap(10, [10], 20), is_marked=True), 3, 3
    brokers.dead = False
    assert asks.log_ends([("t", 0)]) == {("t", 0): 100}
    assert asks._committed(*where) == ({("t", 0): 10}, {("t", 0): (10, brokers.metadata)})
    assert not asked, "the leader is that of the commit"
    brokers.led_by = 4
    asks.log_ends([("t", 0)])
    for _ in range(2):
        assert asks._committed(*where) == ({("t", 0): 10}, {("t", 0): (10, brokers.metadata)})
    assert asked == [("t", 0)]
    answer["t", 0], brokers.led_by = 15, 5
    asks.log_ends([("t", 0)])
    assert asks._committed(*where)[1] == {("t", 0): (10, encode(OffsetMap(10, [10], 14)))}
    answer["t", 0] = 7
    with pytest.raises(PeerError, match=r"has committed 10 for t-0, and its log was cut at 7.*failOnDataLoss=false"):
        asks._committed(*where)


@pytest.mark.parametrize(("make", "waits_ms"), [("writer", 10_000), ("streamWriter", 30_000)])
def test_the_sink_asks_once_before_its_tasks_wait_for_acknowledgements(
    brokers: Brokers, make: str, waits_ms: int
) -> None:
    """Brokers restart between the batches of a stream."""
    schema = StructType([StructField("value", BinaryType())])
    sink = KeylaneSource(KAFKA | {"topic": "t"})
    with pytest.raises(BrokerUnavailableError, match="within 10 s"):
        getattr(sink, make)(schema, overwrite=False)
    brokers.dead = False
    getattr(sink, make)(schema, overwrite=False)
    assert (brokers.asked, brokers.waits_ms) == (2, waits_ms)


def test_topics_are_looked_at_at_first_and_before_anything_is_read_of_them(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = topics.Topics(parse_source(KAFKA | {"subscribe": "t"}, streaming=True))
    monkeypatch.setattr(asks, "ids", lambda names: {topic: "id" for topic, _ in names})
    before, same = Plan("q", 1, {("t", 0): 0}, {("t", 0): 5}), {("t", 0): 5}
    assert asks.ids_for(before, same) == {"t": "id"}
    assert asks.ids_for(before, same) is None
    assert asks.ids_for(before, same, carries=True) == {"t": "id"}
    assert asks.ids_for(before, {("t", 0): 6}) == {"t": "id"}
