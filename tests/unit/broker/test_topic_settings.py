from __future__ import annotations

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.topic_settings import FIXED, check_settings, setting
from keylane.broker.topics import check_topic_name
from keylane.errors import UsageError


def test_what_is_honoured_is_kept() -> None:
    kept = check_settings([("segment.bytes", "2048"), ("max.message.bytes", "100"), *FIXED.items()])
    assert kept == {"segment.bytes": "2048", "max.message.bytes": "100"}
    config = BrokerConfig(log_segment_bytes=5_000, log_index_interval_bytes=7)
    assert setting(kept, "segment.bytes", config) == 2_048
    assert setting(kept, "index.interval.bytes", config) == 7


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retention.ms", "1000", r"retention\.ms=1000 is not offered .*leave it out .*honoured are segment\.bytes"),
        ("cleanup.policy", "compact", r"fixed are cleanup\.policy=delete"),
        ("flush.messages", "1", "is not offered"),
        ("segment.bytes", "12", "give a number from 1024"),
        ("segment.bytes", "-1", "give a number"),
        ("segment.bytes", None, "without a value"),
    ],
)
def test_what_would_be_ignored_is_refused(name: str, value: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_settings([(name, value)])


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_names_that_kafka_takes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n", "__consumer_offsets"])
def test_names_that_kafka_refuses(name: str) -> None:
    with pytest.raises(UsageError, match="topic name"):
        check_topic_name(name)
