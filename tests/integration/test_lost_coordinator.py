"""What a start says when the coordinator's files are gone while a transaction is open."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from keylane.broker.process import BrokerProcess
from keylane.errors import PeerError

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 20


def test_an_open_transaction_that_nobody_can_end_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("topic", b"undecided")
        assert producer.flush(TIMEOUT_S) == 0
        broker.kill()
        kept = tmp_path / "coordinator"
        shutil.move(tmp_path / "data" / "coordinator", kept)
        for _ in ("missing", "empty"):
            with pytest.raises(PeerError, match=r"topic-0 has an open transaction from offset 0 on.*restore"):
                broker.start()
            (tmp_path / "data" / "coordinator").mkdir(exist_ok=True)
        (tmp_path / "data" / "coordinator").rmdir()
        shutil.move(kept, tmp_path / "data" / "coordinator")
        broker.start()
        producer.purge()
