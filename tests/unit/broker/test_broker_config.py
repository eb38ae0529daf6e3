from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from keylane.broker.broker_configs import ALL, BrokerConfigs
from keylane.broker.config import BrokerConfig, kafka_name, parse_config, parse_properties
from keylane.broker.config_resources import broker_configs
from keylane.errors import UsageError
from keylane.storage.filesystem import OsFileSystem
from kit.executor import InlineExecutor

if TYPE_CHECKING:
    from pathlib import Path


def test_names_are_kafkas() -> None:
    assert kafka_name("log_segment_bytes") == "log.segment.bytes"
    config = parse_config(
        {"num.partitions": "8", "auto.create.topics.enable": "false", "advertised.listeners": "PLAINTEXT://kafka:9092"}
    )
    assert (config.num_partitions, config.auto_create_topics_enable) == (8, False)
    assert config.advertised_address() == ("kafka", 9092)


def test_every_option_takes_its_default_as_text() -> None:
    config = BrokerConfig()
    texts = {kafka_name(option.name): str(getattr(config, option.name)) for option in dataclasses.fields(config)}
    assert parse_config(texts) == config
    assert config.advertised_address() is None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num.partition", "8", r"num\.partition: .*did you mean num\.partitions"),
        ("zookeeper.connect", "x", r"zookeeper\.connect.*known options are .*num\.partitions"),
        ("num.partitions", "0", r"num\.partitions=0: give a number from 1"),
        ("num.partitions", "many", r"num\.partitions=many: give a whole number"),
        ("auto.create.topics.enable", "yes", "give true or false"),
        ("socket.request.max.bytes", str(2**31), "give a number from"),
        ("offsets.topic.compression.codec", "3", r"give 0 \(none\), 1 \(gzip\) or 4 \(zstd\)"),
        ("offsets.retention.minutes", "0", r"offsets\.retention\.minutes=0: give a number from 1"),
        ("keylane.owned.offsets.partitions", "0-50", r"'0-50' is no partition or range of them from 0 to 49"),
        ("keylane.owned.offsets.partitions", "3-1", "'3-1' is no partition"),
        ("keylane.owned.offsets.partitions", "1,,2", "'' is no partition"),
        ("advertised.listeners", "SSL://kafka:9092", "give PLAINTEXT://host:port, as the listener is"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "an address that clients can connect to"),
        ("listeners", "TLS://kafka:9092", "PROTOCOL one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("listeners", "SSL://kafka:9092,SASL_SSL://kafka:9093", "give one listener"),
        ("max.connections.per.ip.overrides", "10.0.0.1", "'10.0.0.1' is not ADDRESS:COUNT"),
        ("advertised.listeners", "kafka:9092", "give one listener"),
        ("advertised.listeners", "PLAINTEXT://kafka:0", "give one listener"),
        ("group.consumer.migration.policy", "both", "give one of bidirectional, upgrade, downgrade, disabled"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_config({name: value})


def test_properties_files() -> None:
    text = "# comment\n! comment\n\n num.partitions = 3 \nadvertised.listeners=PLAINTEXT://a:1\n"
    assert parse_properties(text, "x") == {"num.partitions": "3", "advertised.listeners": "PLAINTEXT://a:1"}
    with pytest.raises(UsageError, match=r"server\.properties line 2: not name=value"):
        parse_properties("a=1\nnonsense\n", "server.properties")


KAFKAS_GROUP_OPTIONS = {
    "offsets.topic.num.partitions": "50",
    "offsets.topic.segment.bytes": "104857600",
    "offsets.topic.compression.codec": "0",
    "offsets.retention.minutes": "10080",
    "offsets.retention.check.interval.ms": "600000",
    "offset.metadata.max.bytes": "4096",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "group.max.size": "2147483647",
    "log.cleaner.delete.retention.ms": "86400000",
}
"""With Apache Kafka 4.3's defaults; `group.initial.rebalance.delay.ms` is the one that differs here (3000)."""


def test_the_offset_stores_options_have_kafkas_names_and_defaults() -> None:
    assert parse_config(KAFKAS_GROUP_OPTIONS) == BrokerConfig()
    assert parse_config({"group.initial.rebalance.delay.ms": "3000"}).group_initial_rebalance_delay_ms == 3_000


def test_the_listener() -> None:
    assert BrokerConfig().listener() == ("PLAINTEXT", "127.0.0.1", 9_092)
    config = parse_config({"listeners": "SASL_SSL://[::1]:9093", "advertised.listeners": "SASL_SSL://kafka:443"})
    assert config.listener() == ("SASL_SSL", "::1", 9_093)
    assert config.listener("localhost", 0) == ("SASL_SSL", "localhost", 0)
    assert parse_config({"listeners": "SSL://:0"}).listener() == ("SSL", "127.0.0.1", 0)
    assert config.advertised_address() == ("kafka", 443)


def configs_of(folder: Path, config: BrokerConfig) -> BrokerConfigs:
    return BrokerConfigs(OsFileSystem(), str(folder / "broker-configs.json"), InlineExecutor(), config)


def test_what_is_changed_while_it_runs_outlives_it_and_a_brokers_own_wins(tmp_path: Path) -> None:
    async def change(configs: BrokerConfigs) -> None:
        await configs.alter(ALL, {"log.retention.ms": "5000", "log.segment.bytes": "4096"})
        await configs.alter("1", {"log.retention.ms": "7000"})

    started = parse_config({"log.retention.ms": "3000", "log.roll.ms": "9"})
    configs = configs_of(tmp_path, started)
    asyncio.run(change(configs))
    again = configs_of(tmp_path, started)
    again.load()
    for one in (configs, again):
        now = one.now
        assert (now.log_retention_ms, now.log_segment_bytes, now.log_roll_ms) == (7_000, 4_096, 9)
        synonyms = next(each for each in broker_configs(one) if each.name == "log.retention.ms").synonyms
        assert [(each.value, each.source) for each in synonyms] == [
            ("7000", 2), ("5000", 3), ("3000", 4), ("604800000", 5)
        ]  # fmt: skip
    assert configs_of(tmp_path / "other", started).now == started


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num.partitions": "4"}, "num.partitions cannot be changed while the broker runs"),
        ({"log.retention.ms": "-5"}, r"log\.retention\.ms: Value must be at least -1"),
        ({"log.cleanup.policy": "archive"}, "must be one of: compact, delete"),
        ({"log.index.interval.bytes": str(2**31)}, "must be no more than"),
    ],
)
def test_a_change_that_is_wrong_changes_nothing(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    configs = configs_of(tmp_path, BrokerConfig())
    for broker in (ALL, "1"):
        with pytest.raises(UsageError, match=says):
            asyncio.run(configs.alter(broker, settings))
    assert configs.now == BrokerConfig()
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_not_told(tmp_path: Path) -> None:
    configs = configs_of(tmp_path, parse_config({"ssl.key.password": "open sesame"}))
    found = {one.name: one for one in broker_configs(configs)}
    assert "open sesame" not in str(found)
    assert found["ssl.key.password"].value is None
    assert found["num.partitions"].value == "1"


def test_owned_offsets_partitions() -> None:
    assert BrokerConfig(offsets_topic_num_partitions=3).owned_offsets_partitions == {0, 1, 2}
    config = parse_config({"keylane.owned.offsets.partitions": "0-2, 7", "offsets.topic.num.partitions": "8"})
    assert config.owned_offsets_partitions == {0, 1, 2, 7}
