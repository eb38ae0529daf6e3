"""The three walks, each through what users run: nothing here names a file of the engine, the broker or the row map.

Each returns files as `entered` gives them, once for every time it was done.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from peers import free_ports

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.cli import main
from walk.tracer import Tracer, entered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from walk.tracer import Line

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROOT = Path(kl.__file__).parent
TIMES = 3
IDLE_S = 4.0
"""The longest timer of a consumer that waits is its heartbeat, every 3 s."""
SETTLE_S = 2.0
"""What was done to warm up has then ended, also on a busy machine, and is not taken for what runs idle."""
AFTER_S = 0.2
"""What comes after an answer belongs to it."""
WITHIN_S = 30.0
MANY = 100_000
"""More rows than are given back at a time."""
LOOK_S = 0.01
TOPIC = "walk"

Files = list[str]


def record() -> list[Files]:
    """From the poll that brings a record in, through a thread that runs its handler, until its commit is acknowledged.

    The broker is a process of its own: its part is the walk of a commit. The producer is not traced.
    """
    tracer = Tracer(ROOT)
    with tempfile.TemporaryDirectory(prefix="keylane-walk-") as folder, BrokerProcess(Path(folder, "data")) as broker:
        _make_topic(broker.bootstrap)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 5})  # not that the broker ends first
        pipeline = kl.Pipeline(
            kafka={"bootstrap.servers": broker.bootstrap, "group.id": "walk"},
            topics=[TOPIC],
            handler=_handle,
        )
        tracer.install()
        consumer = kl.ParallelConsumer(pipeline)
        running = threading.Thread(target=consumer.run)
        running.start()
        try:

            def send_and_wait(offset: int) -> None:
                producer.produce(TOPIC, b"value", key=b"key")
                producer.flush(WITHIN_S)
                _until(lambda: _committed(consumer) == offset + 1, "the record's commit")
                time.sleep(AFTER_S)

            def look_for(seconds: float) -> None:
                end = time.monotonic() + seconds
                _until(lambda: _committed(consumer) == 1 and time.monotonic() >= end, "the idle while")

            _until(lambda: bool(consumer.snapshot().partitions), "the assignment")
            send_and_wait(0)
            look_for(SETTLE_S)
            tracer.start()
            look_for(IDLE_S)  # as it is looked for while the record is on its way
            idle = tracer.stop()
            found = []
            for offset in range(1, 1 + TIMES):
                tracer.start()
                send_and_wait(offset)
                found.append(entered(idle, tracer.stop()))
            return found
        finally:
            tracer.remove()
            consumer.close()
            running.join()


def _handle(record: kl.Record) -> None:
    assert record.value == b"value"


def _committed(consumer: kl.ParallelConsumer) -> int | None:
    return next((one.committed for one in consumer.snapshot().partitions), None)


def commit() -> list[Files]:
    """A group member's OffsetCommit, from the bytes that arrive at the broker until its answer, which waits for the
    disk. It has metadata, as keylane's have while a record is overtaken: the broker decodes it as a whole.

    `keylane broker` runs in this thread, which has to be the main one; the member is librdkafka's, in a thread that is
    not traced.
    """
    tracer = Tracer(ROOT)
    port = free_ports(1)[0]
    found: list[Files] = []
    ended = threading.Event()

    def drive() -> None:
        try:
            found.extend(_commits(f"127.0.0.1:{port}", tracer))
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)  # the broker's, to stop

    driver = threading.Thread(target=drive)
    driver.start()
    with tempfile.TemporaryDirectory(prefix="keylane-walk-") as folder, contextlib.redirect_stdout(io.StringIO()):
        tracer.install()
        tracer.trace_me()
        try:
            code = main(["broker", "--data-dir", f"{folder}/data", "--port", str(port)])
        finally:
            ended.set()
            tracer.remove()
            driver.join()
    assert code == 0, f"the broker ended with {code}"
    return found


def _commits(servers: str, tracer: Tracer) -> Iterator[Files]:
    _until(partial(_listens, servers), "the broker")
    _make_topic(servers)
    member = Consumer({"bootstrap.servers": servers, "group.id": "walk"})
    member.subscribe([TOPIC])
    _until(lambda: member.poll(0.1) is None and bool(member.assignment()), "the member's assignment")

    def commit(offset: int) -> None:
        member.commit(offsets=[TopicPartition(TOPIC, 0, offset, str(offset))], asynchronous=False)
        time.sleep(AFTER_S)

    commit(0)
    time.sleep(SETTLE_S)
    tracer.start()
    time.sleep(IDLE_S)
    idle = tracer.stop()
    for offset in range(1, 1 + TIMES):
        tracer.start()
        commit(offset)
        yield entered(idle, tracer.stop())
    member.close()


def row() -> list[Files]:
    """From the Arrow batch with one row, inside a Spark task, to the Arrow batch with what the function made of it.

    Results are given back many at a time, and when the next rows come: the row is the last of as many, and others
    follow it until it is given back.
    """
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("number", LongType())])
    frame = _Frame(schema)
    kl.spark.parallel_map(_Double(), returns=schema)(frame)  # type: ignore[arg-type] # as much of a DataFrame as it asks
    task = frame.task
    assert task is not None, "parallel_map gave Spark no function"
    spark = kl.spark.session("local[1]", **{"spark.ui.enabled": "false"})
    try:
        found: list[list[Files]] = spark.sparkContext.parallelize([task], 1).map(_rows).collect()
        return found[0]
    finally:
        spark.stop()


class _Double:
    """The user's function. It notes its calls in the one worker process that there is, where it came by value and this
    module by name."""

    calls: ClassVar[list[None]] = []

    def __call__(self, row: Any) -> tuple[int]:
        from walk import walks

        walks._Double.calls.append(None)  # noqa: SLF001 - its own
        return (row.number * 2,)

    @classmethod
    def has_run(cls, times: int) -> bool:
        return len(cls.calls) == times


class _Frame:
    """A DataFrame of which only the schema is known; keeps the function that Spark would call in each task."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.columns = schema.names
        self.dtypes = [(one.name, one.dataType.simpleString()) for one in schema]
        self.task: Task | None = None
        self.isStreaming = False
        self.sparkSession = None
        """Tasks tell no driver what they have done, as through Spark Connect."""

    def mapInArrow(self, task: Task, schema: Any) -> None:  # noqa: N802, ARG002 - Spark's
        self.task = task


