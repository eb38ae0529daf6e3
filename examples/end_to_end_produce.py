"""Step 1 of 3, until Kafka has each order of an outbox table. A crash sends some of them again, under the same id."""

import sqlite3
from functools import partial

from confluent_kafka import Producer

outbox = sqlite3.connect("outbox.db", isolation_level=None)  # CREATE TABLE outbox (id INTEGER PRIMARY KEY, text, sent)
producer = Producer({"bootstrap.servers": "127.0.0.1:9092", "enable.idempotence": True})


def delivered(order, error, _message):
    if error is None:  # marked after the acknowledgement, never before
        outbox.execute("UPDATE outbox SET sent = 1 WHERE id = ?", (order,))


for order, text in outbox.execute("SELECT id, text FROM outbox WHERE sent = 0 ORDER BY id").fetchall():
    producer.produce("orders.new", key=b"%d" % order, value=text.encode(), on_delivery=partial(delivered, order))
    producer.poll(0)
producer.flush()
