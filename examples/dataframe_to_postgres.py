"""Each order exactly once in PostgreSQL: its identity goes into the table with it, so that a replay finds it there."""

from pathlib import Path

import psycopg

import keylane as kl

servers, database = "127.0.0.1:9092", "postgresql://postgres@127.0.0.1:5432/postgres"
INSERT = "INSERT INTO scored VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"


def score(row):
    return (row.topic, row.partition, row.offset, row.key.decode(), len(row.value))


def insert(rows):  # in the task; one transaction, which Spark may run again
    with psycopg.connect(database) as connection:
        connection.cursor().executemany(INSERT, [tuple(row) for row in rows])


def write(frame, batch):
    frame.foreachPartition(insert)


with psycopg.connect(database) as connection:
    connection.execute(
        """CREATE TABLE IF NOT EXISTS scored (topic text, part int, at bigint, customer text, score int,
           PRIMARY KEY (topic, part, at))"""
    )
spark = kl.spark.session("local[4]")
orders = spark.readStream.format("keylane").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
orders = orders.option("kafka.group.id", "into-postgres").option("startingOffsets", "committed").load()
columns = "topic string, partition int, offset bigint, customer string, score int"
query = (
    orders.transform(kl.spark.parallel_map(score, columns, ordering="key", key="key"))
    .writeStream.foreachBatch(kl.spark.acknowledged(write))
    .option("checkpointLocation", str(Path("into-postgres").absolute()))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
with psycopg.connect(database) as connection:
    print(*connection.execute("SELECT count(*), count(DISTINCT customer) FROM scored").fetchone(), "rows and customers")
