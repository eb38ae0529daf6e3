"""One member, in a process of its own: `python -m operate.member BOOTSTRAP TOPIC SECONDS TURNS WORK_MS operations|key`.

It tells when it has its partitions. Then it is operated (or holds a key) for some seconds, and is not for as many, by
turns. Of each such stretch it tells in a line of JSON what processor time the whole process took, how long it was, and
how many records ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.flow.keys import KeyRule, Where
from keylane.kafka.admin import Admin
from keylane.operations.agent import Agent
from keylane.parallel_consumer import OperatedConsumer

if TYPE_CHECKING:
    from collections.abc import Iterator

CONCURRENCY = 64
HELD = b"7"
"""The key, of those of `operate.feed`."""
LOOK_S = 0.05
WARM_S = 5.0
"""Before the first stretch."""
SETTLE_S = 2.0
"""Of each stretch, before it counts: clients connect, and others close."""


def main() -> None:
    bootstrap, topic, seconds, turns, work_ms, what = sys.argv[1:]
    partitions = Admin({"bootstrap.servers": bootstrap}).topics()[topic]
    work_s = float(work_ms) / 1000
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": bootstrap, "group.id": topic},
        topics=[topic],
        handler=lambda _: time.sleep(work_s),
        workers=kl.Threads(CONCURRENCY),
        max_concurrency=CONCURRENCY,
        offset_reset="latest",
    )
    with kl.ParallelConsumer(pipeline) as consumer:
        runs = threading.Thread(target=consumer.run)
        runs.start()
        while len(consumer.snapshot().partitions) < partitions:
            time.sleep(LOOK_S)
        print("assigned", flush=True)
        time.sleep(WARM_S)
        for number in range(2 * int(turns) + 1):
            if number % 2 == 0:
                found = stretch(consumer, float(seconds))
            else:
                with operated(pipeline, consumer) if what == "operations" else holding(consumer):
                    found = stretch(consumer, float(seconds))
            print(json.dumps(found), flush=True)
        consumer.stop("now")
        runs.join()


@contextmanager
def operated(pipeline: kl.Pipeline, consumer: kl.ParallelConsumer) -> Iterator[None]:
    """What `operations=` adds to a member, while it runs."""
    agent = Agent(pipeline, kl.Operations(token="a token of the bench"))
    agent.begin()
    agent.start(OperatedConsumer(consumer, 1))
    try:
        yield
    finally:
        agent.close()


@contextmanager
def holding(consumer: kl.ParallelConsumer) -> Iterator[None]:
    """Of one key of many; its records run once it is released."""
    consumer.rule_keys((KeyRule(Where.of_key(HELD), "hold"),))
    try:
        yield
    finally:
        consumer.rule_keys(())


def stretch(consumer: kl.ParallelConsumer, seconds: float) -> dict[str, Any]:
    time.sleep(SETTLE_S)
    records, processor_s, began = consumer.snapshot().processed, time.process_time(), time.perf_counter()
    time.sleep(seconds)
    processor_s, took_s = time.process_time() - processor_s, time.perf_counter() - began
    return {"processor_s": processor_s, "seconds": took_s, "records": consumer.snapshot().processed - records}


if __name__ == "__main__":
    main()
