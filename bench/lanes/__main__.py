"""`make bench-lanes`: the Parallel Consumer's table through lanes, the start of a lane, from append to output, scaling,
a slow record, the driver's side of a thousand lanes, and the coordinator's of a thousand members (on Apache Kafka).

The table stands beside one process and, where that can run, beside the JVM's. Parts can be run alone (`--parts table
start latency scaling slow driver members`), and rows of the table (`--rows 'key-*/16'`); each adds its figures to
DIR/bench-lanes.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
from engine.contest import JVM_HEAP_MB
from engine.rows import Row, Topic, rows
from pages import put_into_page
from peers import jvm

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from lanes import latency, members, picture, report, scale, slow
from lanes.work import Timed, make_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = ("table", "start", "latency", "scaling", "slow", "driver", "members")
TABLE = ("partition/*", "key-*/16", "key-*/100", "unordered/*")
IO_RECORDS, IO_SLEEP_US, IO_CONCURRENCY = 16_000, 5_000, 8
CPU_RECORDS = 6_000
SCALING_PARTITIONS = 16
LANES = (1, 2, 4)


class Bench:
    """One broker, one warm session, one folder."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path, repeat: int, table_rows: list[str]) -> None:
        self.spark, self.servers, self.folder, self.repeat = spark, servers, folder, repeat
        self.table_rows = table_rows
        self._filled: set[str] = set()

    def fill(self, topic: Topic, sleep_us: int | None = None) -> str:
        """The topic's name, once it is filled; `sleep_us` for every record instead of the topic's own."""
        name = topic.name if sleep_us is None else f"{topic.name}-{sleep_us}"
        if name not in self._filled:
            Admin({"bootstrap.servers": self.servers}).create_topics({name: topic.partitions})
            with BulkProducer(self.servers) as producer:
                for key, value, partition in topic.content():
                    value = value if sleep_us is None else b"%d" % sleep_us
                    producer.produce(kl.Output(name, key=key, value=value, partition=partition))
            self._filled.add(name)
        return name

    def in_process(self, name: str, **options: Any) -> Timed:
        folder = self._folder()
        with kl.ParallelConsumer(make_pipeline(self.servers, name, folder, **options), ending_offsets="latest") as one:
            one.run()
        return Timed.read(folder)

    def on_lanes(self, name: str, lanes: int, **options: Any) -> tuple[Timed, float]:
        """What it took, and the seconds from the call of `start` to the first record."""
        folder = self._folder()
        begun = time.time()
        query = kl.spark.start(
            make_pipeline(self.servers, name, folder, **options),
            self.spark,
            lanes=lanes,
            trigger={"availableNow": True},
            members="dynamic",
        )
        query.awaitTermination()
        timed = Timed.read(folder)
        return timed, timed.first - begun

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    # The parts.

    def table(self) -> list[dict[str, Any]]:
        selected = rows(self.table_rows, quick=False)
        with contextlib.ExitStack() as stack:
            peer = None
            if (lacks := jvm.missing()) is None:
                command = jvm.command(jvm.BENCH, self.servers, heap_mb=JVM_HEAP_MB)
                peer = stack.enter_context(jvm.LineProcess(command))
            else:
                print(f"the JVM Parallel Consumer is left out: {lacks}")
            return [self._row(row, peer) for row in selected]

    def _row(self, row: Row, peer: jvm.LineProcess | None) -> dict[str, Any]:
        name = self.fill(row.topic)
        options: dict[str, Any] = {"kind": "sleep", "ordering": row.ordering, "concurrency": row.concurrency}
        here, there, limits, jvms = [], [], [], []
        for _ in range(self.repeat):
            if peer is not None:
                answer = peer.ask(f"{name} {row.ordering.upper()} {row.topic.records} {row.concurrency} sleep")
                _, seconds, _, _, done = answer.split(" ")
                assert int(done) == row.topic.records, answer
                jvms.append(float(seconds))
            timed = self.in_process(name, **options)
            lanes, _ = self.on_lanes(name, 1, **options)
            assert len(timed.took) == len(lanes.took) == row.topic.records
            here.append(timed.seconds)
            there.append(lanes.seconds)
            limits.append(lanes.limit_s(row.ordering, row.concurrency))
        process, lane = statistics.median(here), statistics.median(there)
        return said(
            {
                "row": row.name,
                "limit_s": round(statistics.median(limits), 3),
                "process_s": round(process, 3),
                "lane_s": round(lane, 3),
                "lane_over_process": round(lane / process, 3),
                "jvm_s": round(statistics.median(jvms), 3) if jvms else None,
                "runs": {"process": here, "lane": there, "jvm": jvms},
                "load": os.getloadavg()[0],
            }
        )

    def start(self) -> list[dict[str, Any]]:
        name = self.fill(Topic(500, 100, 1, sleeping=False))
        options: dict[str, Any] = {"kind": "sleep", "ordering": "unordered", "concurrency": 16}
        found = [self.on_lanes(name, 1, **options)[1] for _ in range(self.repeat + 2)][2:]
        return [said({"first_record_s": round(statistics.median(found), 3), "runs": found, "load": os.getloadavg()[0]})]

    def latency(self) -> list[dict[str, Any]]:
        if (lacks := peers.missing()) is not None:
            print(f"Spark's own connector is left out: {lacks}")
        found = latency.run(self.spark, self.servers, self._folder(), connector=lacks is None)
        return [
            said(
                {
                    "way": way,
                    "records": len(took),
                    "p50_ms": round(statistics.median(took), 1),
                    "p99_ms": round(statistics.quantiles(took, n=100)[98], 1),
                    "load": os.getloadavg()[0],
                }
            )
            for way, took in found.items()
        ]

    def scaling(self) -> list[dict[str, Any]]:
        io = self.fill(Topic(IO_RECORDS, 1_000, SCALING_PARTITIONS, sleeping=True), IO_SLEEP_US)
        cpu = self.fill(Topic(CPU_RECORDS, 1_000, SCALING_PARTITIONS, sleeping=True), 0)
        return [
            *self._scaling("waiting (5 ms)", io, LANES, kind="sleep", ordering="unordered", concurrency=IO_CONCURRENCY),
            *self._scaling("computing (2 ms)", cpu, LANES[:2], kind="burn", ordering="unordered", concurrency=1),
        ]

    def _scaling(self, what: str, name: str, counts: tuple[int, ...], **options: Any) -> list[dict[str, Any]]:
        found, first = [], 0.0
        self.on_lanes(name, max(counts), **options)  # so that no lane waits for the start of a Python worker
        for lanes in counts:
            took = [self.on_lanes(name, lanes, **options)[0] for _ in range(self.repeat)]
            assert all(len(one.workers) == lanes for one in took)
            rate = statistics.median(one.rate_together for one in took)
            first = first or rate
            found.append(
                said(
                    {
                        "handlers": what,
                        "lanes": lanes,
                        "records_per_s": round(rate, 1),
                        "of_linear": round(rate / first / lanes, 3),
                        "load": os.getloadavg()[0],
                    }
                )
            )
        return found

    def slow(self) -> list[dict[str, Any]]:
        found = slow.run(self.spark, self.servers, self._folder())
        return [said(one) for one in picture.by_second(found)]

    def driver(self) -> list[dict[str, Any]]:
        return [said(scale.measure(lanes)) for lanes in scale.COUNTS]

    def members(self) -> list[dict[str, Any]]:
        if (lacks := peers.missing()) is not None:
            print(f"the members are left out: {lacks}")
            return []
        return [said(members.measure(kind)) for kind in members.KINDS]


