"""A partition that back-pressure had paused goes on when it comes back in a rebalance."""

import asyncio
import threading
from collections import Counter
from pathlib import Path

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

RECORDS = 1_200
PARTITIONS = 4


def test_a_paused_partition_goes_on_after_a_rebalance(tmp_path: Path) -> None:
    runs: Counter[tuple[int, int]] = Counter()
    half_way = threading.Event()

    async def handler(record: kl.Record) -> None:
        await asyncio.sleep(0.02)
        runs[record.partition, record.offset] += 1
        if len(runs) == RECORDS // 4:
            half_way.set()

    with BrokerProcess(tmp_path / "data", log=tmp_path / "broker.log") as broker:
        kafka = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "heartbeat.interval.ms": 300}
        Admin(kafka).create_topics({"t": PARTITIONS})
        with BulkProducer(broker.bootstrap) as producer:
            for number in range(RECORDS):
                producer.produce(kl.Output("t", value=b"x", partition=number % PARTITIONS))
        pipeline = kl.Pipeline(
            kafka=kafka,
            topics=["t"],
            handler=handler,
            ordering="unordered",
            max_concurrency=20,
            max_buffered_records=100,  # every partition is paused most of the time
            offset_reset="earliest",
        )
        ends = {("t", partition): RECORDS // PARTITIONS for partition in range(PARTITIONS)}
        consumers = [kl.ParallelConsumer(pipeline, ending_offsets=ends) for _ in range(2)]
        threads = [threading.Thread(target=consumer.run) for consumer in consumers]
        threads[0].start()
        assert half_way.wait(30)
        threads[1].start()
        for thread in threads:
            thread.join(45)
        ended = not any(thread.is_alive() for thread in threads)
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()
    assert ended, f"{len(runs)} of {RECORDS} records had run when it stood still"
    assert len(runs) == RECORDS
