"""The same test, on the embedded broker: the fixture is another one."""

import pytest
from confluent_kafka import Consumer, Producer

import keylane.testing


@pytest.fixture(scope="session")
def servers():
    with keylane.testing.broker() as kafka:
        yield kafka.bootstrap_servers


def test_an_order_is_read(servers):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"one")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert consumer.poll(10).value() == b"one"
    consumer.close()
