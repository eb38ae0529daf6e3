"""`KafkaProducer` on the embedded broker: what the client tells of outputs, and of itself."""

from __future__ import annotations

from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.consumer.outputs import Delivery
from keylane.errors import PeerError
from keylane.kafka.admin import Admin
from keylane.kafka.producer import KafkaProducer
from kit.stage import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.consumer.outputs import Answer


LARGEST = 2_000
"""Bytes of a batch that the broker takes."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(folder, settings={"message.max.bytes": str(LARGEST)}) as broker:
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

        kafka = {"bootstrap.servers": servers, "linger.ms": 50}  # what is sent together is one batch
        self.producer = KafkaProducer(kafka, report, client_id=None, name="test", fail=self.failures.put, **more)

    def send(self, *values: bytes) -> list[Answer]:
        """Produce these; their answers in the order of the values."""
        works: list[Any] = [SimpleNamespace(name=f"in-0@{number}", dead=None) for number, _ in enumerate(values)]
        deliveries = [
            Delivery(work, [kl.Output("out", value=value)]) for work, value in zip(works, values, strict=True)
        ]
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


def test_of_a_batch_that_the_broker_refuses_only_what_is_at_fault_fails(servers: str) -> None:
    """The broker answers for the batch as a whole: here 30 outputs are told the error of one."""
    sender = Sender(servers)
    values = [b"%d" % number for number in range(30)]
    values[13] = b"x" * (LARGEST + 1)
    answers = sender.send(*values)
    sender.producer.close(WAIT_S)
    assert [number for number, answer in enumerate(answers) if answer.error is not None] == [13]
    offsets = [answer.offset for answer in answers if answer.error is None]
    assert offsets == sorted(set(offsets)), "each once, and in their order"


def test_a_batch_that_is_too_large_as_a_whole_goes_through_one_by_one(servers: str) -> None:
    sender = Sender(servers)
    answers = sender.send(*[b"x" * 500] * 10)
    sender.producer.close(WAIT_S)
    assert [answer.error for answer in answers] == [None] * 10


def test_in_a_transaction_what_is_refused_with_others_is_blameless_and_fails_when_it_is_refused_again(
    servers: str,
) -> None:
    sender = Sender(servers, transactional_id="two")
    client = sender.producer.client
    client.init_transactions(WAIT_S)
    values = [b"small", b"x" * (LARGEST + 1), b"small, too"]
    for _ in range(2):  # in the second one the client finds that it has to ask for a new epoch
        client.begin_transaction()
        assert [answer.blameless for answer in sender.send(*values)] == [True] * 3
        client.abort_transaction(WAIT_S)
    client.begin_transaction()
    answers = sender.send(*values)
    assert [answer.error is None for answer in answers[:2]] == [True, False]
    assert not answers[1].blameless
    client.abort_transaction(WAIT_S)
    sender.producer.close(WAIT_S)
