"""A plain consumer group moves to a Spark query in the middle of its work, and back; no order is worked on twice."""

from pathlib import Path

from confluent_kafka import Producer

import keylane as kl

servers, place = "127.0.0.1:9092", Path("moved").absolute()
seen = []


def consume(stop_after=None):
    """The group as plain consumers have it: works on some orders, or on all, commits and leaves."""

    def note(record: kl.Record) -> None:
        seen.append((record.partition, record.offset))
        if stop_after and len(seen) >= stop_after:
            consumer.stop()

    orders = kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": "moving"}, topics=["orders"], handler=note,
        ordering="unordered", offset_reset="earliest",
    )  # fmt: skip
    with kl.ParallelConsumer(orders, ending_offsets="latest") as consumer:
        consumer.run()


def in_spark():
    spark = kl.spark.session("local[4]")
    options = {"kafka.bootstrap.servers": servers, "subscribe": "orders", "kafka.group.id": "moving"}
    orders = spark.readStream.format("keylane").options(**options, startingOffsets="committed").load()

    def write(frame, batch):
        seen.extend((row.partition, row.offset) for row in frame.collect())

    writer = orders.writeStream.foreachBatch(kl.spark.acknowledged(write)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(place)).start().awaitTermination()


def more_orders():
    producer = Producer({"bootstrap.servers": servers})
    for number in range(100):
        producer.produce("orders", key=b"customer-1", value=f"late order {number}".encode())
    producer.flush()


consume(stop_after=700)
in_spark()
more_orders()
consume()
print(len(seen), "orders,", len(seen) - len(set(seen)), "of them twice")
