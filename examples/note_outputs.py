"""Notes where each output is, once the broker has it; the record is complete after that."""

from collections import Counter

from orders import score

import keylane as kl

partitions: Counter[int] = Counter()


def note(produced: kl.Produced) -> None:
    partitions[produced.partition] += 1


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "noting"},
    topics=["orders"],
    handler=score,
    on_produced=note,
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
print(partitions.total(), "outputs in", len(partitions), "partitions")
