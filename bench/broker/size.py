"""What a broker takes before it does anything: the time of its start, and memory under many partitions."""

from __future__ import annotations

import time
from pathlib import Path

import peers

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin

STARTS = 5
TOPICS, PARTITIONS = 1_000, 10


def starts(folder: Path) -> dict[str, float]:
    """Seconds from the start of the process to its first answer, on an empty folder; the fastest of some."""
    ours = []
    for number in range(STARTS):
        began = time.perf_counter()
        with BrokerProcess(folder / f"start-{number}"):
            ours.append(time.perf_counter() - began)
    found = {"keylane": min(ours)}
    if peers.missing() is None:
        kafka = peers.ApacheKafka()
        with kafka:
            kafka.kill()
            began = time.perf_counter()
            kafka.start()
            found[f"Apache Kafka {peers.kafka_release()}"] = time.perf_counter() - began
    return found


def many_partitions(folder: Path, topics: int = TOPICS, partitions: int = PARTITIONS) -> dict[str, float]:
    """Memory with no topic and with many, how long they took to make, and a start on them."""
    with BrokerProcess(folder / "many") as process:
        empty = resident_mb(process.pid)
        began = time.perf_counter()
        admin = Admin({"bootstrap.servers": process.bootstrap}, timeout_ms=600_000)
        admin.create_topics({f"topic-{number}": partitions for number in range(topics)})
        made_s = time.perf_counter() - began
        full = resident_mb(process.pid)
        process.terminate()
        began = time.perf_counter()
        process.start()
        clean_s = time.perf_counter() - began
        process.kill()
        began = time.perf_counter()
        process.start()
        return {
            "topics": topics,
            "partitions": partitions,
            "empty_mb": empty,
            "mb": full,
            "kb_a_partition": (full - empty) * 1_000 / (topics * partitions),
            "made_s": made_s,
            "started_s": clean_s,
            "recovered_s": time.perf_counter() - began,
        }


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_000
    raise RuntimeError(f"process {pid} has no VmRSS")
