"""Structured Streaming before and behind lanes: exactly once and in order all the way, while each of them is killed.

    orders ──► source, parallel_map, sink ──► ready ──► lanes ──► slow ──► source, parallel_map, sink ──► done

KEYLANE_AROUND_LANES_KILLS says how many kills there are (8).
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peers.committed_reader import committed_records

import keylane as kl
from keylane.kafka.admin import Admin
from kit.filling import filling
from kit.sink_kills import APACHE, EMBEDDED, place
from kit.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("around_lanes_program.py")
KILLS = int(os.environ.get("KEYLANE_AROUND_LANES_KILLS", "8"))
STEP = 300
"""Records that come before each kill."""
KEYS = 20
PARTITIONS = 2
SEED = 20261126
NAMES = {"orders": b"", "ready": b" before", "slow": b" before lanes", "done": b" before lanes behind"}
"""By topic, what has been added to each value."""
WRITES = {"before": "ready", "lanes": "slow", "behind": "done", "broker": "slow"}


class Chain:
    """The three stages, on topics of a broker."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.stages = Stages(folder)
        self.records = 0
        self._servers = servers
        self._admin = Admin({"bootstrap.servers": servers})
        self._admin.create_topics(dict.fromkeys(NAMES, PARTITIONS))
        for stage in ("before", "lanes", "behind"):
            self.stages.start(stage, sys.executable, str(PROGRAM), stage, servers, str(folder))

    def order(self, count: int) -> None:
        with filling(self._servers) as producer:
            for number in range(self.records, self.records + count):
                producer.produce(kl.Output("orders", b"key-%d" % (number % KEYS), b"%d" % number))
        self.records += count

    def length(self, topic: str, *, read_committed: bool = False) -> int:
        ends = self._admin.log_ends(self._partitions(topic), read_committed=read_committed)
        return sum(end or 0 for end in ends.values())

    def finish(self) -> None:
        """After these last ones nothing from before can come any more: order is kept."""
        self.order(STEP)
        last = {b"%d" % number + NAMES["done"] for number in range(self.records - KEYS, self.records)}
        seen = [0]

        def is_done() -> bool:
            if self.length("done", read_committed=True) == seen[0]:
                return False
            seen[0] = self.length("done", read_committed=True)
            return last <= {value for _, value in self._committed("done")}

        self.stages.until(is_done, "all is done")

    def faults(self) -> list[str]:
        """Each topic in which a value is missing, is too many, or passes another one of its key."""
        found = []
        for topic, added in NAMES.items():
            values = self._committed(topic)
            expected = Counter(b"%d" % number + added for number in range(self.records))
            seen = Counter(value for _, value in values)
            if seen != expected:
                found.append(f"{topic}: {(expected - seen).total()} missing, {(seen - expected).total()} too many")
            by_key: dict[bytes, list[int]] = defaultdict(list)
            for key, value in values:
                by_key[key].append(int(value.split()[0]))
            found += [f"{topic}: {key!r} is not in order" for key, some in by_key.items() if some != sorted(some)]
        return found

    def _committed(self, topic: str) -> list[tuple[bytes, bytes]]:
        """Key and value, by partition in the order of its log, as another client library reads them."""
        ends = self._admin.log_ends(self._partitions(topic), read_committed=True)
        return [(one.key, one.value) for one in committed_records(self._servers, ends)]

    def _partitions(self, topic: str) -> list[tuple[str, int]]:
        return [(topic, partition) for partition in range(PARTITIONS)]


@pytest.mark.soak
@pytest.mark.parametrize("where", [EMBEDDED, APACHE])
def test_each_record_is_done_once_and_in_order(
    java: None, tmp_path: Path, where: str, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(SEED)
    victims = [list(WRITES)[number % len(WRITES)] for number in range(KILLS)]
    chance.shuffle(victims)
    with place(where, tmp_path) as brokers:
        chain = Chain(brokers.servers, tmp_path)
        with closing(chain.stages):
            for number, victim in enumerate(victims):
                seen = chain.length(WRITES[victim])
                chain.order(STEP)
                works = lambda topic=WRITES[victim], seen=seen: chain.length(topic) > seen  # noqa: E731
                chain.stages.until(works, f"{victim} works")
                time.sleep(chance.random())  # anywhere in what it does next
                if victim == "broker":
                    brokers.kill(chance)()
                else:
                    chain.stages.kill(victim)
                print(f"{number + 1} of {KILLS}: {victim}; {chain.records} records", flush=True)  # noqa: T201
            chain.finish()
            assert chain.faults() == []
            record_property("kills", Counter(victims))
            record_property("failures", chain.stages.failed)
