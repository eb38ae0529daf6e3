"""`make bench-http`: one request a record, a record a key, all in flight at once: how long, and how many at once."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from pages import put_into_page
from peers.jvm import LineProcess

import keylane as kl
from keylane import http
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

TOPIC = "devices"
SPARE_FILES = 500
"""Open files that a process needs beside its connections."""


def main() -> int:
    options = arguments()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if options.at_once + SPARE_FILES > most_files:
        print(f"{options.at_once} requests at once: only {most_files} files may be open (ulimit -n)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder, BrokerProcess(Path(folder, "data")) as broker:
        fill(broker.bootstrap, options.keys)
        command = [sys.executable, "-m", "http_calls.service", str(options.latency_ms)]
        with LineProcess(command) as service:
            port = next(service.lines())
            runs = [one(broker.bootstrap, f"http://127.0.0.1:{port}", service, options) for _ in range(options.repeat)]
    found = {
        "keys": options.keys,
        "latency_ms": options.latency_ms,
        "seconds": statistics.median(run["seconds"] for run in runs),
        "most_at_once": min(run["most_at_once"] for run in runs),
        "runs": runs,
        "cpus": os.cpu_count(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "http.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.page is not None:
        put_into_page(options.page, "http", markdown(found))
    print(f"{found['keys']:,} requests in {found['seconds']:.1f} s, {found['most_at_once']:,} at once")
    return 0


def one(bootstrap: str, url: str, service: LineProcess, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a group of its own: from the first request to the last answer."""
    begun: list[float] = []
    ended: list[float] = []

    def request(record: kl.Record) -> http.Request:
        begun.append(time.perf_counter())
        return http.Request("GET", f"{url}/{(record.key or b'').decode()}")

    calls = http.Calls(request=request, on_response=lambda *_: ended.append(time.perf_counter()), timeout_ms=120_000)
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": bootstrap, "group.id": f"bench-{time.time_ns()}"},
        topics=[TOPIC],
        handler=calls,
        resource=calls.pool,
        max_concurrency=options.at_once,
        max_buffered_records=4 * options.at_once,
        offset_reset="earliest",
    )
    load, before_s = os.getloadavg()[0], time.process_time()
    with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()
    assert consumer.snapshot().processed == options.keys == len(ended)
    result = {
        "seconds": round(ended[-1] - begun[0], 3),
        "most_at_once": int(service.ask("most")),
        "processor_s": round(time.process_time() - before_s, 2),
        "load": load,
    }
    print(result, flush=True)
    return result


def markdown(found: dict[str, Any]) -> str:
    """The table for the docs."""
    lines = [
        "| keys | service | at once | seconds | processor time a request | load |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for run in found["runs"]:
        each_ms = run["processor_s"] / found["keys"] * 1000
        figures = f"{run['most_at_once']:,} | {run['seconds']:.1f} s | {each_ms:.2f} ms | {run['load']:.1f}"
        lines.append(f"| {found['keys']:,} | {found['latency_ms']:,} ms | {figures} |")
    return "\n".join(lines) + "\n"


def fill(bootstrap: str, keys: int) -> None:
    Admin({"bootstrap.servers": bootstrap}).create_topics({TOPIC: 1})
    with BulkProducer(bootstrap) as producer:
        for key in range(keys):
            producer.produce(kl.Output(TOPIC, key=b"%d" % key, value=b"", partition=0))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-http", description=__doc__)
    add = partial(parser.add_argument, metavar="N", type=int)
    add("--keys", default=10_000, help="keys and records (10,000)")
    add("--at-once", help="requests at once, on connections that are kept; as many as keys")
    add("--latency-ms", default=5_000, help="how long the service takes for each (5,000)")
    add("--repeat", default=3, help="runs; the median counts (3)")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    text = "also put the table into this page (docs/benchmarks.md)"
    parser.add_argument("--page", type=Path, metavar="FILE", help=text)
    options = parser.parse_args()
    options.at_once = options.at_once or options.keys
    return options


if __name__ == "__main__":
    sys.exit(main())
