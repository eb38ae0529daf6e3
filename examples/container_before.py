"""A test as it is: Kafka runs in a container, for all tests of the session."""

import pytest
from confluent_kafka import Consumer, Producer
from testcontainers.kafka import KafkaContainer


@pytest.fixture(scope="session")
def servers():
    with KafkaContainer("confluentinc/cp-kafka:8.0.0").with_kraft() as kafka:
        yield kafka.get_bootstrap_server()


def test_an_order_is_read(servers):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"one")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert consumer.poll(10).value() == b"one"
    consumer.close()
