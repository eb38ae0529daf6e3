"""Makes the topics `orders` and `orders.scored` if they are not there, and fills `orders` with 2,000 records of 200
customers."""

import random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

SERVERS = "127.0.0.1:9092"

admin = AdminClient({"bootstrap.servers": SERVERS})
missing = {"orders", "orders.scored"} - admin.list_topics().topics.keys()
if missing:
    for made in admin.create_topics([NewTopic(name, num_partitions=1) for name in missing]).values():
        made.result()

producer = Producer({"bootstrap.servers": SERVERS})
for number in range(2_000):
    customer = f"customer-{random.randrange(200)}"
    producer.produce("orders", key=customer.encode(), value=f"order {number}".encode())
    producer.poll(0)
producer.flush()
