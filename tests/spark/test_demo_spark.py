"""The demo on Spark lanes, as a newcomer runs it, and its report by Spark against the same report in plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from keylane.broker.process import BrokerProcess
from keylane.demo.data import read_flights, read_weather
from keylane.demo.delays import delays_of, read_rows
from keylane.demo.rows import COLUMNS
from keylane.demo.spark_report import write_and_summarise
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

TIMEOUT_S = 300
"""Ten times what it takes on an idle machine of two cores."""


def test_the_demo_on_lanes_loses_repeats_and_reorders_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "keylane", "demo", "--records", "2000", "--lanes", "2", "--json"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    judged = ("records", "processed", "lost", "duplicated", "out_of_order", "altered", "foreign", "lag")
    assert [report[name] for name in judged] == [2_000, 2_000, 0, 0, 0, 0, 0, 0]
    assert report["mode"] == "2 Spark lanes on local[3]"
    assert report["peak_in_flight"] >= 100
    written = pyarrow.dataset.dataset(tmp_path / report["parquet"])
    assert written.schema.names == list(COLUMNS)
    assert written.count_rows() == 2_000
    assert not [left for left in (tmp_path / "tmp").iterdir() if left.name.startswith("keylane")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("demo-broker") / "data") as made:
        yield made


@pytest.fixture
def enriched(broker: BrokerProcess) -> str:
    """A topic of 600 enriched flights over 3 partitions, some of them twice."""
    topic = f"enriched-{uuid.uuid4().hex[:8]}"
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({topic: 3})
    weather = read_weather()
    with BulkProducer(broker.bootstrap) as producer:
        for flight in read_flights(600):
            value = json.loads(flight.value)
            value = {"flight": value, "weather": weather.get((value["origin"], value["time_hour"]))}
            source = f"flights-0@{flight.sequence}".encode()
            output = Output(
                topic,
                flight.key,
                json.dumps(value).encode(),
                headers=[("source", source)],
                partition=flight.sequence % 3,
            )
            for _ in range(2 if flight.sequence % 50 == 0 else 1):
                producer.produce(output)
    return topic


def test_spark_and_python_agree_on_the_delays(
    spark: SparkSession, broker: BrokerProcess, enriched: str, tmp_path: Path
) -> None:
    rows = read_rows(broker.bootstrap, enriched)
    assert len(rows) == 600
    expected = delays_of(rows)
    found = write_and_summarise(spark, broker.bootstrap, enriched, 3, tmp_path / "flights.parquet")
    assert len(found) > 20
    assert [(one.carrier, one.weather, one.flights, one.departed) for one in found] == [
        (one.carrier, one.weather, one.flights, one.departed) for one in expected
    ]
    assert [one.mean_delay_min for one in found] == [pytest.approx(one.mean_delay_min) for one in expected]
    assert spark.read.parquet(str(tmp_path / "flights.parquet")).count() == 600
