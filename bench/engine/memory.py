"""Memory of a buffered record: `python -m engine.memory BOOTSTRAP TOPIC RECORDS` polls so many while a handler waits.

Each size is a process of its own; the difference of their resident memory, by the difference of their records, is what
a record takes: the client's message, its payload, and what the engine keeps of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

SIZES = (10_000, 210_000)
VALUE_BYTES = 100
KEYS = 10_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hold(bootstrap: str, topic: str, records: int) -> int:
    """Resident memory while `records` are buffered."""
    gate = threading.Event()
    found: list[int] = []
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": bootstrap, "group.id": f"{topic}-{records}", "queued.min.messages": 1_000},
        topics=[topic],
        handler=lambda _: gate.wait() and None,
        max_buffered_records=records,
        max_buffered_bytes=1 << 31,
        offset_reset="earliest",
    )

    def look(snapshot: kl.Snapshot) -> None:
        if snapshot.buffered >= records * 0.98 and not gate.is_set():
            found.append(round(resident_bytes() * records / snapshot.buffered))
            consumer.stop()
            gate.set()

    with kl.ParallelConsumer(pipeline, on_progress=look) as consumer:
        consumer.run()
    return found[0]


def measure(bootstrap: str) -> dict[str, str]:
    """The table for the docs."""
    topic = f"memory-{os.getpid()}"
    assert Admin({"bootstrap.servers": bootstrap}).create_topics({topic: 1})
    with BulkProducer(bootstrap) as producer:
        for number in range(SIZES[-1] + 50_000):
            producer.produce(kl.Output(topic, key=b"k%d" % (number % KEYS), value=b"v" * VALUE_BYTES, partition=0))
    resident = [
        int(
            subprocess.run(
                [sys.executable, "-m", "engine.memory", bootstrap, topic, str(size)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=120,
            ).stdout
        )
        for size in SIZES
    ]
    each = (resident[1] - resident[0]) / (SIZES[1] - SIZES[0])
    lines = ["| buffered records | resident memory |", "|---:|---:|"]
    lines += [f"| {size:,} | {one / 1e6:.0f} MB |" for size, one in zip(SIZES, resident, strict=True)]
    return {
        "title": f"Memory: {each:.0f} bytes a buffered record with a value of {VALUE_BYTES} bytes",
        "markdown": "\n".join(lines) + "\n",
    }


if __name__ == "__main__":
    print(hold(sys.argv[1], sys.argv[2], int(sys.argv[3])))
