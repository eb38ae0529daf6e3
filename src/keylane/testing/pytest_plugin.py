"""The pytest plugin: the fixture `kafka_broker`, a broker for one test.

pytest loads this in every run where keylane is installed, so it imports nothing until the fixture is used. A test says
what it needs with a mark: `@pytest.mark.kafka_broker(topics={"orders": 4})`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.testing.embedded import EmbeddedBroker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kafka_broker(topics=…, settings=…, users=…): what the fixture kafka_broker starts with"
    )


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A Kafka broker of the test's own (`keylane.testing.broker`), which ends with it."""
    from keylane.testing import broker

    mark = request.node.get_closest_marker("kafka_broker")
    with broker(**(mark.kwargs if mark is not None else {})) as running:
        yield running
