"""`filling`: a producer for a test's records, on a broker that lives meanwhile."""

from __future__ import annotations

from keylane.kafka.bulk import BulkProducer

SETTINGS = {"enable.idempotence": False, "message.send.max.retries": 0, "socket.timeout.ms": 60_000}
"""An idempotent client waits for half a second or a whole one before its first record. Here none is there twice or out
of order, because none is sent again; on a busy machine the answer may take its time."""


def filling(servers: str) -> BulkProducer:
    return BulkProducer(servers, SETTINGS)
