"""Logins by token (OAUTHBEARER) on Apache Kafka: by a callback, keylane's own connections log in, too; by tokens that
librdkafka alone makes, what was cut is found by reading."""

from __future__ import annotations

import base64
import json
import signal
import time
from contextlib import closing
from typing import Any

import peers
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import keylane as kl
from kit.either_broker import TOKEN_USER, TOKENS, either_broker
from kit.stage import until

TOPIC, GROUP = "flights", "weather"
EACH = 50
"""Records before the broker's restart, and behind it by a later leader."""


def token(_config: str) -> tuple[str, float]:
    """An unsecured JSON Web Token, and when it ends."""
    until_s = time.time() + 3_600
    claims = ({"alg": "none"}, {"sub": TOKEN_USER, "iat": int(time.time()), "exp": until_s})
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in claims]
    return ".".join([*parts, ""]), until_s


def ran(kafka: dict[str, Any], **options: Any) -> list[int]:
    offsets: list[int] = []
    pipeline = kl.Pipeline(kafka=kafka, topics=[TOPIC], handler=lambda record: offsets.append(record.offset), **options)
    with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
        consumer.run()
    return sorted(offsets)


BY_CALLBACK = {"oauth_cb": token}
BY_LIBRDKAFKA = {
    "enable.sasl.oauthbearer.unsecure.jwt": True,
    "sasl.oauthbearer.config": f"principal={TOKEN_USER} lifeSeconds=3600",
}


@pytest.mark.parametrize("tokens", [BY_CALLBACK, BY_LIBRDKAFKA], ids=["callback", "librdkafka"])
def test_an_offset_beyond_the_cut_is_refused(tokens: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    with either_broker("apache", tmp_path_factory.mktemp("callback"), TOKENS) as broker:
        assert isinstance(broker, peers.ApacheKafka)
        login = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            **tokens,
        }
        kafka = login | {"group.id": GROUP, "session.timeout.ms": 6_000}
        epochs = [fill(login, kafka)]
        broker.kill(signal.SIGTERM)
        broker.start()
        epochs.append(fill(login, kafka))
        assert epochs[0] < epochs[1]

        commit(kafka, EACH + 10, epochs[1])
        assert ran(kafka) == list(range(EACH + 10, 2 * EACH))
        commit(kafka, EACH + 10, epochs[0])
        with pytest.raises(kl.PeerError, match=rf"committed {EACH + 10} for {TOPIC}-0, and its log was cut at {EACH}"):
            ran(kafka)
        assert ran(kafka, beyond_log_end="earliest") == list(range(EACH, 2 * EACH))


def fill(login: dict[str, Any], kafka: dict[str, Any]) -> int:
    """Produce, and read what came last: its leader epoch."""
    producer = Producer(login | {"allow.auto.create.topics": True})
    for number in range(EACH):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    with closing(Consumer(kafka | {"auto.offset.reset": "error"})) as reader:
        ends: list[int] = []

        def has_end() -> bool:
            reader.poll(0.01)
            ends.append(reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=10)[1])
            return ends[-1] > 0

        until(has_end, "the log has an end")
        reader.assign([TopicPartition(TOPIC, 0, ends[-1] - 1)])
        message = reader.poll(30)
        assert message is not None
        assert message.error() is None
        epoch = message.leader_epoch()
        assert epoch is not None
        return epoch


def commit(kafka: dict[str, Any], offset: int, leader_epoch: int) -> None:
    """By somebody else."""
    with closing(Consumer(kafka)) as client:
        client.poll(0)
        client.commit(offsets=[TopicPartition(TOPIC, 0, offset, leader_epoch=leader_epoch)], asynchronous=False)