def _rows(task: Task) -> list[Files]:
    """In Spark's Python worker."""
    tracer = Tracer(ROOT)
    tracer.install()
    tracer.trace_me()
    try:
        with contextlib.closing(task(_batch() for _ in range(MANY))) as outputs:  # type: ignore[type-var] # generators
            at_once = next(outputs).num_rows  # this warms up, too
        return _last_rows(task, tracer, at_once)
    finally:
        tracer.remove()


def _last_rows(task: Task, tracer: Tracer, at_once: int) -> list[Files]:
    idle: list[Line] = []
    found: list[Files] = []

    def batches() -> Iterator[pa.RecordBatch]:
        fed = 0
        _Double.calls.clear()
        for number in range(TIMES):
            while (fed + 1) % at_once:
                yield _batch()
                fed += 1
            _until(partial(_Double.has_run, fed), "the other rows")
            time.sleep(SETTLE_S)
            if not number:
                tracer.start()
                time.sleep(IDLE_S)
                idle.extend(tracer.stop())
            tracer.start()
            while len(found) == number:
                assert fed < (number + 2) * at_once, "the row was not given back"
                yield _batch()
                fed += 1
                time.sleep(LOOK_S)

    for output in task(batches()):
        assert output.num_rows == at_once
        time.sleep(AFTER_S)
        found.append(entered(idle, tracer.stop()))
        if len(found) == TIMES:
            break
    return found


def _batch() -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"number": pa.array([1], pa.int64())})


def _make_topic(servers: str) -> None:
    client = AdminClient({"bootstrap.servers": servers})  # has to live as long as its request
    (made,) = client.create_topics([NewTopic(TOPIC, 1)]).values()
    made.result(WITHIN_S)


def _listens(servers: str) -> bool:
    host, _, port = servers.partition(":")
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, int(port))):
        return True
    return False


def _until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {WITHIN_S:.0f} s")
        time.sleep(LOOK_S)
