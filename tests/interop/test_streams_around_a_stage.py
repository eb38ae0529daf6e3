"""Kafka Streams before and behind a slow stage that keylane runs in parallel: exactly once all the way, under kills.

    orders ──► Streams ──► counted ──► keylane ──► slow ──► Streams ──► done

Both applications of Streams have state: each adds to a record how many its key has had. So a record that is lost, comes
twice, or passes another one of its key changes the numbers. KEYLANE_STREAMS_KILLS says how many kills there are (20).
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from peers import jvm
from peers.cluster import NODES, ApacheCluster

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.committed import committed_values
from kit.filling import filling
from kit.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KILLS = int(os.environ.get("KEYLANE_STREAMS_KILLS", "20"))
STEP = 400
"""Records that come before each kill."""
KEYS = 20
SEED = 20261124
TOPICS = {"orders": 3, "counted": 3, "slow": 3, "done": 3}
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
STAGE = """\
import asyncio

import keylane as kl


async def slow(record):
    await asyncio.sleep(0.01)
    return kl.Output("slow", key=record.key, value=record.value)


pipeline = kl.Pipeline(
    kafka={{"bootstrap.servers": "{servers}", "group.id": "slow", "group.instance.id": "slow-1"}},
    topics=["counted"],
    outputs=["slow"],
    handler=slow,
    delivery={delivery},
    offset_reset="earliest",
)
"""


class Application:
    """Streams, keylane, Streams, on topics of a broker."""

    def __init__(self, servers: str, folder: Path, delivery: str = '"transactional"', *, replicas: int = 1) -> None:
        self.stages = Stages(folder)
        self.records = 0
        self._servers = servers
        self._admin = Admin({"bootstrap.servers": servers})
        self._admin.create_topics(TOPICS, replication_factor=replicas)
        (folder / "stage.py").write_text(STAGE.format(servers=servers, delivery=delivery))
        self.stages.start("before", *jvm.streams(servers, "before", "orders", "counted", str(folder / "before")))
        self.stages.start("stage", sys.executable, "-m", "keylane", "run", "stage.py")
        self.stages.start("after", *jvm.streams(servers, "after", "slow", "done", str(folder / "after")))

    def order(self, count: int) -> None:
        with filling(self._servers) as producer:
            for number in range(self.records, self.records + count):
                producer.produce(kl.Output("orders", b"key-%d" % (number % KEYS), b"%d" % number))
        self.records += count

    def length(self, topic: str) -> int:
        """Of its logs, with what was aborted."""
        ends = self._admin.log_ends([(topic, partition) for partition in range(TOPICS[topic])], read_committed=False)
        return sum(end or 0 for end in ends.values())

    def finish(self) -> None:
        """After these last ones nothing from before can come any more: order is kept."""
        self.order(STEP)
        last = {b"%d" % number for number in range(self.records - KEYS, self.records)}
        self.stages.until(lambda: last <= self._numbers("done"), "all is done")

    def _numbers(self, topic: str) -> set[bytes]:
        return {value.split()[0] for value in committed_values(self._servers, topic, now=True)}

    def expected(self, number: int, counts: int) -> bytes:
        return b" ".join([b"%d" % number, *[b"%d" % (number // KEYS + 1)] * counts])

    def faults(self) -> list[str]:
        """Each topic in which a value is missing, or is too many."""
        found = []
        for topic, counts in {"orders": 0, "counted": 1, "slow": 1, "done": 2}.items():
            expected = Counter(self.expected(number, counts) for number in range(self.records))
            seen = Counter(committed_values(self._servers, topic))
            if seen != expected:
                found.append(f"{topic}: {(expected - seen).total()} missing, {(seen - expected).total()} too many")
        return found


def storm(application: Application, kill_broker: Callable[[], None]) -> Counter[str]:
    chance = random.Random(SEED)
    writes = {"before": "counted", "stage": "slow", "after": "done", "broker": "slow"}
    victims = [list(writes)[number % len(writes)] for number in range(KILLS)]
    chance.shuffle(victims)
    for number, victim in enumerate(victims):
        seen = application.length(writes[victim])
        application.order(STEP)
        works = lambda topic=writes[victim], seen=seen: application.length(topic) > seen  # noqa: E731
        application.stages.until(works, f"{victim} works")
        time.sleep(chance.random() * 0.5)  # anywhere in what it does next
        if victim == "broker":
            kill_broker()
        else:
            application.stages.kill(victim)
        print(f"{number + 1} of {len(victims)}: {victim}; {application.records} records", flush=True)  # noqa: T201
    application.finish()
    return Counter(victims)


@pytest.fixture
def application(request: pytest.FixtureRequest) -> Iterator[Callable[..., Application]]:
    made: list[Application] = []

    def start(*arguments: Any, **more: Any) -> Application:
        made.append(Application(*arguments, **more))
        return made[-1]

    yield start
    for one in made:
        one.stages.close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["embedded", "apache"])
def test_each_record_is_done_once_and_in_order(
    jvm_peers: None,
    kind: str,
    tmp_path: Path,
    application: Callable[..., Application],
    record_property: Callable[[str, object], None],
) -> None:
    """Apache Kafka has three nodes: one alone that is killed between a transaction's abort and its markers leaves these
    out, and what was aborted is committed with the producer's next transaction (docs/reliability.md)."""
    if kind == "embedded":
        with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
            made = application(broker.bootstrap, tmp_path)
            record_property("kills", storm(made, broker.restart))
            assert made.faults() == []
            made.stages.close()
        return
    with ApacheCluster(SETTINGS) as cluster:
        made = application(cluster.bootstrap, tmp_path, replicas=len(NODES))

        def kill_a_leader() -> None:
            node = cluster.leader("slow", 0)
            cluster.kill(node)
            made.order(STEP)
            cluster.start(node)
            cluster.wait_until_in_sync()

        record_property("kills", storm(made, kill_a_leader))
        assert made.faults() == []
        made.stages.close()


@pytest.mark.soak
def test_a_stage_at_least_once_is_noticed(
    jvm_peers: None, tmp_path: Path, application: Callable[..., Application]
) -> None:
    """Its commits come once a minute while it is busy, and it is killed before."""
    weaker = '"at_least_once", commit=kl.Commit(interval_ms=60_000)'
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        made = application(broker.bootstrap, tmp_path, weaker)
        made.order(10 * STEP)
        made.stages.until(lambda: made.length("slow") > 0, "it works")
        made.stages.kill("stage")
        made.finish()
        faults = made.faults()
        made.stages.close()
    assert [one.split(":")[0] for one in faults] == ["slow", "done"]
