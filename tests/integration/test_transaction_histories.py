"""Copying a topic exactly once under kills of broker and copier: lost, duplicated, aborted and read, reordered: none.

The history is what ends in the target topic for readers of committed records. Every kill comes behind a number of
transactions that the seed chooses, so a failing seed can be run again.
"""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("transaction_worker.py")
SOURCE, TARGET = "source", "target"
PARTITIONS = 3
TIMEOUT_S = 60.0
SETTINGS = {"log.segment.bytes": "20000", "offsets.topic.segment.bytes": "20000", "offsets.topic.num.partitions": "4"}


class Copier:
    """The program under test, started again whenever it was killed."""

    def __init__(self, broker: BrokerProcess, end: int, seed: int, log: Path) -> None:
        self._arguments = [broker.bootstrap, SOURCE, TARGET, str(PARTITIONS), str(end)]
        self._seed = seed
        self._log = log
        self.process: subprocess.Popen[str] | None = None

    def transactions(self) -> Iterator[None]:
        """One item a committed transaction, until all is copied."""
        while True:
            self._seed += 1
            with ExitStack() as stack:
                log = stack.enter_context(self._log.open("ab"))
                command = [sys.executable, str(WORKER), *self._arguments, str(self._seed)]
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
                assert self.process.stdout is not None
                stack.enter_context(self.process.stdout)
                stack.callback(self.process.wait)
                stack.callback(self.process.kill)
                for _ in self.process.stdout:
                    yield
                code = self.process.wait(TIMEOUT_S)
            assert code in (0, -9), f"the copier ended with {code}: {self._log.read_text()[-2_000:]}"
            if code == 0:
                return

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()


def produce_source(broker: BrokerProcess, each: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (SOURCE, TARGET)]).values():
        future.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(each):
        for partition in range(PARTITIONS):
            producer.produce(SOURCE, b"%d" % number, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def read_target(broker: BrokerProcess) -> list[list[int | str]]:
    """What readers of committed records find, by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[int | str]] = [[] for _ in range(PARTITIONS)]
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            ended.add(message.partition())
            continue
        value = (message.value() or b"").decode()
        found[message.partition() or 0].append(int(value) if value.isdigit() else value)
    consumer.close()
    return found


def copy_under_kills(folder: Path, seed: int, *, each: int, kills: int) -> None:
    chance = random.Random(seed)
    with BrokerProcess(folder / "data", settings=SETTINGS) as broker:
        produce_source(broker, each)
        copier = Copier(broker, each, seed * 1_000, folder / "copier.log")
        left = kills
        wait = chance.randint(1, 4)
        for _ in copier.transactions():
            wait -= 1
            if wait or not left:
                continue
            left -= 1
            wait = chance.randint(1, 6)
            if chance.random() < 0.5:
                broker.restart()
            else:
                copier.kill()
        assert left == 0, f"all was copied with {left} kills left: give more records"
        broker.restart()
        found = read_target(broker)
    for partition, rows in enumerate(found):
        assert rows == list(range(each)), f"seed {seed}, partition {partition}: lost, duplicated, aborted or reordered"


@pytest.mark.full
def test_a_topic_is_copied_exactly_once_under_kills(tmp_path: Path) -> None:
    copy_under_kills(tmp_path, 1, each=200, kills=5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_topic_is_copied_exactly_once_under_many_kills(tmp_path: Path, seed: int) -> None:
    copy_under_kills(tmp_path, seed, each=1_200, kills=20)
