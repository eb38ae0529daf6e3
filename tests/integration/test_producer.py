"""`KafkaProducer` on the embedded broker: what the client tells of outputs, and of itself."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.engine.deliveries import Delivery
from keylane.errors import PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.producer import KafkaProducer
from keylane.testing.stage import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.engine.events import Answer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"out": 1})
        yield broker.bootstrap


class Sender:
    """A producer, and the answers that it gives."""

    def __init__(self, servers: str, **more: Any) -> None:
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        self.failures: SimpleQueue[BaseException] = SimpleQueue()

        def report(answers: list[Answer]) -> None:
            for answer in answers:
                self.answers.put(answer)

        kafka = {"bootstrap.servers": servers}
        self.producer = KafkaProducer(kafka, report, client_id=None, name="test", fail=self.failures.put, **more)

    def send(self, *values: bytes) -> list[Answer]:
        """Produce these; their answers in the order of the values."""
        work: Any = None
        deliveries = [Delivery(work, [kl.Output("out", value=value)]) for value in values]
        self.producer.send(deliveries)
        found = {(one := self.answers.get(timeout=WAIT_S)).delivery: one for _ in values}
        return [found[delivery] for delivery in deliveries]


def test_a_client_that_cannot_go_on_says_so_and_answers_on(servers: str) -> None:
    """confluent-kafka raises a fatal error from poll: reports have to be served after it, too."""
    first, second = (Sender(servers, transactional_id="one") for _ in range(2))
    try:
        first.producer.client.init_transactions(WAIT_S)
        first.producer.client.begin_transaction()
        assert first.send(b"1")[0].error is None
        second.producer.client.init_transactions(WAIT_S)
        with pytest.raises(KafkaException, match="_FENCED"):
            first.producer.client.commit_transaction(WAIT_S)
        failure = first.failures.get(timeout=WAIT_S)
        assert isinstance(failure, PeerError)
        (answer,) = first.send(b"2")
        assert answer.error is not None
        assert answer.blameless
    finally:
        first.producer.abandon()
        second.producer.abandon()
