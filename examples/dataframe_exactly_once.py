"""Books each order in PostgreSQL once, and hands the booking on: the same rows, however often Spark runs them."""

from pathlib import Path

import psycopg

import keylane as kl

servers, database = "127.0.0.1:9092", "postgresql://postgres@127.0.0.1:5432/postgres"
bookings = str(Path("bookings").absolute())


async def book(row, context):  # in one transaction with what the order is known by, and with what is returned
    order = row.value.decode()
    found = await context.transaction.execute("INSERT INTO booked (text) VALUES (%s) RETURNING id", (order,))
    (number,) = await found.fetchone()
    await context.transaction.execute("UPDATE totals SET orders = orders + 1")  # an effect that shows each repetition
    return {"booking": number, "customer": row.key.decode()}


def write(frame, batch):  # Spark may ask for a batch again: it replaces its files, with the same rows
    frame.write.mode("overwrite").parquet(f"{bookings}/batch={batch}")


with psycopg.connect(database) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS booked (id bigserial PRIMARY KEY, text text)")
    connection.execute("CREATE TABLE IF NOT EXISTS totals AS SELECT 0 AS orders")
spark = kl.spark.session("local[4]")
orders = spark.readStream.format("keylane").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
orders = orders.option("kafka.group.id", "booking").option("startingOffsets", "committed").load()
step = kl.spark.parallel_map(book, "booking bigint, customer string", delivery=kl.ExactlyOnce(database))
query = (
    orders.transform(step)
    .writeStream.foreachBatch(kl.spark.acknowledged(write))
    .option("checkpointLocation", str(Path("booking").absolute()))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
with psycopg.connect(database) as connection:
    booked, counted = connection.execute("SELECT count(*), min(orders) FROM booked, totals").fetchone()
print(booked, "booked,", counted, "counted,", spark.read.parquet(bookings).distinct().count(), "handed on")
