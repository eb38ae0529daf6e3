"""Upserts customers into PostgreSQL, hundreds in one round trip; a record that comes again changes nothing."""

import json

from psycopg_pool import ConnectionPool

import keylane as kl

ADDRESS = "postgresql://postgres@127.0.0.1:5432/postgres"
TABLE = "CREATE TABLE IF NOT EXISTS customers (id text PRIMARY KEY, city text NOT NULL, place bigint NOT NULL)"
UPSERT = """
    INSERT INTO customers AS old VALUES (%s, %s, %s)
    ON CONFLICT (id) DO UPDATE SET city = excluded.city, place = excluded.place WHERE old.place < excluded.place
"""


def pool():
    return ConnectionPool(ADDRESS, max_size=4, open=False)


def upsert(records: list[kl.Record], context: kl.Context) -> list[Exception | None]:
    results: list[Exception | None] = []
    rows = []
    for record in records:
        try:
            rows.append((record.key.decode(), json.loads(record.value)["city"], record.offset))
            results.append(None)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            results.append(kl.Fatal(type(error).__name__))  # this one alone becomes a dead letter
    with context.resource.connection() as connection:
        connection.cursor().executemany(UPSERT, rows)
    return results


with ConnectionPool(ADDRESS, max_size=1, min_size=1) as first, first.connection() as connection:
    connection.execute(TABLE)

customers = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "customers"},
    topics=["customers"],  # keyed by customer, so that a later offset is a later state
    handler=upsert,
    resource=pool,
    batch=kl.Batch(size=500, min_size=100, linger_ms=50),
    max_concurrency=4,
    on_exhausted=kl.DeadLetter("customers.dead"),
    offset_reset="earliest",
)
