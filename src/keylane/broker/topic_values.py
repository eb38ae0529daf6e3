"""Which value of each config holds for a topic: its own where it was given one, or else the broker's option, as in
Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.topic_settings import COMPRESSIONS, HONOURED, KEPT, OWN, TAKES_LETTERS, policies

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
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    has_append_time: bool
    earliest_ms: int
    """How far before the broker's time a record's may be."""
    latest_ms: int
    """And how far after it."""
    codec: int | None
    """What batches are kept in, by Kafka's number; None: what their producer chose."""
    level: int | None
    """Of that compression."""
    takes_letters: bool
    """Whether share groups may write dead letters here."""


def resolve(settings: Mapping[str, str], config: BrokerConfig) -> TopicValues:
    """The topic's own settings, or the broker's."""

    def text(name: str) -> str:
        return setting(settings, name, config)

    policy = policies(text("cleanup.policy"))
    compression = text("compression.type")
    levels = [name for name in COMPRESSIONS if f"compression.{name}.level" in HONOURED]
    lag_ms = int(text("max.compaction.lag.ms"))
    segment_ms = int(text("segment.ms"))
    return TopicValues(
        segment_bytes=int(text("segment.bytes")),
        segment_ms=min(segment_ms, lag_ms) if "compact" in policy else segment_ms,
        index_interval_bytes=int(text("index.interval.bytes")),
        max_message_bytes=int(text("max.message.bytes")),
        retention_ms=int(text("retention.ms")),
        retention_bytes=int(text("retention.bytes")),
        is_deleted="delete" in policy,
        is_compacted="compact" in policy,
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
        max_compaction_lag_ms=lag_ms,
        delete_retention_ms=int(text("delete.retention.ms")),
        has_append_time=text("message.timestamp.type") == "LogAppendTime",
        earliest_ms=int(text("message.timestamp.before.max.ms")),
        latest_ms=int(text("message.timestamp.after.max.ms")),
        codec=None if compression == "producer" else ("uncompressed", *COMPRESSIONS).index(compression),
        level=int(text(f"compression.{compression}.level")) if compression in levels else None,
        takes_letters=text(TAKES_LETTERS) == "true",
    )


def setting(settings: Mapping[str, str], name: str, config: BrokerConfig) -> str:
    """The value that holds for a topic, as text: its own, or the broker's."""
    own = settings.get(name)
    if own is not None:
        return own
    alone = OWN.get(name) or KEPT.get(name)
    return str(getattr(config, HONOURED[name].option)) if alone is None else alone.default
