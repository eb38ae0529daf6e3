"""Prices orders: readers of committed records see each price once, whatever crashes."""

import keylane as kl


async def price(record: kl.Record) -> kl.Output:
    if not record.value:
        raise kl.Fatal("an order without anything in it")
    return kl.Output("orders.priced", key=record.key, value=b"%d EUR" % len(record.value))


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "pricing"},
    topics=["orders"],
    handler=price,
    delivery="transactional",
    on_exhausted=kl.DeadLetter("orders.dead"),
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
print(consumer.snapshot().produced, "prices,", consumer.snapshot().transactions_aborted, "transactions aborted")
