from __future__ import annotations

import pytest

from keylane.broker.config import BrokerConfig, parse_config
from keylane.broker.topic_settings import HONOURED, KEPT, check_settings
from keylane.broker.topic_values import resolve, setting
from keylane.broker.topics import check_topic_name
from keylane.errors import UsageError

KAFKAS_TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}


def test_what_is_honoured_is_kept() -> None:
    given = {"segment.bytes": "2048", "max.message.bytes": "100", "min.insync.replicas": "2", "preallocate": "TRUE"}
    kept = check_settings(given.items())
    assert kept == given | {"preallocate": "true"}
    assert check_settings((name, each.default) for name, each in KEPT.items()) == {
        name: each.default for name, each in KEPT.items()
    }
    config = BrokerConfig(log_segment_bytes=5_000, log_index_interval_bytes=7)
    assert setting(kept, "segment.bytes", config) == "2048"
    assert setting(kept, "index.interval.bytes", config) == "7"
    assert resolve(kept, config).index_interval_bytes == 7


def test_the_defaults_are_kafkas() -> None:
    assert {name: setting({}, name, BrokerConfig()) for name in HONOURED} == KAFKAS_TOPIC_DEFAULTS


def test_what_a_topic_has_wins_over_the_broker() -> None:
    config = parse_config({"log.cleanup.policy": "compact,delete", "log.retention.ms": "5"})
    both = resolve({}, config)
    assert (both.is_compacted, both.is_deleted, both.retention_ms) == (True, True, 5)
    own = resolve({"cleanup.policy": "delete", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}, config)
    assert (own.is_compacted, own.is_deleted, own.retention_ms, own.has_append_time) == (False, True, -1, True)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retention.ms", "-2", r"Invalid value -2 for configuration retention\.ms: Value must be at least -1"),
        ("retention.ms", "soon", r"retention\.ms: Not a number of type LONG"),
        ("cleanup.policy", "archive", r"cleanup\.policy: String must be one of: compact, delete"),
        ("cleanup.policy", " , ", "String must be one of"),
        ("message.timestamp.type", "CreateTime,LogAppendTime", "String must be one of"),
        ("min.cleanable.dirty.ratio", "1.5", "must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "must be at least 0"),
        ("flush.messages", "0", "must be at least 1"),
        ("flush.second", "1", r"Unknown topic config name: flush\.second"),
        ("preallocate", "perhaps", "String must be one of: false, true"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled"),
        ("compression.type", "lzma", "must be one of: producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("compression.gzip.level", "0", "must be one of: -1, 1, 2"),
        ("compression.lz4.level", "18", "must be no more than 17"),
        ("segment.bytes", "12", "must be at least 1024"),
        ("segment.bytes", None, "without a value"),
        ("segment.bytes", str(2**31), "must be no more than"),
    ],
)
def test_what_is_wrong_is_refused(name: str, value: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_settings([(name, value)])


def test_the_broker_refuses_what_a_topic_would() -> None:
    for name, value in (("log.cleanup.policy", "archive"), ("log.message.timestamp.type", "Never")):
        with pytest.raises(UsageError, match=name.replace(".", r"\.")):
            parse_config({name: value})
    with pytest.raises(UsageError, match="give a number from 0 to 1"):
        parse_config({"log.cleaner.min.cleanable.ratio": "2"})


def test_a_compacted_topic_rolls_its_segments_within_the_lag() -> None:
    own = {"cleanup.policy": "compact", "max.compaction.lag.ms": "7", "segment.ms": "9"}
    assert resolve(own, BrokerConfig()).segment_ms == 7
    assert resolve(own | {"cleanup.policy": "delete"}, BrokerConfig()).segment_ms == 9


@pytest.mark.parametrize(
    ("settings", "codec", "level"),
    [
        ({}, None, None),
        ({"compression.type": "uncompressed"}, 0, None),
        ({"compression.type": "gzip"}, 1, -1),
        ({"compression.type": "snappy"}, 2, None),
        ({"compression.type": "lz4", "compression.lz4.level": "12"}, 3, 12),
        ({"compression.type": "zstd", "compression.gzip.level": "1"}, 4, 3),
    ],
)
def test_what_a_topic_is_compressed_in(settings: dict[str, str], codec: int | None, level: int | None) -> None:
    found = resolve(settings, BrokerConfig())
    assert (found.codec, found.level) == (codec, level)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_names_that_kafka_takes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n", "__consumer_offsets"])
def test_names_that_kafka_refuses(name: str) -> None:
    with pytest.raises(UsageError, match="topic name"):
        check_topic_name(name)
