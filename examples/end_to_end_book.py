"""Step 3 of 3: the booking and the order's id are in one transaction of the database, so each order is in it once."""

import sqlite3

import keylane as kl

with sqlite3.connect("bookings.db") as database:
    database.execute("CREATE TABLE IF NOT EXISTS bookings (id INTEGER, text TEXT)")


def book(record: kl.Record, context: kl.Context) -> None:
    context.transaction.execute("INSERT INTO bookings VALUES (?, ?)", (int(record.key), record.value.decode()))


booking = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "booking", "group.instance.id": "booking-1"},
    topics=["orders.priced"],
    handler=book,
    delivery=kl.ExactlyOnce(
        "bookings.db",  # or postgresql://…
        identity=lambda record: record.key,  # the order's id: what step 1 has sent twice is booked once
    ),
    offset_reset="earliest",
)
