"""Logins by token for DataFrames: a function that `kafka.oauth_cb` names, on an Apache Kafka that lets no token outlive
its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from keylane.spark import acknowledged
from kit.either_broker import TOKENS, either_broker
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

TOPIC, GROUP = "flights", "weather"
LIFE_S = 6
LISTENER = TOKENS | {"connections.max.reauth.ms": "60000"}
"""The end of a token comes before: from then on its connection is closed."""
FUNCTION = """
import base64, json, os, time

def token(config):
    ends = time.time() + {life}
    claims = ({{"alg": "none"}}, {{"sub": "admin", "iat": int(time.time()), "exp": ends}})
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in claims]
    with open({calls!r}, "a") as calls:
        calls.write(f"{{os.getpid()}}\\n")
    return ".".join([*parts, ""]), ends
"""


@pytest.fixture(scope="module")
def login(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Options of a source or sink."""
    with either_broker("apache", tmp_path_factory.mktemp("tokens"), LISTENER) as broker:
        yield {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.oauth_cb": "tokens_of_flights:token",
        }


@pytest.fixture(scope="module")
def calls(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, sent to the driver and the executors; the file has a line for each token, of the process."""
    folder = tmp_path_factory.mktemp("module")
    module, calls = folder / "tokens_of_flights.py", folder / "calls"
    module.write_text(FUNCTION.format(life=LIFE_S, calls=str(calls)))
    spark.sparkContext.addPyFile(str(module))
    return calls


def test_source_and_sink_log_in_by_a_function_and_outlive_its_tokens(
    spark: SparkSession, login: dict[str, str], calls: Path, tmp_path: Path
) -> None:
    def write(first: int, last: int) -> None:
        frame = spark.range(first, last).selectExpr("CAST(id AS STRING) AS value")
        frame.write.format("keylane").mode("append").options(topic=TOPIC, **login).option(
            "kafka.allow.auto.create.topics", "true"
        ).save()

    write(0, 50)
    read: list[int] = []

    def keep(batch: Any, _: int) -> None:
        read.extend(int(row.value) for row in batch.collect())

    query = (
        spark.readStream.format("keylane")
        .options(subscribe=TOPIC, startingOffsets="committed", **login)
        .option("kafka.group.id", GROUP)
        .load()
        .writeStream.foreachBatch(acknowledged(keep))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        until(lambda: len(read) == 50, "the first records are read")

        def most_of_a_process() -> int:
            pids = calls.read_text().split()
            return max(pids.count(pid) for pid in set(pids))

        until(lambda: most_of_a_process() >= 3, "two tokens of a process are at their end")
        write(50, 100)
        until(lambda: len(read) == 100, "what came later is read with a third one")
        assert sorted(read) == list(range(100))
        assert query.exception() is None
    finally:
        query.stop()
    frame = spark.read.format("keylane").options(subscribe=TOPIC, **login).load()
    assert frame.count() == 100


def test_a_sink_is_exactly_once_under_tokens_that_end(
    spark: SparkSession, login: dict[str, str], calls: Path, tmp_path: Path
) -> None:
    source, target = "flights.in", "flights.out"

    def write(first: int, last: int) -> None:
        frame = spark.range(first, last).selectExpr("CAST(id AS STRING) AS value")
        frame.write.format("keylane").mode("append").options(topic=source, **login).option(
            "kafka.allow.auto.create.topics", "true"
        ).save()

    def committed() -> list[int]:
        frame = spark.read.format("keylane").options(subscribe=target, **login)
        return [int(row.value) for row in frame.option("kafka.isolation.level", "read_committed").load().collect()]

    write(0, 50)
    query = (
        spark.readStream.format("keylane")
        .options(subscribe=source, startingOffsets="earliest", **login)
        .load()
        .select("value")
        .writeStream.format("keylane")
        .options(topic=target, delivery="exactly_once", sinkName="flights", **login)
        .option("kafka.allow.auto.create.topics", "true")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        until(lambda: query.lastProgress is not None, "the first are written")
        first_token = time.monotonic()
        until(lambda: time.monotonic() > first_token + LIFE_S, "the first tokens are at their end")
        write(50, 100)
        until(lambda: sorted(committed()) == list(range(100)), "what came later is written with others")
        assert query.exception() is None
    finally:
        query.stop()
