"""`committed_records`: what a reader of committed records sees, in another client library than keylane's (aiokafka)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiokafka

if TYPE_CHECKING:
    from collections.abc import Mapping

WAIT_S = 60.0


def committed_records(servers: str, ends: Mapping[tuple[str, int], int | None]) -> list[Any]:
    """All committed records below these log ends, in the order of each partition; waits while transactions are open.

    Raises `TimeoutError` when one stays open for `WAIT_S`.
    """
    return asyncio.run(asyncio.wait_for(_read(servers, ends), WAIT_S))


async def _read(servers: str, ends: Mapping[tuple[str, int], int | None]) -> list[Any]:
    # A leader that moves while it seeks is only seen when it asks for metadata by itself: every 5 minutes by default.
    reader = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", metadata_max_age_ms=1_000
    )
    await reader.start()
    found: list[Any] = []
    try:
        for name, end in ends.items():
            partition = aiokafka.TopicPartition(*name)
            reader.assign([partition])
            await reader.seek_to_beginning(partition)
            while await reader.position(partition) < (end or 0):
                for records in (await reader.getmany(timeout_ms=50)).values():
                    found += records
    finally:
        await reader.stop()
    return found
