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
    folder, kept, older = tmp_path / "data" / "coordinator", tmp_path / "kept", tmp_path / "older"
    with BrokerProcess(tmp_path / "data") as broker:
        broker.kill()
        shutil.copytree(folder, older)
        broker.start()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("topic", b"undecided")
        assert producer.flush(TIMEOUT_S) == 0
        broker.kill()
        shutil.move(folder, kept)
        for _ in ("missing", "empty"):
            with pytest.raises(PeerError, match=r"coordinator.* is missing.*restore"):
                broker.start()
            folder.mkdir(exist_ok=True)
        folder.rmdir()
        shutil.copytree(older, folder)
        with pytest.raises(
            PeerError, match=r"topic-0 has an open transaction of producer id \d+ from offset 0 on.*restore"
        ):
            broker.start()
        shutil.rmtree(folder)
        shutil.move(kept, folder)
        broker.start()
        producer.purge()
