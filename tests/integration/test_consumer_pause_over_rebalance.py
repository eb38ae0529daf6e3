"""A partition that was paused because all of it was polled goes on when a rebalance takes it and gives it back."""

import threading
from collections import Counter
from pathlib import Path
from time import monotonic, sleep

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.filling import filling

RECORDS = 800
PARTITIONS = 4
WAIT_S = 30


def test_a_paused_partition_goes_on_after_a_rebalance(tmp_path: Path) -> None:
    runs: Counter[tuple[int, int]] = Counter()
    gate = threading.Event()  # closed until the second member is there, so that most records must be polled again

    def handler(record: kl.Record) -> None:
        assert gate.wait(WAIT_S)
        sleep(0.03)  # 1.5 s for all: five times what the first member needs to hear of the rebalance
        runs[record.partition, record.offset] += 1

    with BrokerProcess(tmp_path / "data", log=tmp_path / "broker.log") as broker:
        kafka = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "heartbeat.interval.ms": 300}
        admin = Admin(kafka)
        admin.create_topics({"t": PARTITIONS})
        with filling(broker.bootstrap) as producer:
            for number in range(RECORDS):
                producer.produce(kl.Output("t", value=b"x", partition=number % PARTITIONS))
        pipeline = kl.Pipeline(
            kafka=kafka,
            topics=["t"],
            handler=handler,
            ordering="unordered",
            offset_reset="earliest",
        )
        ends = {("t", partition): RECORDS // PARTITIONS for partition in range(PARTITIONS)}
        consumers = [kl.ParallelConsumer(pipeline, ending_offsets=ends) for _ in range(2)]
        threads = [threading.Thread(target=consumer.run) for consumer in consumers]
        give_up_at = monotonic() + WAIT_S
        threads[0].start()
        while consumers[0].snapshot().buffered < RECORDS and monotonic() < give_up_at:
            sleep(0.02)
        threads[1].start()
        while len(admin.describe_group("g").members) < 2 and monotonic() < give_up_at:
            sleep(0.02)
        gate.set()
        for thread in threads:
            thread.join(WAIT_S)
        stuck = any(thread.is_alive() for thread in threads)
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()
    assert not stuck, f"{len(runs)} of {RECORDS} records had run when it stood still"
    assert len(runs) == RECORDS
