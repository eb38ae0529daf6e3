"""`make bench-dataframes`: source, sinks, `parallel_map`, and a slow and a failing record, beside Spark's connector.

Parts can be run alone (`--parts rate latency sinks calls rest slow`); each adds its figures to
DIR/bench-dataframes.json. Without Maven the connector is left out, by name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
from lanes import picture
from pages import put_into_page

import keylane as kl
from dataframes import calls, report, sinks, slow, sources
from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = ("rate", "latency", "sinks", "calls", "rest", "slow")
TROUBLE = "seconds of the stream; one record hangs from 6 s to 16 s, one is refused from 18 s to 28 s"


def measure(part: str, spark: SparkSession, servers: str, options: argparse.Namespace, folder: Path) -> Any:
    formats = ("keylane", "kafka") if options.connector else ("keylane",)
    if part == "rate":
        small = sources.rates(spark, servers, formats, options.repeat, options.records)
        fewer, large = options.records // 5, sources.LARGE_VALUE_BYTES
        return small + sources.rates(spark, servers, formats, options.repeat, fewer, large)
    if part == "latency":
        return sources.latencies(spark, servers, formats)
    if part == "sinks":
        return sinks.rates(spark, servers, folder / "sinks", options.repeat, connector=options.connector)
    if part == "calls":
        return calls.run(spark, options.repeat)
    if part == "rest":
        return slow.at_rest(spark, servers, folder / "rest", options.repeat, connector=options.connector)
    return slow.run(spark, servers, folder / "slow", connector=options.connector)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-dataframes", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--repeat", type=int, default=5, help="runs; the median counts (5)")
    parser.add_argument("--records", type=int, default=sources.RECORDS, help="in the source's topic (1,000,000)")
    parser.add_argument("--broker", choices=("keylane", "kafka"), default="keylane", help="keylane, or Apache Kafka")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also put the tables into this page")
    options = parser.parse_args()
    options.connector = peers.missing() is None
    if not options.connector:
        print(f"Spark's own connector is left out: {peers.missing()}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "bench-dataframes.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-")))
        broker: Any = peers.ApacheKafka() if options.broker == "kafka" else BrokerProcess(folder / "data")
        servers = stack.enter_context(broker).bootstrap
        spark = _session(options, folder)
        stack.callback(spark.stop)
        for part in options.parts:
            found[part] = measure(part, spark, servers, options, folder)
            for one in found[part]:
                print({name: value for name, value in one.items() if name not in ("runs", "seconds")}, flush=True)
            file.write_text(json.dumps(found, indent=1) + "\n")
    if "slow" in found:
        picture.draw(options.out / "bench-dataframes.png", found["slow"], TROUBLE)
    if options.page is not None:
        put_into_page(options.page, "dataframes", report.markdown(found))
    print(f"wrote {file}")
    return 0


def _session(options: argparse.Namespace, folder: Path) -> SparkSession:
    settings = {"spark.ui.enabled": "false", "spark.sql.streaming.checkpointLocation": f"{folder}/state"}
    if options.connector:
        settings["spark.jars"] = ",".join(map(str, peers.jars("spark_kafka").glob("*.jar")))
    return kl.spark.session("local[2]", "keylane bench", **settings)


if __name__ == "__main__":
    sys.exit(main())
