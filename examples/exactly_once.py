"""Books each order: the row is there once, however often a crash makes Kafka hand the order out again."""

import sqlite3

import keylane as kl

with sqlite3.connect("bookings.db") as database:
    database.execute("CREATE TABLE IF NOT EXISTS bookings (customer BLOB, text BLOB)")


def book(record: kl.Record, context: kl.Context) -> None:
    context.transaction.execute("INSERT INTO bookings VALUES (?, ?)", (record.key, record.value))


pipeline = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "bookings"},
    topics=["orders"],
    handler=book,
    delivery=kl.ExactlyOnce("bookings.db"),  # or postgresql://…
    offset_reset="earliest",
)

with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
    consumer.run()
print(sqlite3.connect("bookings.db").execute("SELECT count(*) FROM bookings").fetchone()[0], "bookings")
