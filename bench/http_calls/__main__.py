"""`make bench-http`: one request a record, a record a key, all in flight at once, beside aiohttp alone.

How long each takes, how many were in flight at once, and what a request costs the client and the service.
"""

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

import peers
from pages import put_into_page
from peers.jvm import LineProcess

import keylane as kl
from http_calls import plain
from keylane import http
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.parallel_consumer import ParallelConsumer

TOPIC = "devices"
SPARE_FILES = 500
"""Open files that a process needs beside its connections."""
CLIENTS = ("keylane", "aiohttp alone")


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
            url = f"http://127.0.0.1:{next(service.lines())}"
            turns = [client for _ in range(options.repeat) for client in CLIENTS]
            runs = [one(client, broker.bootstrap, url, service, options) for client in turns]
    found = {
        "keys": options.keys,
        "latency_ms": options.latency_ms,
        "seconds": {
            client: statistics.median(run["seconds"] for run in runs if run["client"] == client) for client in CLIENTS
        },
        "most_at_once": min(run["most_at_once"] for run in runs),
        "runs": runs,
        "cpus": os.cpu_count(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "http.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.page is not None:
        put_into_page(options.page, "http", markdown(found))
    told = ", ".join(f"{client} {seconds:.1f} s" for client, seconds in found["seconds"].items())
    print(f"{found['keys']:,} requests, {found['most_at_once']:,} at once: {told}")
    return 0


def one(client: str, bootstrap: str, url: str, service: LineProcess, options: argparse.Namespace) -> dict[str, Any]:
    """One run: from the first request to the last answer."""
    load, client_s, service_s = os.getloadavg()[0], time.process_time(), peers.processor_s(service.pid)
    if client == "keylane":
        seconds = with_keylane(bootstrap, url, options)
    else:
        seconds = plain.run(url, options.keys, options.at_once)
    result = {
        "client": client,
        "seconds": round(seconds, 3),
        "most_at_once": int(service.ask("most")),
        "client_ms": round((time.process_time() - client_s) / options.keys * 1000, 3),
        "service_ms": round((peers.processor_s(service.pid) - service_s) / options.keys * 1000, 3),
        "load": load,
    }
    print(result, flush=True)
    return result


def with_keylane(bootstrap: str, url: str, options: argparse.Namespace) -> float:
    """In a group of its own; the seconds."""
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
    with ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()
    assert consumer.snapshot().processed == options.keys == len(ended)
    return ended[-1] - begun[0]


def markdown(found: dict[str, Any]) -> str:
    """The table for the docs."""
    lines = [
        "| client | keys | service | at once | seconds | processor time a request: client | service | load |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in sorted(found["runs"], key=lambda run: CLIENTS.index(run["client"])):
        costs = f"{run['client_ms']:.2f} ms | {run['service_ms']:.2f} ms"
        figures = f"{run['most_at_once']:,} | {run['seconds']:.1f} s | {costs} | {run['load']:.1f}"
        lines.append(f"| {run['client']} | {found['keys']:,} | {found['latency_ms']:,} ms | {figures} |")
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
