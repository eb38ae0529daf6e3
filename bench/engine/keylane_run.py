"""keylane as a contestant: `python -m engine.keylane_run BOOTSTRAP threads|asyncio one|all`, run by run in one warm
process, its threads on one processor or on all.

Each line of input is a run: TOPIC ORDERING RECORDS CONCURRENCY sleep|noop|gated|latency, answered with FROM_SUBSCRIBE_S
FROM_FIRST_S SUM_S HEAVIEST_S RECORDS_DONE, as the Java program beside it does. A handler measures what it really took;
"gated" ones wait until all records are polled, and count from then. "latency" is answered with P50_MS P99_MS
RECORDS_DONE: the time from a record's value, nanoseconds since the epoch, to its handler, over the second half.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any

import keylane as kl

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Run:
    """The handlers of one run and what they note down. What threads share are a list's append and a counter's next,
    which are atomic."""

    def __init__(self, records: int, *, by_partition: bool) -> None:
        self._records = records
        self._by_partition = by_partition
        self._done = count(1)
        self._spans: list[tuple[Any, int, int]] = []
        """Of handlers that sleep: lane, begin, end."""
        self._ages_ns: list[int] = []
        self._gate = threading.Event()
        self.first_ns = 0
        self.last_ns = 0

    def make_sleep(self) -> Callable[[kl.Record], None]:
        """Local names: what a handler does beside its sleep holds the interpreter's lock, for which others wait."""
        note, by_partition, now_ns, sleep = self._spans.append, self._by_partition, time.perf_counter_ns, time.sleep

        def handler(record: kl.Record) -> None:
            start_ns = now_ns()
            sleep(int(record.value or 0) / 1e6)
            note((record.partition if by_partition else record.key, start_ns, now_ns()))

        return handler

    def make_sleep_async(self) -> Callable[[kl.Record], Coroutine[Any, Any, None]]:
        note, by_partition, now_ns, sleep = self._spans.append, self._by_partition, time.perf_counter_ns, asyncio.sleep

        async def handler(record: kl.Record) -> None:
            start_ns = now_ns()
            await sleep(int(record.value or 0) / 1e6)
            note((record.partition if by_partition else record.key, start_ns, now_ns()))

        return handler

    def make_noop(self) -> Callable[[kl.Record], None]:
        """Local names: the handler's own time is to be as short as can be."""
        one_more, records, now_ns = self._done.__next__, self._records, time.perf_counter_ns

        def noop(record: kl.Record) -> None:  # noqa: ARG001 - a handler's signature
            number = one_more()
            if number == 1:
                self.first_ns = now_ns()
            elif number == records:
                self.last_ns = now_ns()

        return noop

    def make_noop_async(self) -> Callable[[kl.Record], Coroutine[Any, Any, None]]:
        noop = self.make_noop()

        async def noop_async(record: kl.Record) -> None:
            noop(record)

        return noop_async

    def gated(self, record: kl.Record) -> None:  # noqa: ARG002 - a handler's signature
        if not self._gate.is_set():  # `wait` would have all threads take its lock for each record
            self._gate.wait()
        if next(self._done) == self._records:
            self.last_ns = time.perf_counter_ns()

    def open_gate(self, snapshot: kl.Snapshot) -> None:
        """Let handlers go on once everything is polled."""
        if snapshot.buffered >= self._records and not self._gate.is_set():
            self.first_ns = time.perf_counter_ns()
            self._gate.set()

    def note_age(self, record: kl.Record) -> None:
        self._ages_ns.append(time.time_ns() - int(record.value or 0))

    async def note_age_async(self, record: kl.Record) -> None:
        self.note_age(record)

    def ages(self) -> str:
        """What of the second half: the first is from before the consumer had its partitions."""
        ages = sorted(self._ages_ns[len(self._ages_ns) // 2 :])
        half, most = ages[len(ages) // 2], ages[len(ages) * 99 // 100]
        return f"{half / 1e6:.3f} {most / 1e6:.3f} {len(self._ages_ns)}"

    def answer(self, start_ns: int, processed: int) -> str:
        took: defaultdict[Any, int] = defaultdict(int)
        for lane, began_ns, ended_ns in self._spans:
            took[lane] += ended_ns - began_ns
        if self._spans:
            self.first_ns = min(began_ns for _, began_ns, _ in self._spans)
            self.last_ns = max(ended_ns for _, _, ended_ns in self._spans)
        sum_ns, heaviest_ns = sum(took.values()), max(took.values(), default=0)
        seconds = (self.last_ns - start_ns, self.last_ns - self.first_ns, sum_ns, heaviest_ns)
        return " ".join(f"{one / 1e9:.6f}" for one in seconds) + f" {processed}"


def run(bootstrap: str, mode: str, processors: str, group: str, command: str) -> str:
    topic, ordering, records, concurrency, work = command.split(" ")
    one = Run(int(records), by_partition=ordering == "PARTITION")
    handlers: dict[tuple[str, str], Callable[..., Any]] = {
        ("threads", "sleep"): one.make_sleep(),
        ("asyncio", "sleep"): one.make_sleep_async(),
        ("threads", "noop"): one.make_noop(),
        ("asyncio", "noop"): one.make_noop_async(),
        ("threads", "gated"): one.gated,
        ("threads", "latency"): one.note_age,
        ("asyncio", "latency"): one.note_age_async,
    }
    gated = {"max_buffered_records": int(records), "max_buffered_bytes": 1 << 31}
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": bootstrap, "group.id": group},
        topics=[topic],
        handler=handlers[mode, work],
        ordering=ordering.lower(),  # type: ignore[arg-type] # validated by the pipeline
        max_concurrency=int(concurrency),
        workers=kl.Threads(int(concurrency)) if mode == "threads" else None,
        one_processor=processors == "one",
        offset_reset="earliest",
        **(gated if work == "gated" else {}),  # type: ignore[arg-type]
    )
    ends: Any = {(topic, 0): int(records)} if work == "latency" else "latest"
    progress = one.open_gate if work == "gated" else None
    with kl.ParallelConsumer(pipeline, ending_offsets=ends, on_progress=progress) as consumer:
        start_ns = time.perf_counter_ns()
        consumer.run()
    if work == "latency":
        return one.ages()
    return one.answer(start_ns, consumer.snapshot().processed)


def main() -> None:
    bootstrap, mode, processors = sys.argv[1:]
    for number, line in enumerate(sys.stdin):
        try:
            group = f"{line.split(' ')[0]}-{mode}-{os.getpid()}-{number}"
            answer = run(bootstrap, mode, processors, group, line.strip())
        except kl.KeylaneError as error:
            answer = f"error: {error}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
