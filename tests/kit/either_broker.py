"""A broker for tests that run on keylane's and on Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import peers
import pytest

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def either_broker(kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> Any:
    """`keylane` or `apache`, for a `with` block, which is given its `bootstrap`; skips where the latter cannot run."""
    if kind == "keylane":
        return BrokerProcess(folder / "data", settings=settings)
    if what := peers.missing():
        pytest.skip(f"Apache Kafka cannot run here: {what}")
    return peers.ApacheKafka(settings)
