"""Records at a steady rate, until its input ends: `python -m operate.feed BOOTSTRAP TOPIC PARTITIONS RATE`."""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Producer

SLOT_S = 0.01
KEYS = 1_000
VALUE = b"v" * 100


def main() -> None:
    bootstrap, topic, *numbers = sys.argv[1:]
    partitions, rate = map(int, numbers)
    ends = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ends.set()

    threading.Thread(target=listen, daemon=True).start()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    began, sent = time.monotonic(), 0
    while not ends.is_set():
        due = int((time.monotonic() - began) * rate)
        for number in range(sent, due):
            producer.produce(topic, VALUE, b"%d" % (number % KEYS), number % partitions)
        sent = due
        producer.poll(SLOT_S)
    producer.flush()


if __name__ == "__main__":
    main()
