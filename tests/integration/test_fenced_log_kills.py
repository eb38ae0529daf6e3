"""The log of our own while its broker is killed: each batch once, in order, and none that was acknowledged is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.broker.process import BrokerProcess
from keylane.coordinator.replicated.journal import Refused
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.kafka.admin import Admin
from kit.log_writer import LogWriter

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = 120


def test_each_batch_stands_there_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"log": 1}, config={"cleanup.policy": "compact"})
        with LogWriter(broker.bootstrap, "log") as old, LogWriter(broker.bootstrap, "log") as new:
            assert isinstance(old.init(), Producer)
            old.append(b"old")
            assert old.answer() == 0
            assert isinstance(new.init(), Producer)
            for number in range(BATCHES):
                new.append(b"%d" % number)
            answers = [new.answer() for _ in range(BATCHES // 3)]
            broker.restart()  # SIGKILL, with batches in flight
            answers += [new.answer() for _ in range(BATCHES - len(answers))]
            assert answers == list(range(1, BATCHES + 1))
            assert new.values() == [b"old", *(b"%d" % number for number in range(BATCHES))]
            old.append(b"deposed")
            refused = old.answer()
            assert isinstance(refused, Refused), "the fence did not outlive the broker"
            assert "INVALID_PRODUCER_EPOCH" in refused.reason
