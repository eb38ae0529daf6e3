"""Orders from a program to a table, each once: a producer, Spark, a pipeline from topic to topic, one into a database.

    keylane broker --data-dir data --port 9092 &
    python examples/exactly_once_chain.py --records 2000

Each stage is a process, and one that dies is started again: kill any of them, or the broker, as often as you like. The
count by SQL at the end is the same. With more records it goes on where it was; `exactly_once_chain.py STAGE` runs one
stage alone.
"""

import argparse
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import keylane as kl

IN_A_TRANSACTION = 100
INTERRUPTED = 130  # the exit code, as shells have it
TOPICS = {"orders": 3, "orders.sent": 1, "orders.scored": 3, "orders.priced": 3}


def produce(args):
    """Stage 1. How far it has come is a record of the same transaction, and so it knows after a crash."""
    producer = Producer({"bootstrap.servers": args.bootstrap, "transactional.id": "orders"})
    producer.init_transactions()  # ends what an earlier run has left open, and shuts that run out
    stop = threading.Event()
    on_signals(stop.set)
    for first in range(orders_sent(args), args.records, IN_A_TRANSACTION):
        if stop.is_set():
            return
        end = min(first + IN_A_TRANSACTION, args.records)
        producer.begin_transaction()
        for number in range(first, end):
            producer.produce("orders", key=f"customer-{number % 50}", value=str(number))
        producer.produce("orders.sent", key="orders", value=str(end))
        producer.commit_transaction()


def orders_sent(args):
    """The last committed record of a compacted topic."""
    reader = Consumer({"bootstrap.servers": args.bootstrap, "group.id": "none", "enable.partition.eof": True})
    reader.assign([TopicPartition("orders.sent", 0, OFFSET_BEGINNING)])
    sent = 0
    while (record := reader.poll(30)) is not None:
        if record.error() is None:
            sent = int(record.value())
        elif record.error().name() == "_PARTITION_EOF":
            return sent
        else:
            raise KafkaException(record.error())
    raise TimeoutError("no answer about orders.sent within 30 s")


def score(args):
    """Stage 2, in Spark. What the function does in the database and the row that it returns are kept together."""
    insert = insert_into("scored", args)

    def score_order(row, context):
        context.transaction.execute(insert, (int(row.value),))
        return {"key": row.key, "value": row.value}

    spark = kl.spark.session("local[2,4]")  # a task whose worker dies is tried up to 4 times
    kafka = {"kafka.bootstrap.servers": args.bootstrap}
    read = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
    orders = spark.readStream.format("keylane").options(**kafka, **read)
    orders = orders.option("kafka.isolation.level", "read_committed").load()  # else it reads what was aborted, too
    once = kl.ExactlyOnce(args.database)
    scored = orders.transform(kl.spark.parallel_map(score_order, "key binary, value binary", delivery=once))
    written = {"topic": "orders.scored", "delivery": "exactly_once", "sinkName": "scored"}
    sink = scored.writeStream.format("keylane").options(**kafka, **written)
    query = sink.option("checkpointLocation", str(Path(args.checkpoint).absolute())).start()
    stop = threading.Event()
    on_signals(stop.set)
    while not (stop.is_set() or query.awaitTermination(1)):  # which raises what the query fails with
        pass
    query.stop()  # in the middle of a batch, which the next start runs again
    spark.stop()
    kl.spark.end_transactions("scored", {"bootstrap.servers": args.bootstrap})  # else readers wait for that start


def price(args):
    """Stage 3. Outputs and offsets are committed in the same transaction."""

    async def price_order(record):
        return kl.Output("orders.priced", key=record.key, value=record.value)

    pricing = kl.Pipeline(
        kafka=member_of("pricing", args),
        topics=["orders.scored"],
        outputs=["orders.priced"],
        handler=price_order,
        delivery="transactional",
        offset_reset="earliest",
    )
    consumer = kl.ParallelConsumer(pricing)
    on_signals(consumer.stop)
    consumer.run()


def book(args):
    """Stage 4. The booking and what its record is known by are in one transaction of the database."""
    insert = insert_into("booked", args)

    def book_order(record, context):
        context.transaction.execute(insert, (int(record.value),))

    booking = kl.Pipeline(
        kafka=member_of("booking", args),
        topics=["orders.priced"],
        handler=book_order,
        delivery=kl.ExactlyOnce(args.database),
        offset_reset="earliest",
    )
    consumer = kl.ParallelConsumer(booking)
    on_signals(consumer.stop)
    consumer.run()


def member_of(group, args):
    """With an instance id, a process that is started again has the place of the one that died at once."""
    return {"bootstrap.servers": args.bootstrap, "group.id": group, "group.instance.id": f"{group}-1"}


def on_signals(stop):
    """For a tidy end alone, without open transactions that readers wait for: SIGKILL is as good."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop())


def insert_into(table, args):
    return f"INSERT INTO {table} VALUES ({'%s' if '://' in args.database else '?'})"


@contextmanager
def database(args):
    if "://" in args.database:
        import psycopg

        connection = psycopg.connect(args.database)
    else:
        connection = sqlite3.connect(args.database, timeout=60)
    with closing(connection), connection:
        yield connection


def prepare(args):
    admin = AdminClient({"bootstrap.servers": args.bootstrap})
    there = admin.list_topics(timeout=30).topics
    configs = {"orders.sent": {"cleanup.policy": "compact"}}
    new = [NewTopic(name, n, config=configs.get(name, {})) for name, n in TOPICS.items() if name not in there]
    for created in admin.create_topics(new).values() if new else ():
        created.result(30)
    with database(args) as connection:
        for table in ("scored", "booked"):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (number integer)")


def count(table, args):
    """Rows, different orders, and the sum of their numbers."""
    with database(args) as connection:
        found = connection.execute(f"SELECT count(*), count(DISTINCT number), coalesce(sum(number), 0) FROM {table}")
        return tuple(map(int, found.fetchone()))


def run_all(args):
    """Until as many are booked as there are records, or SIGTERM or Ctrl-C come."""
    prepare(args)
    running = {}
    stop = threading.Event()
    on_signals(stop.set)
    try:
        while not stop.is_set() and count("booked", args)[0] < args.records:
            for stage in STAGES:
                if stage not in running or running[stage].poll():  # `produce` ends with 0, and stays ended
                    running[stage] = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], stage])
                    print(f"{stage} is process {running[stage].pid}", flush=True)
            stop.wait(0.5)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    if stop.is_set():
        booked = count("booked", args)[0]
        print(f"stopped: {booked} of {args.records} orders are booked; started again, it goes on from there")
        sys.exit(INTERRUPTED)
    each_once = (args.records, args.records, sum(range(args.records)))
    for table in ("scored", "booked"):
        print(table, *count(table, args), "each once" if count(table, args) == each_once else f"is not {each_once}")


STAGES = {"produce": produce, "score": score, "price": price, "book": book}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=STAGES, help="run this one alone")
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--database", default="orders.db", help="a SQLite file, or postgresql://…")
    parser.add_argument("--checkpoint", default="orders.checkpoint", help="a folder of the Spark query's own")
    arguments = parser.parse_args()
    STAGES.get(arguments.stage, run_all)(arguments)
