"""A consumer with `delivery="transactional"` that ends itself, or freezes, at a chosen place. Its test starts it anew.

`python transactional_member.py OPTIONS` copies a topic to another one up to its end. OPTIONS is a JSON object: kafka
(librdkafka settings), topic, out, dead (topics), at (the place, or null), nth (at which time there), signal, work_s
(how long a record takes), interval_ms. Of every eleven records one has no output, and one goes to the dead letters. It
says `ready` when it starts, and in the end how many transactions were aborted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.kafka.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = {"send": "offsets", "commit_transaction": "commit"}
INSIDE_S = 0.002
"""How long after a commit was asked for the process ends "in commit": its answer takes as long, or longer."""


class Place:
    """Where it happens."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._at, self._nth = options["at"], options["nth"]
        self._signal = signal.Signals[options["signal"]]
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def here(self, name: str, after_s: float = 0) -> None:
        with self._lock:
            self._seen[name] += 1
            is_here = name == self._at and self._seen[name] == self._nth
        if not is_here:
            return
        if after_s:
            threading.Timer(after_s, os.kill, (os.getpid(), self._signal)).start()
        else:
            os.kill(os.getpid(), self._signal)


def watch(place: Place) -> None:
    """Make the producer pass by the places."""
    again, send = TransactionalProducer._again, TransactionalProducer.send

    def watched(self: TransactionalProducer, call: Callable[[float], Any], until: float | None = None) -> None:
        step = STEPS.get(call.__name__, "other")
        place.here(f"before {step}")
        place.here(f"in {step}", INSIDE_S)
        again(self, call, until)
        place.here(f"after {step}")

    def produced(self: TransactionalProducer, deliveries: Any) -> None:
        send(self, deliveries)
        place.here("after produce")

    TransactionalProducer._again = watched  # type: ignore[method-assign]
    TransactionalProducer.send = produced  # type: ignore[method-assign]


def main(options: dict[str, Any]) -> None:
    place = Place(options)
    watch(place)

    async def handler(record: kl.Record) -> kl.Output | None:
        place.here("before handler")
        await asyncio.sleep(options["work_s"])
        place.here("in handler")
        if record.offset % 11 == 3:
            raise kl.Fatal("to the dead letters")
        if record.offset % 11 == 7:
            return None
        return kl.Output(options["out"], key=record.key, value=f"{record.partition}@{record.offset}".encode())

    pipeline = kl.Pipeline(
        kafka=options["kafka"],
        topics=[options["topic"]],
        handler=handler,
        max_concurrency=16,
        offset_reset="earliest",
        delivery="transactional",
        commit=kl.Commit(interval_ms=options["interval_ms"]),
        on_exhausted=kl.DeadLetter(options["dead"]),
    )
    with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        consumer.run()
    sys.stdout.write(f"aborted {consumer.snapshot().transactions_aborted}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
