"""The peers of the interop tests; where the machine lacks what these need, the tests are skipped by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import peers
import pytest
from peers import jvm

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def jvm_peers() -> None:
    """Java programs can be compiled and run."""
    if what := jvm.missing():
        pytest.skip(f"the JVM Parallel Consumer cannot run here: {what}")


@pytest.fixture(scope="module")
def apache_kafka(jvm_peers: None) -> Iterator[peers.ApacheKafka]:
    with peers.ApacheKafka() as kafka:
        yield kafka
