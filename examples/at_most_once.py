"""Sends a push notice for each order: better none than two."""

import keylane as kl

sent: list[bytes] = []


def notify(record: kl.Record) -> None:  # a request to a service that knows no duplicates
    sent.append(record.value or b"")


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "notices"},
    topics=["orders"],
    handler=notify,
    delivery="at_most_once",
    on_exhausted=kl.Skip(),  # a notice that fails is not tried again
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
print(len(sent), "notices,", consumer.snapshot().skipped, "given up")
