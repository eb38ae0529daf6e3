"""Step 2 of 3: outputs and offsets are committed together, so that each record has one output that readers see."""

import keylane as kl


async def price(record: kl.Record) -> kl.Output:
    return kl.Output("orders.priced", key=record.key, value=b"%s: %d EUR" % (record.value, len(record.value or b"")))


pricing = kl.Pipeline(
    kafka={
        "bootstrap.servers": "127.0.0.1:9092",
        "group.id": "pricing",
        "group.instance.id": "pricing-1",  # of this process alone: after a crash it goes on at once
    },
    topics=["orders.new"],
    outputs=["orders.priced"],
    handler=price,
    delivery="transactional",
    offset_reset="earliest",
)
