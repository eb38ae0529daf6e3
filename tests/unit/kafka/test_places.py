"""Which settings go to the brokers, and which to offset servers."""

from __future__ import annotations

import pytest

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.faults import client_of
from keylane.kafka.places import are_apart, for_groups, for_records
from keylane.spark.structured.options import kafka_settings

KAFKA = {"bootstrap.servers": "kafka:9092", "group.id": "g", "sasl.username": "u"}
APART = KAFKA | {"offsets.servers": "offsets:9192", "offsets.sasl.username": "o", "offsets.security.protocol": "ssl"}


def test_without_offset_servers_the_brokers_have_both() -> None:
    assert for_records(KAFKA) == for_groups(KAFKA) == KAFKA
    assert not are_apart(KAFKA)


def test_with_them_groups_are_there_by_their_own_settings() -> None:
    assert for_records(APART) == KAFKA
    assert for_groups(APART) == {
        "bootstrap.servers": "offsets:9192",
        "group.id": "g",
        "sasl.username": "o",
        "security.protocol": "ssl",
    }
    assert are_apart(APART)
    assert for_records(for_groups(APART)) == for_groups(APART)


def test_a_client_of_librdkafka_never_sees_keylanes_own_settings() -> None:
    made = client_of(dict, APART)
    assert made.items() >= KAFKA.items()
    assert not [name for name in made if name.startswith("offsets.")]


def test_an_admin_asks_each_its_own() -> None:
    admin = Admin({"bootstrap.servers": "127.0.0.1:1", "offsets.servers": "127.0.0.1:2"}, timeout_ms=100)
    with pytest.raises(kl.BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        admin.topics()
    with pytest.raises(kl.BrokerUnavailableError, match=r"127\.0\.0\.1:2"):
        admin.groups()


def pipeline(kafka: dict[str, str], **options: object) -> kl.Pipeline:
    return kl.Pipeline(kafka=kafka, topics=["t"], handler=print, **options)  # type: ignore[arg-type]


def test_transactions_are_refused_with_the_reason() -> None:
    assert pipeline(APART).guarantee == "at_least_once"
    with pytest.raises(kl.UsageError) as refused:
        pipeline(APART, delivery="transactional")
    assert "kafka['offsets.servers']='offsets:9192': delivery='transactional' commits offsets in" in str(refused.value)


def test_settings_for_nobody_are_refused_and_no_secret_is_shown() -> None:
    with pytest.raises(kl.UsageError) as refused:
        pipeline(KAFKA | {"offsets.sasl.password": "hush"})
    assert "kafka['offsets.servers'] is missing" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(pipeline(APART | {"offsets.sasl.password": "hush"}).kafka)


def test_a_source_takes_them() -> None:
    options = {"kafka.bootstrap.servers": "kafka:9092", "kafka.offsets.servers": "offsets:9192"}
    assert for_groups(kafka_settings(options))["bootstrap.servers"] == "offsets:9192"
