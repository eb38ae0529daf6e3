"""The log of our own on three nodes: what was acknowledged outlives its leader and its disk, once and in order, and the
fence too.

KEYLANE_LOG_KILLS says how many leaders die (1; `make soak` has more).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import peers
import pytest
from peers.cluster import ApacheCluster

from keylane.coordinator.replicated.journal import Refused
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.kafka.admin import Admin
from kit.log_writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable

KILLS = int(os.environ.get("KEYLANE_LOG_KILLS", "1"))
BATCHES = 200
"""Before a kill, and behind it."""
TOPIC = "fenced"

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("what", ["kill", "freeze", "wipe"])
def test_what_was_acknowledged_outlives_the_logs_leader(
    what: str, record_property: Callable[[str, object], None]
) -> None:
    if missing := peers.missing():
        pytest.skip(missing)
    with ApacheCluster() as cluster:
        Admin({"bootstrap.servers": cluster.bootstrap}).create_topics(
            {TOPIC: 1}, replication_factor=3, config={"cleanup.policy": "compact"}
        )
        cluster.wait_until_in_sync()
        longest_s = 0.0
        with LogWriter(cluster.bootstrap, TOPIC) as old, LogWriter(cluster.bootstrap, TOPIC, give_up_s=120.0) as new:
            assert isinstance(old.init(), Producer)
            old.append(b"old")
            assert old.answer() == 0
            assert isinstance(new.init(), Producer)
            sent = acknowledged = 0
            for _ in range(KILLS):
                leader = cluster.leader(TOPIC, 0)
                for number in range(2 * BATCHES):
                    if number == BATCHES:
                        getattr(cluster, what)(leader)
                    new.append(b"%d" % sent)
                    sent += 1
                while acknowledged < sent:
                    began = time.monotonic()
                    acknowledged += 1
                    assert new.answer() == acknowledged, "a batch is in the log twice, or out of order"
                    longest_s = max(longest_s, time.monotonic() - began)
                old.append(b"deposed")
                refused = old.answer()
                assert isinstance(refused, Refused)
                assert "INVALID_PRODUCER_EPOCH" in refused.reason
                (cluster.wake if what == "freeze" else cluster.start)(leader)
                cluster.wait_until_in_sync()
            assert new.values() == [b"old", *(b"%d" % number for number in range(sent))]
        record_property("longest wait s", round(longest_s, 1))
