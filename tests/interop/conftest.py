"""The peers of the interop tests; where the machine lacks what these need, the tests are skipped by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import peers
import pytest
from peers import jvm

from kit.either_broker import either_broker
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def jvm_peers() -> None:
    """Java programs can be compiled and run."""
    if what := jvm.missing():
        pytest.skip(f"the JVM Parallel Consumer cannot run here: {what}")


@pytest.fixture(scope="session")
def apache_kafka(jvm_peers: None) -> Iterator[peers.ApacheKafka]:
    # Under KIP-848's protocol the broker sets the pace: its default of 5 s makes a rebalance take some 15 s.
    pace = ("group.consumer.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms")
    with peers.ApacheKafka(dict.fromkeys(pace, "500")) as kafka:
        yield kafka


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our broker, and Apache Kafka: a contract's tests run on both."""
    settings = {"log.retention.check.interval.ms": "100", "log.cleaner.backoff.ms": "100"}
    folder, at_once = tmp_path_factory.mktemp("broker"), {"log.initial.task.delay.ms": "100"}
    with either_broker(request.param, folder, settings, of_apache=at_once) as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[ProtocolClient]:
    with ProtocolClient(bootstrap) as connection:
        yield connection
