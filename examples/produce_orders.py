"""Fills the topic `orders` with 2,000 records of 200 customers."""

import random

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
for number in range(2_000):
    customer = f"customer-{random.randrange(200)}"
    producer.produce("orders", key=customer.encode(), value=f"order {number}".encode())
    producer.poll(0)
producer.flush()
