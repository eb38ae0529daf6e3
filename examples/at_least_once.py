"""Keeps the newest order of each customer: doing it again changes nothing, so at least once is enough."""

import keylane as kl

newest: dict[bytes | None, bytes | None] = {}


def keep(record: kl.Record) -> None:
    newest[record.key] = record.value  # in order per key


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "newest"},
    topics=["orders"],
    handler=keep,
    commit=kl.Commit(interval_ms=1_000),  # what a crash repeats
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
print(consumer.snapshot().processed, "orders,", consumer.snapshot().commits > 0)
