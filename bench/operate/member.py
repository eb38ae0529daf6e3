"""One member, in a process of its own: `python -m operate.member BOOTSTRAP TOPIC RECORDS FIRST on|off WORK_MS`.

It tells when it has its partitions, handles RECORDS, and tells the processor time of the whole process, in seconds,
from the record number FIRST to the last one, and how long that took. With RECORDS 0 it waits for none, and tells the
same of FIRST seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable

CONCURRENCY = 64
LOOK_S = 0.05
SETTLE_S = 3.0
"""Before an idle member is measured."""


class Measured:
    """A handler that notes when it is called for the record FIRST and for the last one."""

    def __init__(self, records: int, first: int, work_s: float) -> None:
        self._records, self._first, self._work_s = records, first, work_s
        self._number = count(1)  # `next` is atomic
        self.at: dict[int, tuple[float, float]] = {}

    def __call__(self, _record: kl.Record) -> None:
        if self._work_s:
            time.sleep(self._work_s)
        number = next(self._number)
        if number in (self._first, self._records):
            self.at[number] = (time.process_time(), time.perf_counter())


def main() -> None:
    bootstrap, topic, records, first, switch, work_ms = sys.argv[1:]
    measured = Measured(int(records), int(first), float(work_ms) / 1000)
    partitions = Admin({"bootstrap.servers": bootstrap}).topics()[topic]
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": bootstrap, "group.id": topic},
        topics=[topic],
        handler=measured,
        workers=kl.Threads(CONCURRENCY),
        max_concurrency=CONCURRENCY,
        offset_reset="earliest",
        operations=kl.Operations(token="a token of the bench") if switch == "on" else None,
    )
    if not int(records):
        idle(pipeline, partitions, int(first))
        return
    ends: Any = {(topic, one): int(records) // partitions for one in range(partitions)}
    with kl.ParallelConsumer(pipeline, ending_offsets=ends) as consumer:
        threading.Thread(target=tell_assigned, args=(consumer, partitions, print), daemon=True).start()
        consumer.run()
    (began_cpu, began), (ended_cpu, ended) = measured.at[int(first)], measured.at[int(records)]
    print(f"{ended_cpu - began_cpu:.6f} {ended - began:.6f}", flush=True)


def idle(pipeline: kl.Pipeline, partitions: int, seconds: int) -> None:
    with kl.ParallelConsumer(pipeline) as consumer:
        runs = threading.Thread(target=consumer.run)
        runs.start()
        tell_assigned(consumer, partitions, print)
        time.sleep(SETTLE_S)
        began_cpu, began = time.process_time(), time.perf_counter()
        time.sleep(seconds)
        used, took = time.process_time() - began_cpu, time.perf_counter() - began
        consumer.stop()
        runs.join()
    print(f"{used:.6f} {took:.6f}", flush=True)


def tell_assigned(consumer: kl.ParallelConsumer, partitions: int, tell: Callable[..., None]) -> None:
    while len(consumer.snapshot().partitions) < partitions:
        time.sleep(LOOK_S)
    tell("assigned", flush=True)


if __name__ == "__main__":
    main()
