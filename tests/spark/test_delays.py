"""The demo's report by Spark against the same report in plain Python."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest

from keylane.demo.data import read_flights, read_weather
from keylane.demo.delays import delays_of, read_rows
from keylane.demo.spark_report import write_and_summarise
from keylane.kafka.admin import Admin
from keylane.records import Output
from kit.filling import filling

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess


@pytest.fixture
def enriched(broker: BrokerProcess) -> str:
    """A topic of 600 enriched flights over 3 partitions, some of them twice."""
    topic = f"enriched-{uuid.uuid4().hex[:8]}"
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({topic: 3})
    weather = read_weather()
    with filling(broker.bootstrap) as producer:
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


@pytest.mark.full
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
