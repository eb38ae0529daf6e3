"""`make compat`: run the suites, each on a broker of its own, and merge what they found into a JSON file and the page.

The exit code is 1 when a suite passes less than 95 % of what applies to it.
"""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import peers
from pages import put_into_page
from peers import jvm

from compat import clients, java, outside, report
from compat.results import Suite, nothing_missing
from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from compat.results import Outcome

LEAST_SHARE = 0.95

SUITES = (
    Suite("confluent-kafka", version("confluent-kafka"), nothing_missing, clients.suite_of(clients.Confluent)),
    Suite("kafka-python", version("kafka-python"), nothing_missing, clients.suite_of(clients.KafkaPython)),
    Suite("aiokafka", version("aiokafka"), nothing_missing, clients.suite_of(clients.Aiokafka)),
    Suite(
        "integration tests of kafka-python",
        outside.KAFKA_PYTHON_VERSION,
        nothing_missing,
        outside.kafka_python_tests,
        outside.KAFKA_PYTHON_SETTINGS,
    ),
    Suite("Apache Kafka's tools", peers.version("kafka", "kafka-tools"), peers.missing, java.tools),
    Suite(
        "JVM Parallel Consumer",
        peers.version("parallel_consumer", "parallel-consumer-core"),
        jvm.missing,
        java.parallel_consumer,
    ),
    Suite(
        "Spark's Kafka connector", peers.version("spark_kafka", "spark-sql-kafka-0-10_2.13"), peers.missing, java.spark
    ),
    Suite("kcat", outside.kcat_version(), outside.kcat_missing, outside.kcat),
    Suite(
        "librdkafka's test-runner",
        outside.LIBRDKAFKA_VERSION,
        outside.librdkafka_missing,
        outside.librdkafka_tests,
        {"num.partitions": "4"},
    ),
)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers end with us
    options = arguments()
    found = report.read(options.json)
    is_good = True
    for suite in SUITES:
        if not any(fnmatch.fnmatch(suite.name, pattern) for pattern in options.suites):
            continue
        lacking = suite.missing()
        if lacking:
            found[suite.name] = {"version": suite.version, "skipped": lacking}
            print(f"{suite.name}: not run: {lacking}", flush=True)
            continue
        outcomes = run(suite)
        report.add(found, suite.name, suite.version, outcomes)
        report.write(options.json, found)
        count = report.counts(outcomes)
        print(f"{suite.name}: {dict(count)}", flush=True)
        is_good = is_good and count["failed"] <= (1 - LEAST_SHARE) * (count["passed"] + count["failed"])
    report.write(options.json, found)
    text = report.markdown(found)
    print(text)
    if options.page:
        put_into_page(options.page, "compat", text)
    return 0 if is_good else 1


def run(suite: Suite) -> list[Outcome]:
    with (
        tempfile.TemporaryDirectory(prefix="keylane-compat-", ignore_cleanup_errors=True) as folder,
        BrokerProcess(Path(folder, "data"), settings=suite.settings) as broker,
    ):
        return suite.run(broker.bootstrap, folder)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    add = parser.add_argument
    add("--suites", nargs="*", default=["*"], metavar="NAME", help="suites by name or pattern: 'kafka-python' (all)")
    add("--json", type=Path, default=Path("artifacts/compat.json"), help="where results are merged into")
    add("--page", type=Path, metavar="FILE", help="also put the tables into this page (docs/compatibility.md)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
