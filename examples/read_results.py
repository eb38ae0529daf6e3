"""Reads what the handler returned, for each record as soon as it is there; a slow reader slows the consumer down."""

import asyncio

import keylane as kl


async def measure(record: kl.Record) -> int:
    await asyncio.sleep(0.05)
    return len(record.value or b"")


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "measuring"},
    topics=["orders"],
    handler=measure,
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest").stream() as results:
    print(sum(result.value for result in results), "bytes in all")
