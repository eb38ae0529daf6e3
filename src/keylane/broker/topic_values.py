"""Which value of each config holds for a topic: its own where it was given one, or else the broker's option, as in
Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.topic_settings import HONOURED, policies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.broker.config import BrokerConfig


class TopicValues(NamedTuple):
    """What holds for a topic."""

    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    retention_ms: int
    """-1: no limit."""
    retention_bytes: int
    """-1: no limit."""
    is_deleted: bool
    """Whether retention applies."""
    is_compacted: bool
    min_cleanable_dirty_ratio: float
    delete_retention_ms: int
    has_append_time: bool


def resolve(settings: Mapping[str, str], config: BrokerConfig) -> TopicValues:
    """The topic's own settings, or the broker's."""

    def text(name: str) -> str:
        return setting(settings, name, config)

    policy = policies(text("cleanup.policy"))
    return TopicValues(
        segment_bytes=int(text("segment.bytes")),
        segment_ms=int(text("segment.ms")),
        index_interval_bytes=int(text("index.interval.bytes")),
        max_message_bytes=int(text("max.message.bytes")),
        retention_ms=int(text("retention.ms")),
        retention_bytes=int(text("retention.bytes")),
        is_deleted="delete" in policy,
        is_compacted="compact" in policy,
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        delete_retention_ms=int(text("delete.retention.ms")),
        has_append_time=text("message.timestamp.type") == "LogAppendTime",
    )


def setting(settings: Mapping[str, str], name: str, config: BrokerConfig) -> str:
    """The value that holds for a topic, as text: its own, or the broker's."""
    own = settings.get(name)
    return own if own is not None else str(getattr(config, HONOURED[name].option))
