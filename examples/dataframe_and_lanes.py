"""A stream of DataFrames writes a topic, lanes work on its records, and another stream reads what they made."""

import asyncio
from pathlib import Path

import keylane as kl

servers, place = "127.0.0.1:9092", Path("stages").absolute()


def kafka(topic, group):
    options = {"kafka.bootstrap.servers": servers, "kafka.group.id": group, "subscribe": topic}
    return spark.readStream.format("keylane").options(**options, startingOffsets="committed").load()


def run(writer, name):
    writer.option("checkpointLocation", str(place / name)).trigger(availableNow=True).start().awaitTermination()


async def price(record: kl.Record) -> kl.Output:
    await asyncio.sleep(0.01)  # a slow call
    return kl.Output("stage.priced", key=record.key, value=b"%d" % len(record.value or b""))


spark = kl.spark.session("local[4]")
large = kafka("orders", "choosing").where("length(value) >= 8").select("key", "value")
chosen = large.writeStream.format("keylane").option("kafka.bootstrap.servers", servers).option("topic", "stage.chosen")
run(chosen, "chosen")

pricing = kl.Pipeline(
    kafka={"bootstrap.servers": servers, "group.id": "pricing"}, topics=["stage.chosen"], handler=price,
    ordering="key", max_concurrency=100, offset_reset="earliest",
)  # fmt: skip
kl.spark.start(pricing, spark, lanes=1, trigger={"availableNow": True}).awaitTermination()

sums = []
priced = kafka("stage.priced", "summing").selectExpr("cast(cast(value AS string) AS int) AS price")
run(priced.writeStream.foreachBatch(kl.spark.acknowledged(lambda frame, _: sums.extend(frame.collect()))), "summed")
print(len(sums), "prices,", sum(row.price for row in sums), "in all")
