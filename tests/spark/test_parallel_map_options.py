"""Options of `parallel_map` on real tasks, several at once; `test_contract_rows.py` has each of them alone."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.spark import parallel_map
from kit.filling import filling
from kit.http_service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess

RECORDS = 80
KEYS = 16
PARTITIONS = 4
CALL_S = 0.05
"""The next record is let go after a fifth of it, and its key is not one of the three of a first batch."""


class Arrival:
    """When it was made: in a task, when the task's function arrived there, which is before its first row can start. A
    call may begin long after it was let go."""

    def __init__(self) -> None:
        self.at = time.monotonic_ns()

    def __reduce__(self) -> tuple[type[Arrival], tuple[()]]:
        return Arrival, ()


@contextmanager
def running() -> Iterator[list[int]]:
    yield [0]


def test_batches_of_keys_at_a_rate_with_dead_letters_and_counts_in_the_driver(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"numbers": PARTITIONS, "numbers.dead": 1})
    with filling(broker.bootstrap) as producer:
        for number in range(RECORDS):
            key, value = b"%d" % (number % KEYS), b"%d" % number
            partition = number % KEYS % PARTITIONS
            producer.produce(kl.Output("numbers", key, value, [("number", value)], partition=partition))

    arrival = Arrival()

    async def tell(rows: list[Any], context: kl.Context) -> list[Any]:
        context.resource[0] += 1
        at_once, began = context.resource[0], time.monotonic_ns()
        await asyncio.sleep(CALL_S)
        context.resource[0] -= 1
        told = (at_once, len(rows), arrival.at, began, time.monotonic_ns())
        return [ValueError("no") if row.value == 13 else (row.value, row.key, row.partition, *told) for row in rows]

    step = parallel_map(
        tell,
        "number int, key string, part int, at_once int, size int, arrived bigint, began bigint, ended bigint",
        ordering="key",
        key="key",
        resource=running,
        max_concurrency=2,
        batch=kl.Batch(3),
        rates=kl.Rates(records_per_s=100, burst_ms=30),
        retries=kl.Retries(max_attempts=2, delay_ms=1),
        on_exhausted=kl.DeadLetter("numbers.dead"),
        kafka={"bootstrap.servers": broker.bootstrap},
        outcome=True,
        key_deserializer=lambda data, _: f"key {data.decode()}",
        value_deserializer=lambda data, _: int(data),
    )
    source = spark.read.format("keylane").options(subscribe="numbers", includeHeaders="true")
    found = source.option("kafka.bootstrap.servers", broker.bootstrap).load().transform(step).collect()

    well = sorted((one for one in found if one.error is None), key=lambda one: one.number)
    assert [one.number for one in well] == [number for number in range(RECORDS) if number != 13]
    assert [(one.number, one.error, one.attempts) for one in found if one.error] == [(None, "ValueError: no", 2)]
    assert {one.key for one in well} == {f"key {key}" for key in range(KEYS)}
    assert max(one.size for one in well) == 3
    assert max(one.at_once for one in well) == 2
    for remainder in range(KEYS):
        of_key = [(one.began, one.ended) for one in well if one.number % KEYS == remainder]
        batches = sorted(set(of_key))
        assert of_key == sorted(of_key), "in order"
        assert all(first[1] <= second[0] for first, second in pairwise(batches))
    for part in range(PARTITIONS):
        began = [(one.began - one.arrived) / 1e9 for one in well if one.part == part]
        assert max(began) >= (len(began) - 3) / 100, "a rate of the task, after a burst"

    (dead,) = [one for some in read_to_end(broker.bootstrap, "numbers.dead") for one in some]
    said = dict(dead.headers)
    assert (dead.key, dead.value, said["number"], said["keylane.attempts"]) == (b"13", b"13", b"13", b"2")
    done = step.snapshot()
    assert (done.processed, done.failed, done.retried, done.dead_lettered) == (RECORDS - 1, 2, 1, 1)
    assert done.handler_latency.count >= RECORDS / 3
    assert [(one.error, one.count) for one in done.failures] == [("ValueError", 2)]


def test_http_calls_under_the_automatic_limit_and_what_is_not_due(spark: SparkSession) -> None:
    """And the counts of two actions add up."""
    with Service() as service:
        service.answer = lambda request, _: web.Response(status=404 if request.path == "/7" else 200, text="here")
        address, due_ms = service.url, (time.time() + 1) * 1000
        calls = kl.http.Calls(
            request=lambda row: kl.http.Request("GET", f"{address}/{row.id}"),
            on_response=lambda row, response: (row.id, response.text, time.time() * 1000 >= due_ms),
        )

        def later(row: Any) -> float | None:
            return due_ms if row.id == 3 else None

        step = parallel_map(
            calls,
            "id bigint, text string, is_due boolean",
            resource=calls.pool,
            max_concurrency="auto",
            not_before=later,
            on_exhausted=kl.Skip(),
        )
        frame = spark.range(20, numPartitions=2).transform(step)
        for _ in range(2):
            found = frame.collect()
            assert sorted((one.id, one.text) for one in found) == [(n, "here") for n in range(20) if n != 7]
            assert [one.is_due for one in found if one.id == 3] == [True]
        assert service.asked["/7"] == 2
        assert service.most <= 2 * 4, "four of each task to begin with"
    assert (step.snapshot().processed, step.snapshot().skipped, step.snapshot().failed) == (38, 2, 2)


def test_a_dead_letter_without_a_topic_fails_the_query(spark: SparkSession, broker: BrokerProcess) -> None:
    def refuse(row: Any) -> None:
        raise kl.Fatal("no")

    kafka = {"bootstrap.servers": broker.bootstrap, "topic.metadata.propagation.max.ms": 100}
    step = parallel_map(refuse, "n int", on_exhausted=kl.DeadLetter("no-such-topic"), kafka=kafka)
    frame = spark.range(1).selectExpr("CAST(id AS string) AS value").transform(step)
    with pytest.raises(Exception, match="keylane topics create no-such-topic"):
        frame.collect()
