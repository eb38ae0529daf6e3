"""Keeps the last state of each customer in a Delta table, thousands in one commit of it, without Spark."""

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

import keylane as kl

TABLE = str(Path("customers").absolute())  # or s3://…, with storage_options
SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("place", pa.int64())])


def merge(records: list[kl.Record]) -> None:
    last = {record.key: record for record in records}  # in order of the key: the last one stays
    rows = [
        {"id": key.decode(), "city": json.loads(one.value)["city"], "place": one.offset} for key, one in last.items()
    ]
    (
        DeltaTable(TABLE)
        .merge(pa.Table.from_pylist(rows, SCHEMA), "new.id = old.id", source_alias="new", target_alias="old")
        .when_matched_update_all("new.place > old.place")  # else it comes again
        .when_not_matched_insert_all()
        .execute()
    )


DeltaTable.create(TABLE, SCHEMA, mode="ignore")

customers = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "customers-delta"},
    topics=["customers"],  # keyed by customer
    handler=merge,
    batch=kl.Batch(size=10_000, min_size=5_000, linger_ms=5_000),  # each is a commit of the table, and new files
    max_concurrency=1,  # commits of a table exclude each other
    offset_reset="earliest",
)
