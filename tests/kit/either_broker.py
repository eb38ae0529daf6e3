"""A broker for tests that run on keylane's and on Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import peers
import pytest

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


TOKEN_USER = "admin"
"""Who logs in by tokens at a listener of `TOKENS`."""
_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
TOKENS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": f'{_MODULE} unsecuredLoginStringClaim_sub="{TOKEN_USER}";',
    "auto.create.topics.enable": "true",
}
"""Of an Apache Kafka whose listener takes OAUTHBEARER alone, with tokens that nobody has signed."""


def either_broker(
    kind: str,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    of_apache: Mapping[str, str] | None = None,
    since: str | None = None,
) -> Any:
    """`keylane` or `apache`, for a `with` block, which is given its `bootstrap`; skips where the latter cannot run, or
    is older than `since`. `of_apache`: settings that only the latter needs."""
    if kind == "keylane":
        return BrokerProcess(folder / "data", settings=settings)
    if what := peers.missing() or (since and peers.older_than(since)):
        pytest.skip(f"Apache Kafka cannot run here: {what}")
    return peers.ApacheKafka({**(settings or {}), **(of_apache or {})})
