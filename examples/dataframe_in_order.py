"""The last order of each customer in SQLite: keys stay in order on the way, and a replayed batch changes nothing."""

import asyncio
import sqlite3
from pathlib import Path

import keylane as kl

servers, place = "127.0.0.1:9092", Path("last_orders").absolute()


async def score(row):
    await asyncio.sleep(0.005)  # a slow call
    return (row.key.decode(), row.value.decode().upper(), row.partition, row.offset)


def write(frame, batch):
    rows = frame.orderBy("partition", "offset").collect()
    with sqlite3.connect(place / "orders.db") as database:  # one transaction a batch
        database.execute("CREATE TABLE IF NOT EXISTS last (customer PRIMARY KEY, item, orders, at)")
        database.executemany(
            """INSERT INTO last VALUES (?, ?, 1, ?) ON CONFLICT (customer) DO UPDATE
               SET item = excluded.item, orders = orders + 1, at = excluded.at WHERE excluded.at > at""",
            [(row.customer, row.item, row.offset) for row in rows],
        )


place.mkdir(exist_ok=True)
spark = kl.spark.session("local[4]")
orders = spark.readStream.format("keylane").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
orders = orders.option("kafka.group.id", "last-orders").option("startingOffsets", "committed").load()
step = kl.spark.parallel_map(
    score, "customer string, item string, partition int, offset bigint", ordering="key", key="key"
)
query = (
    orders.transform(step)
    .writeStream.foreachBatch(kl.spark.acknowledged(write))
    .option("checkpointLocation", str(place / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
with sqlite3.connect(place / "orders.db") as database:
    print(*database.execute("SELECT count(*), sum(orders) FROM last").fetchone(), "customers and orders")