def said(figures: dict[str, Any]) -> dict[str, Any]:
    print({name: value for name, value in figures.items() if name not in ("runs", "seconds")}, flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-lanes", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--rows", nargs="+", default=TABLE, metavar="ROW", help="of the table, by name or pattern (all)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs; the median counts (3)")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also put the tables into this page")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "bench-lanes.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    # More slots than cores: a lane that waits does not need one.
    session = partial(kl.spark.session, "local[6]", "keylane bench")
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder, BrokerProcess(Path(folder, "data")) as broker:
        settings = {"spark.ui.enabled": "false", "spark.sql.streaming.checkpointLocation": f"{folder}/state"}
        if "latency" in options.parts and peers.missing() is None:
            settings["spark.jars"] = ",".join(map(str, peers.jars("spark_kafka").glob("*.jar")))
        spark = session(**settings)
        try:
            bench = Bench(spark, broker.bootstrap, Path(folder), options.repeat, list(options.rows))
            for part in options.parts:
                made = getattr(bench, part)()
                names = {one["row"] for one in made} if part == "table" else None
                kept = [] if names is None else [one for one in found.get(part, ()) if one["row"] not in names]
                found[part] = [*kept, *made]
                file.write_text(json.dumps(found, indent=1) + "\n")
        finally:
            spark.stop()
    if "slow" in found:
        picture.draw(options.out / "bench-lanes.png", found["slow"])
    if options.page is not None:
        put_into_page(options.page, "lanes", report.markdown(found))
    print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
