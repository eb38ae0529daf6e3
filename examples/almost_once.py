"""Prints a label for each order: after a crash at most eight are printed twice, and somebody can look for them."""

import keylane as kl

labels: list[str] = []


def label(record: kl.Record) -> None:
    labels.append(f"{record.topic}-{record.partition}@{record.offset}")


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "labels"},
    topics=["orders"],
    handler=label,
    delivery="almost_once",
    max_concurrency=8,  # as many as a crash may repeat
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
print(len(labels), "labels, none twice:", len(set(labels)) == len(labels))
