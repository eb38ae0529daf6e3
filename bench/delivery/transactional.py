"""`python -m delivery.transactional`: `delivery="transactional"` beside the JVM Parallel Consumer's transactions.

Both copy the same topic (4 partitions, 1,000 keys, 100 bytes) on the same broker, with a handler that does nothing
else, in key order. The figure is taken from outside: how many records a second become visible to a reader of committed
records, from the first that it sees to the last; each copies as many as it takes for that to last some seconds. A run
of each comes first, to warm up, and does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import peers
from confluent_kafka import Consumer, TopicPartition
from peers import jvm

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PARTITIONS = 4
KEYS = 1_000
VALUE = b"v" * 100
TRANSACTIONAL_BENCH = "keylane.peers.TransactionalBench"
LIMIT_S = 120.0


class Board:
    """A broker with a filled topic, and new target topics."""

    def __init__(self, servers: str, records: int) -> None:
        self.servers = servers
        self.records = records
        self._admin = Admin({"bootstrap.servers": servers})
        self._targets = 0
        self._admin.create_topics({"source": PARTITIONS})
        with BulkProducer(servers) as producer:
            for number in range(records):
                key = b"key-%d" % (number % KEYS)
                producer.produce(kl.Output("source", key=key, value=VALUE, partition=number % PARTITIONS))

    def target(self) -> str:
        self._targets += 1
        name = f"target-{self._targets}"
        self._admin.create_topics({name: PARTITIONS})
        return name

    def visible_a_second(self, target: str, records: int) -> float:
        """Read the target until so many are there."""
        settings = {"bootstrap.servers": self.servers, "group.id": "bench", "isolation.level": "read_committed"}
        reader = Consumer(settings | {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5})
        reader.assign([TopicPartition(target, partition, 0) for partition in range(PARTITIONS)])
        seen, first, first_at, now = 0, 0, 0.0, 0.0
        give_up_at = time.monotonic() + LIMIT_S
        while seen < records:
            found = reader.consume(10_000, 0.01)
            now = time.monotonic()
            if now > give_up_at:
                raise TimeoutError(f"{target}: {seen} of {records} records within {LIMIT_S:.0f} s")
            if found and not seen:
                first, first_at = len(found), now
            seen += len(found)
        reader.close()
        return (seen - first) / max(now - first_at, 1e-9)


def keylane_run(board: Board, records: int, workers: str, concurrency: int, interval_ms: int) -> float:
    target = board.target()

    def plain(record: kl.Record) -> kl.Output:
        return kl.Output(target, key=record.key, value=record.value)

    async def coroutine(record: kl.Record) -> kl.Output:
        return kl.Output(target, key=record.key, value=record.value)

    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": board.servers, "group.id": target},
        topics=["source"],
        handler=coroutine if workers == "asyncio" else plain,
        max_concurrency=concurrency,
        threads=concurrency,
        delivery="transactional",
        commit_interval_ms=interval_ms,
        offset_reset="earliest",
    )
    with kl.ParallelConsumer(pipeline) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            return board.visible_a_second(target, records)
        finally:
            consumer.stop()
            thread.join()


def jvm_run(board: Board, records: int, process: jvm.LineProcess, concurrency: int, interval_ms: int) -> float:
    target = board.target()
    if (said := process.ask(f"source {target} {concurrency} {interval_ms}")) != "running":
        raise RuntimeError(said)
    try:
        return board.visible_a_second(target, records)
    finally:
        process.ask("end")


def rows(board: Board, process: jvm.LineProcess | None, args: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    for concurrency in args.concurrency:
        for interval_ms in args.interval_ms:
            given = (concurrency, interval_ms)
            runs: dict[str, Callable[[], float]] = {
                f"keylane, {workers}": partial(keylane_run, board, args.records, workers, *given)
                for workers in ("asyncio", "threads")
            }
            if process is not None:
                runs["JVM Parallel Consumer"] = partial(jvm_run, board, args.jvm_records, process, *given)
            for who, run in runs.items():
                run()
                rates = [run() for _ in range(args.repeats)]
                yield f"{who} | {concurrency} | {interval_ms}", rates


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--jvm-records", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 100])
    parser.add_argument("--interval-ms", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--broker", choices=["keylane", "apache"], default="keylane")
    args = parser.parse_args(arguments)
    missing = jvm.missing()
    with ExitStack() as stack:
        if args.broker == "apache":
            servers = stack.enter_context(peers.ApacheKafka()).bootstrap
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            servers = stack.enter_context(BrokerProcess(Path(folder) / "data")).bootstrap
        process = None
        if missing is None:
            process = stack.enter_context(jvm.LineProcess(jvm.command(TRANSACTIONAL_BENCH, servers)))
        else:
            sys.stderr.write(f"without the JVM Parallel Consumer: {missing}\n")
        board = Board(servers, args.records)
        for what, rates in rows(board, process, args):
            sys.stdout.write(f"| {what} | {median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
