"""Steps on three nodes: members are killed and frozen, leaders of the topic of steps are killed, and no call is
repeated whose answer was acknowledged.

KEYLANE_STEP_FAULTS says how many faults there are (6).
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import peers
import pytest
from peers.cluster import ApacheCluster

from keylane.kafka.step_topics import name_of
from kit.stage import Stage
from kit.step_faults import PARTITIONS, check_faults

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTS = int(os.environ.get("KEYLANE_STEP_FAULTS", "6"))

pytestmark = pytest.mark.cluster


def test_no_call_is_repeated_whose_answer_was_acknowledged(record_property: Callable[[str, object], None]) -> None:
    if missing := peers.missing():
        pytest.skip(missing)
    with ApacheCluster({"group.min.session.timeout.ms": "1000"}) as cluster:
        stage = Stage(cluster.bootstrap, "paid")
        stage.admin.create_topics({stage.topic: PARTITIONS}, replication_factor=3, config={"min.insync.replicas": "2"})
        cluster.wait_until_in_sync()
        partitions = itertools.cycle(range(PARTITIONS))

        def kill_a_leader() -> None:
            node = cluster.leader(name_of(stage.group, stage.topic), next(partitions))
            cluster.kill(node)
            cluster.start(node)
            cluster.wait_until_in_sync()

        check_faults(stage, kill_a_leader, FAULTS, record_property)
