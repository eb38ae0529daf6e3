"""Each order enriched by an HTTP service, hundreds at once, into a Delta table and Parquet files; no batch twice."""

from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import keylane as kl

servers, service, place = "127.0.0.1:9092", "http://127.0.0.1:8080", Path("enriched").absolute()
table = str(place / "delta")
carry = kl.spark.CarryOver(str(place / "carried"))


@asynccontextmanager
async def http():  # made in each task: clients cannot be pickled
    async with aiohttp.ClientSession() as session:
        yield session


async def enrich(row, context):
    async with context.resource.get(f"{service}/{row.key.decode()}") as answer:
        answer.raise_for_status()  # a failed call leaves the batch, and comes again in a later one
        return (row.key.decode(), row.value.decode(), await answer.text())


def write(frame, batch):
    last = DeltaTable(table).transaction_version("orders") if DeltaTable.is_deltatable(table) else None
    if last is None or last < batch:  # else it is a replay, and the table has its rows
        once = CommitProperties(app_transactions=[Transaction("orders", batch)])
        write_deltalake(table, frame.toArrow(), mode="append", commit_properties=once)
    frame.write.mode("overwrite").parquet(f"{place}/parquet/batch={batch}")  # a replay has the same rows


spark = kl.spark.session("local[4]")
orders = spark.readStream.format("keylane").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
orders = orders.option("kafka.group.id", "enriching").option("startingOffsets", "committed")
step = kl.spark.parallel_map(
    enrich, "customer string, item string, answer string", ordering="key", key="key", max_concurrency=200,
    handler_timeout_ms=10_000, resource=http, carry_over=carry,
)  # fmt: skip
enriched = orders.option("carryOver", carry.folder).load().transform(step)
query = (
    enriched.writeStream.foreachBatch(kl.spark.acknowledged(write, carry_over=carry))
    .option("checkpointLocation", str(place / "checkpoint"))
    .trigger(availableNow=True)  # all that is there now; without it the query runs on
    .start()
)
query.awaitTermination()
print(DeltaTable(table).to_pyarrow_dataset().count_rows(), "rows in Delta")
print(spark.read.parquet(str(place / "parquet")).count(), "rows in Parquet")
