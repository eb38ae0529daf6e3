"""Offset servers on the log of a three-node Apache Kafka: what is acknowledged outlives a server and a node.

Clients of confluent-kafka, kafka-python, aiokafka and of Apache Kafka itself, in both protocols, have the servers as
bootstrap.servers, and their groups are led by the server that goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import peers
import pytest
from peers import jvm
from peers.cluster import ApacheCluster

from keylane.offset_servers.topic import TOPIC
from kit.offset_client import KIP_848
from kit.offset_fail_over import fail_over, in_python
from kit.offset_servers import OffsetServers, pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SERVERS = 3
PARTITIONS = 6
OPTIONS = ("--set", f"offsets.topic.num.partitions={PARTITIONS}")
SESSION_S = 6.0
SLACK_S = {"kill": SESSION_S + 9.0, "stop": 10.0, "log's leader": 25.0}
"""How long no client may be silent: until the servers have seen who is gone, and clients have asked again; twice as
long as on an idle machine and more."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApacheCluster]:
    if what := peers.missing():
        pytest.skip(what)
    with ApacheCluster() as running:
        yield running


@pytest.mark.parametrize("how", ["kill", "stop", "log's leader"])
def test_clients_of_three_libraries_go_on(
    cluster: ApacheCluster, tmp_path: Path, how: str, record_property: Callable[[str, object], None]
) -> None:
    topic = f"flights-{how.split()[-1]}"
    with OffsetServers(cluster.bootstrap, tmp_path, SERVERS, *OPTIONS) as servers:
        dead: list[int] = []

        def kill_node(_: object) -> None:
            dead.append(cluster.leader(TOPIC, 0))
            cluster.kill(dead[0])

        strike = kill_node if how == "log's leader" else getattr(servers, how)
        try:
            outcome = fail_over(servers, topic, tmp_path, strike, replicas=3)
        finally:
            for node in dead:
                cluster.start(node)
                cluster.wait_until_in_sync()
        record_property("longest silence s", round(outcome.longest_s, 1))
        assert outcome.longest_s < SLACK_S[how]
        assert "Traceback" not in servers.told()
        assert "CRITICAL" not in servers.told(), "an alarm"


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_java_client_and_members_of_kip_848_go_on(
    cluster: ApacheCluster, tmp_path: Path, how: str, record_property: Callable[[str, object], None]
) -> None:
    libraries = {
        "java-classic": lambda *words: jvm.offset_client(*words, "classic"),
        "java-consumer": lambda *words: jvm.offset_client(*words, "consumer"),
        KIP_848: in_python(KIP_848),
    }
    with OffsetServers(cluster.bootstrap, tmp_path, SERVERS, *OPTIONS, *pace(500, 6_000)) as servers:
        strike = getattr(servers, how)
        outcome = fail_over(servers, f"java-{how}", tmp_path, strike, replicas=3, libraries=libraries)
        record_property("longest silence s", round(outcome.longest_s, 1))
        assert outcome.longest_s < SLACK_S[how]
        assert "Traceback" not in servers.told()
