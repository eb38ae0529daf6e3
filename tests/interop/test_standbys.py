"""A server that follows the log, and was away past the time of tombstones: what was deleted does not come back.

On our broker, and the same on Apache Kafka.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from keylane.broker.config import BrokerConfig
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.kafka.fenced_log import FencedLog
from keylane.offset_servers import partitions as module
from keylane.offset_servers.known_configs import KnownConfigs
from keylane.offset_servers.known_topics import KnownTopics
from keylane.offset_servers.partitions import Appends, Partitions, Replica, Shared
from keylane.offset_servers.topic import COMPACTED, LogTopic
from keylane.offset_servers.topic_ids import TopicIds

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

TOPIC = "followed"
RETENTION_MS = 2_000
WAIT_S = 60.0
CONFIG = COMPACTED | {
    "delete.retention.ms": str(RETENTION_MS),
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.0",
}


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.02)


def server(bootstrap: str, name: str) -> Partitions:
    config = BrokerConfig(offsets_topic_num_partitions=1)
    topic = LogTopic(TOPIC, 1, 1_000_000, RETENTION_MS)
    topics = KnownTopics(dict, TOPIC)
    configs = KnownConfigs(lambda _: {}, config)
    ids = TopicIds(lambda _: {})
    shared = Shared({"bootstrap.servers": bootstrap}, topic, config, name, topics, configs, ids, Appends())

    def failed(error: Exception) -> None:
        raise AssertionError(error)

    return Partitions(shared, lambda: None, failed)


async def leads(one: Partitions) -> None:
    one.lead([0])
    await until(lambda: not one.loading(), "it leads")


async def committed(one: Partitions, group: str, offset: int) -> None:
    topics = [TopicCommit("flights", [0], [offset], [-1], None)]
    result = one.coordinator(0).commit(CommitRequest(group, topics))
    assert isinstance(result, CommitResult)
    assert result.durable is not None
    await result.durable


async def offset_of(one: Partitions, group: str) -> int:
    confirmed = one.coordinator(0).confirm(group)
    assert confirmed is not None
    await confirmed
    found = one.coordinator(0).fetch(group, [("flights", [0])])
    assert not isinstance(found, int)
    return found[0].columns.offsets[0]


def test_a_standby_that_was_away_past_the_time_of_tombstones(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    """From which offsets the standby has read: what is before them is in its table."""
    answered: list[int] = []
    looks: list[Replica] = []
    read, look = FencedLog.read, Replica.look

    def counted(replica: Replica) -> None:
        look(replica)
        looks.append(replica)

    def noted(log: FencedLog, offset: int, told: Callable[[Any], None]) -> None:
        def tell(answer: object) -> None:
            told(answer)
            answered.append(offset)

        asked.append(offset)
        read(log, offset, tell)

    async def check() -> None:
        monkeypatch.setattr(module, "LOOK_S", 600.0)
        leader = server(bootstrap, "leader")
        await leads(leader)
        await committed(leader, "ended", 5)
        monkeypatch.setattr(module, "LOOK_S", 0.05)
        monkeypatch.setattr(FencedLog, "read", noted)
        monkeypatch.setattr(Replica, "look", counted)
        standby = server(bootstrap, "standby")
        await until(lambda: max(asked, default=0) > 1, "the standby has the mark and the commit")
        before = len(looks)
        monkeypatch.setattr(module, "LOOK_S", 600.0)
        await until(lambda: len(looks) > before and len(asked) == len(answered), "it stands still, after one more look")
        away_at = time.monotonic()
        result = leader.coordinator(0).delete_offsets("ended", [("flights", [0])])
        assert not isinstance(result, int)
        assert result.durable is not None
        await result.durable
        number = 0
        while time.monotonic() < away_at + RETENTION_MS / 1000 or await asyncio.to_thread(keys_with, b"ended"):
            assert time.monotonic() < away_at + WAIT_S, "the tombstone stays"
            number += 1
            await committed(leader, "other", number)
            await asyncio.sleep(0.05)
        await leader.close()
        await leads(standby)
        assert await offset_of(standby, "other") == number
        assert await offset_of(standby, "ended") == -1, "what the tombstone ended has come back"
        await standby.close()

    def keys_with(text: bytes) -> bool:
        """Whether the log has a record for this group, or its end."""
        return any(text in (one.key or b"") for batch in read_to_end(bootstrap, TOPIC) for one in batch)

    Admin({"bootstrap.servers": bootstrap}).create_topics({TOPIC: 1}, config=CONFIG)
    asyncio.run(check())
