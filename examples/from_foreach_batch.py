"""A query with foreachBatch works on orders, commits for a group, and stops; a pipeline on lanes goes on from there."""

from pathlib import Path

from confluent_kafka import Producer

import keylane as kl

servers, group = "127.0.0.1:9092", "from-batches"


def score(value: bytes) -> bytes:  # a slow call
    return value.upper()


def batches(spark) -> int:
    """Before: all rows of a batch, one after the other."""
    written = []

    def write(frame, batch):
        written.extend(score(bytes(row.value)) for row in frame.toLocalIterator())

    options = {"kafka.bootstrap.servers": servers, "subscribe": "orders", "kafka.group.id": group}
    orders = spark.readStream.format("keylane").options(**options, startingOffsets="committed").load()
    writer = orders.writeStream.foreachBatch(kl.spark.acknowledged(write)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(Path("batches").absolute())).start().awaitTermination()
    return len(written)


def more_orders():  # producers go on meanwhile
    producer = Producer({"bootstrap.servers": servers})
    for number in range(100):
        producer.produce("orders", key=b"customer-1", value=f"later order {number}".encode())
    producer.flush()


def handle(record: kl.Record) -> kl.Output:
    return kl.Output("orders.scored", key=record.key, value=score(record.value))


after = kl.Pipeline(
    kafka={"bootstrap.servers": servers, "group.id": group},
    topics=["orders"],
    handler=handle,
    ordering="key",
    offset_reset="earliest",
)

if __name__ == "__main__":
    spark = kl.spark.session("local[4]")
    print(batches(spark), "orders in batches")
    more_orders()
    query = kl.spark.start(after, spark, lanes=2, trigger={"availableNow": True})
    query.awaitTermination()
    print(query.snapshot().processed, "orders on lanes")
