"""The same with keylane: it goes on where the group has committed, with a hundred orders at once."""

from aiokafka_before import score

import keylane as kl


async def handle(record: kl.Record) -> kl.Output:
    return kl.Output("orders.moved", key=record.key, value=await score(record.value))


orders = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "moved"},
    topics=["orders"],
    handler=handle,
    offset_reset="earliest",
)
