"""`make compat`: run the suites, each on a broker of its own and beside that on an Apache Kafka of its own, and merge
what they found into a JSON file and the page. KEYLANE_KAFKA is the release of Apache Kafka, of its clients and its
tools (4.3.1); each has a file and a table of its own.

The exit code is 1 when a suite passes less than 95 % of what applies to it on the embedded broker.
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
from peers import ApacheKafka, jvm

from compat import clients, groups, java, mirror, outside, report, streams
from compat.members import CLIENTS, lacking
from compat.results import Suite, nothing_missing
from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

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
    Suite("all of Java's Admin", peers.version("kafka", "kafka-tools"), peers.missing, java.admin),
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
    *(
        Suite(f"groups of {one.name}", one.version, one.missing, groups.suite_of(one), groups.SETTINGS)
        for one in CLIENTS
    ),
    Suite(
        "franz-go's own tests", outside.FRANZ_GO_VERSION, lambda: lacking("go"), outside.franz_go_tests, groups.SETTINGS
    ),
    Suite("Kafka Streams", peers.version("kafka_streams", "kafka-streams"), peers.missing, streams.streams),
    Suite("MirrorMaker 2", peers.version("mirror", "connect-mirror"), peers.missing, mirror.mirror),
)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers end with us
    options = arguments()
    found = report.read(options.json)
    is_good = True
    for suite in SUITES:
        if not any(fnmatch.fnmatch(suite.name, pattern) for pattern in options.suites):
            continue
        what = suite.missing()
        if what:
            found[suite.name] = {"version": suite.version, "skipped": what}
            print(f"{suite.name}: not run: {what}", flush=True)
            continue
        for broker in options.brokers:
            if broker == report.APACHE and (what := peers.missing()):
                print(f"{suite.name}: not run on Apache Kafka: {what}", flush=True)
                continue
            outcomes = run(suite, broker)
            report.add(found, suite.name, suite.version, broker, outcomes)
            report.write(options.json, found)
            count = report.counts(outcomes)
            print(f"{suite.name} on {broker}: {dict(count)}", flush=True)
            enough = count["failed"] <= (1 - LEAST_SHARE) * (count["passed"] + count["failed"])
            is_good = is_good and (enough or broker == report.APACHE)
    report.write(options.json, found)
    text = report.markdown(found)
    print(text)
    if options.page:
        put_into_page(options.page, f"compat beside {peers.kafka_release()}", text)
    return 0 if is_good else 1


def run(suite: Suite, broker: str) -> list[Outcome]:
    with (
        tempfile.TemporaryDirectory(prefix="keylane-compat-", ignore_cleanup_errors=True) as folder,
        started(broker, Path(folder, "data"), suite.settings) as running,
    ):
        return suite.run(running.bootstrap, folder)


def started(broker: str, folder: Path, settings: dict[str, str]) -> AbstractContextManager[BrokerProcess | ApacheKafka]:
    if broker == report.APACHE:
        return ApacheKafka({name: value for name, value in settings.items() if name != "node.id"})
    return BrokerProcess(folder, settings=settings)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    add = parser.add_argument
    add("--suites", nargs="*", default=["*"], metavar="NAME", help="suites by name or pattern: 'kafka-python' (all)")
    add(
        "--brokers",
        nargs="*",
        default=list(report.BROKERS),
        choices=report.BROKERS,
        help="which brokers they run on (all)",
    )
    add(
        "--json",
        type=Path,
        default=Path(f"artifacts/compat-{peers.kafka_release()}.json"),
        help="where results are merged into",
    )
    add("--page", type=Path, metavar="FILE", help="also put the tables into this page (docs/compatibility.md)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
