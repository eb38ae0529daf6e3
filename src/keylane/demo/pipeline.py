"""The demo's pipeline, as a user writes one: a resource, an async handler, and the options that matter.

Each enriched flight says which record it came from (header `source`, as `flights-3@1234`) and goes to the partition of
the same number, so that anyone can hold the output against the input without asking the pipeline.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp

import keylane as kl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from keylane.options import Ordering

NOT_FOUND = 404

SERVICE_TIMEOUT_S = 30
"""For one answer; a late one is a failed attempt and is tried again."""


def flights_pipeline(
    servers: str,
    weather_url: str,
    *,
    group: str = "weather",
    topic: str = "flights",
    output: str = "flights.enriched",
    ordering: Ordering = "key",
    max_concurrency: int = 200,
    settings: Mapping[str, str] | None = None,
    operations: kl.Operations | None = None,
) -> kl.Pipeline:
    """The pipeline that adds the weather at origin and hour to each flight."""

    @asynccontextmanager
    async def http() -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(limit=max_concurrency)
        timeout = aiohttp.ClientTimeout(total=SERVICE_TIMEOUT_S)
        async with aiohttp.ClientSession(weather_url, connector=connector, timeout=timeout) as session:
            yield session

    async def enrich(record: kl.Record, context: kl.Context) -> kl.Output:
        if record.value is None:
            raise kl.Fatal(f"{record.topic}-{record.partition}@{record.offset} has no value, and is no flight")
        flight = json.loads(record.value)
        query = {"origin": flight["origin"], "hour": flight["time_hour"]}
        async with context.resource.get("/weather", params=query) as answer:
            if answer.status == NOT_FOUND:  # a few hours have no row in the table
                weather = None
            else:
                answer.raise_for_status()
                weather = await answer.json()
        value = json.dumps({"flight": flight, "weather": weather}, separators=(",", ":")).encode()
        source = f"{record.topic}-{record.partition}@{record.offset}".encode()
        return kl.Output(output, record.key, value, headers=[("source", source)], partition=record.partition)

    return kl.Pipeline(
        kafka={**(settings or {}), "bootstrap.servers": servers, "group.id": group},
        topics=[topic],
        handler=enrich,
        resource=http,
        ordering=ordering,
        max_concurrency=max_concurrency,
        offset_reset="earliest",
        commit=kl.Commit(interval_ms=1_000),
        retries=kl.Retries(max_attempts=5, delay_ms=100),
        operations=operations,
    )
