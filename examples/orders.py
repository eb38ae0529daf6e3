import asyncio

import keylane as kl


async def score(record: kl.Record) -> kl.Output:
    await asyncio.sleep(0.05)  # a slow call: HTTP, a database, a model
    return kl.Output("orders.scored", key=record.key, value=(record.value or b"").upper())


orders = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "scoring"},
    topics=["orders"],
    handler=score,
    ordering="key",  # records of one key in order, different keys at once
    max_concurrency=100,
    offset_reset="earliest",
)
