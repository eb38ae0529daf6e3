"""`make bench-delivery`: records a second under each guarantee, beside a plain confluent-kafka loop at least once.

Every row reads the same topic (4 partitions, 1,000 keys, 100 bytes) on the same broker, with a handler that does
nothing: so what is measured is the guarantee's own cost. Under "exactly_once" it inserts one row, under "transactional"
it returns one output. The figure is taken from the first call of the handler to the last; a row reads as many records
as it takes some seconds for, and runs `--repeat` times. The rows `transactions/…` are beside the JVM Parallel
Consumer's transactions (`delivery.transactional`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
from confluent_kafka import Consumer
from pages import put_into_page
from peers.postgres import PostgresServer, find_postgres

import keylane as kl
from delivery import transactional
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC, OUT = "deliveries", "delivered"
PARTITIONS = 4
KEYS = 1_000
VALUE = b"v" * 100
TABLE = "CREATE TABLE effects (part integer, at bigint)"


@dataclass
class Row:
    """One row of the table, and what was measured of it."""

    name: str
    says: str
    records: int
    options: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


def rows() -> list[Row]:
    sqlite, postgres = ({"store": name} for name in ("sqlite", "postgres"))
    return [
        Row("plain", "confluent-kafka: consume 500, handle, commit synchronously", 200_000),
        Row("plain-each", "confluent-kafka: a synchronous commit with each record", 3_000),
        Row("at_least_once", "16 threads", 200_000),
        Row("at_most_once", "16 threads", 200_000, {"delivery": "at_most_once"}),
        Row("almost_once-1", "`max_concurrency=1`", 3_000, {"delivery": "almost_once", "max_concurrency": 1}),
        Row("almost_once-16", "16 threads", 20_000, {"delivery": "almost_once", "max_concurrency": 16}),
        Row("exactly_once-sqlite", "SQLite, one insert", 3_000, sqlite),
        Row("exactly_once-sqlite-batch", "SQLite, batches of 100", 50_000, sqlite | {"batch": kl.Batch(100)}),
        Row("exactly_once-postgres", "PostgreSQL, one insert, 10 connections", 5_000, postgres),
        Row("transactional", "16 threads, one output", 100_000, {"delivery": "transactional"}),
    ]


class Clock:
    """The first and the last call of a handler."""

    def __init__(self) -> None:
        self.calls = 0
        self.first = self.last = 0.0

    def call(self, records: int = 1) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.calls += records

    def rate(self, records: int) -> float:
        return records / (self.last - self.first)


def handler_of(row: Row, clock: Clock) -> Callable[..., Any]:
    insert = "INSERT INTO effects VALUES ({}, {})"

    def nothing(_: kl.Record) -> None:
        clock.call()

    def effect(record: kl.Record, context: kl.Context) -> None:
        clock.call()
        context.transaction.execute(insert.format(record.partition, record.offset))

    def effects(records: list[kl.Record], context: kl.Context) -> None:
        clock.call(len(records))
        for record in records:
            context.transaction.execute(insert.format(record.partition, record.offset))

    def output(record: kl.Record) -> kl.Output:
        clock.call()
        return kl.Output(OUT, key=record.key, value=record.value)

    if "store" in row.options:
        return effects if "batch" in row.options else effect
    return output if row.options.get("delivery") == "transactional" else nothing


def keylane_rate(row: Row, servers: str, stack: ExitStack, records: int) -> float:
    clock, options = Clock(), dict(row.options)
    if "store" in options:
        options["delivery"] = kl.ExactlyOnce(store(options.pop("store"), stack))
    ends = {(TOPIC, partition): records // PARTITIONS for partition in range(PARTITIONS)}
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": f"bench-{time.time_ns()}"},
        topics=[TOPIC],
        handler=handler_of(row, clock),
        offset_reset="earliest",
        **options,
    )
    with kl.ParallelConsumer(pipeline, ending_offsets=ends) as consumer:
        consumer.run()
    return clock.rate(records)


def store(kind: str, stack: ExitStack) -> str:
    """A new database with its table."""
    if kind == "sqlite":
        import sqlite3

        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "effects.db")
        with sqlite3.connect(path) as connection:
            connection.execute(TABLE)
        return str(path)
    import psycopg

    server = stack.enter_context(PostgresServer())
    with psycopg.connect(server.conninfo) as connection:
        connection.execute(TABLE)
    return server.conninfo


def plain_rate(row: Row, servers: str, records: int) -> float:
    """What a careful plain loop does: nothing is committed before it is handled."""
    clock = Clock()
    settings = {"bootstrap.servers": servers, "group.id": f"plain-{time.time_ns()}", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 20})
    consumer.subscribe([TOPIC])
    while clock.calls < records:
        for message in (found := consumer.consume(500, 1.0)):
            clock.call()
            if row.name == "plain-each":
                consumer.commit(message=message, asynchronous=False)
                if clock.calls >= records:
                    break
        if found and row.name == "plain":
            consumer.commit(asynchronous=False)
    consumer.close()
    return clock.rate(clock.calls)


def fill(servers: str, records: int) -> None:
    Admin({"bootstrap.servers": servers}).create_topics({TOPIC: PARTITIONS, OUT: PARTITIONS})
    with BulkProducer(servers) as producer:
        for number in range(records):
            key = b"key-%d" % (number % KEYS)
            producer.produce(kl.Output(TOPIC, key=key, value=VALUE, partition=number % PARTITIONS))


def markdown(found: list[Row]) -> str:
    lines = ["| | | records/s | lowest to highest | load |", "|---|---|---:|---:|---:|"]
    for row in found:
        spread = f"{min(row.rates):,.0f} to {max(row.rates):,.0f}"
        middle, load = statistics.median(row.rates), statistics.median(row.loads)
        lines.append(f"| {row.name} | {row.says} | {middle:,.0f} | {spread} | {load:.1f} |")
    return "\n".join(lines) + "\n"


def measure(servers: str, chosen: list[Row], options: argparse.Namespace) -> None:
    """Run each row, a tenth of it when it is to be quick."""
    share, repeat = (10, 1) if options.quick else (1, options.repeat)
    if chosen:
        fill(servers, max(row.records for row in chosen) // share)
    for row in chosen:
        records = row.records // share
        for _ in range(repeat):
            row.loads.append(os.getloadavg()[0])
            with ExitStack() as stack:
                plain = row.name.startswith("plain")
                run = plain_rate(row, servers, records) if plain else None
                row.rates.append(run or keylane_rate(row, servers, stack, records))
        print(f"{row.name}: {statistics.median(row.rates):,.0f} records/s", flush=True)


def main() -> int:
    options = arguments()
    chosen = [row for row in rows() if fnmatch(row.name, options.rows)]
    if find_postgres() is None:
        chosen = [row for row in chosen if "postgres" not in row.name]
        print("without PostgreSQL: it is not installed (/usr/lib/postgresql)", file=sys.stderr)
    beside = transactional.contestants(options.rows)
    with ExitStack() as stack:
        servers = started(options.broker, stack)
        measure(servers, chosen, options)
        share, repeat = (10, 1) if options.quick else (1, options.repeat)
        beside = transactional.run(servers, beside, repeat=repeat, share=share)
    options.out.mkdir(parents=True, exist_ok=True)
    found = [*map(asdict, chosen), *map(asdict, beside)]
    (options.out / "delivery.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
    if options.page is not None and chosen:
        put_into_page(options.page, "delivery", markdown(chosen))
    if options.page is not None and beside:
        put_into_page(options.page, f"transactions on {options.broker}", transactional.markdown(beside))
    return 0


def started(broker: str, stack: ExitStack) -> str:
    """The address of a new broker."""
    if broker == "apache":
        return stack.enter_context(peers.ApacheKafka()).bootstrap
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-"))
    return stack.enter_context(BrokerProcess(Path(folder, "data"))).bootstrap


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-delivery", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="which rows, as a file name's pattern (all)")
    parser.add_argument("--broker", choices=["keylane", "apache"], default="keylane", help="which one (keylane)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs; the median counts (3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, once")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    text = "also put the table into this page (docs/benchmarks.md)"
    parser.add_argument("--page", type=Path, metavar="FILE", help=text)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
