"""Records at a steady rate: `python -m operate.feed BOOTSTRAP TOPIC PARTITIONS RATE RECORDS`."""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer

SLOT_S = 0.01
KEYS = 1_000
VALUE = b"v" * 100


def main() -> None:
    bootstrap, topic, *numbers = sys.argv[1:]
    partitions, rate, records = map(int, numbers)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    began, sent = time.monotonic(), 0
    while sent < records:
        due = min(records, int((time.monotonic() - began) * rate))
        for number in range(sent, due):
            producer.produce(topic, VALUE, b"%d" % (number % KEYS), number % partitions)
        sent = due
        producer.poll(SLOT_S)
    producer.flush()


if __name__ == "__main__":
    main()
