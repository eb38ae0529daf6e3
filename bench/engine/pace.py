"""How old a record is when its handler begins: 1,000 records a second are appended, one by one, by this process."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from engine.contest import Contest

RATE = 1_000
SECONDS = 20
"""The first half passes while the consumer warms up, and does not count."""
JOIN_LIMIT_S = 60
KEYS = 1_000
CONCURRENCY = 16


def pace(bootstrap: str, topic: str) -> None:
    """Append `RATE` records a second, each with the time in nanoseconds as its value, once a consumer has the topic."""
    admin = Admin({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + JOIN_LIMIT_S
    while not is_consumed(admin, topic):
        assert time.monotonic() < deadline, f"nobody consumes {topic}"
        time.sleep(0.1)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    start = time.monotonic()
    for number in range(RATE * SECONDS):
        wait_s = start + number / RATE - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        producer.produce(topic, key=b"%d" % (number % KEYS), value=b"%d" % time.time_ns(), partition=0)
        producer.poll(0)
    producer.flush()


def is_consumed(admin: Admin, topic: str) -> bool:
    """Whether a group named after the topic has a member with its partition."""
    groups = [one.group for one in admin.groups() if one.group.startswith(topic)]
    return any(member.assignment for group in groups for member in admin.describe_group(group).members)


def measure(contest: Contest, bootstrap: str, repeat: int) -> dict[str, list[tuple[float, float]]]:
    """P50 and p99 in milliseconds of each contestant's runs, by turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contest.processes}
    for turn in range(repeat):
        for number, (name, process) in enumerate(contest.processes.items()):
            topic = f"pace-{os.getpid()}-{turn}-{number}"
            assert Admin({"bootstrap.servers": bootstrap}).create_topics({topic: 1})
            thread = threading.Thread(target=pace, args=(bootstrap, topic))
            thread.start()
            answer = process.ask(f"{topic} KEY {RATE * SECONDS} {CONCURRENCY} latency")
            thread.join()
            half, most, done = answer.split(" ")
            assert int(done) == RATE * SECONDS, answer
            found[name].append((float(half), float(most)))
            print(f"{name}: p50 {half} ms, p99 {most} ms (load {os.getloadavg()[0]:.1f})", flush=True)
    return found


def table(found: dict[str, list[tuple[float, float]]]) -> dict[str, str]:
    """For the docs: the medians of the runs."""
    lines = ["| contestant | p50 | p99 |", "|---|---:|---:|"]
    for name, runs in found.items():
        half, most = (sorted(column)[len(column) // 2] for column in zip(*runs, strict=True))
        lines.append(f"| {name} | {half:.2f} ms | {most:.2f} ms |")
    return {
        "title": f"From append to handler at {RATE:,} records/s, KEY, {KEYS:,} keys, concurrency {CONCURRENCY}",
        "markdown": "\n".join(lines) + "\n",
    }
