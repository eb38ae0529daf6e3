"""Topic configs: which are honoured, and what each may be.

A config that would be ignored is refused, so that nobody relies on it: the fixed ones are listed with what they are
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["BOOLEAN", "STRING", "INT", "LONG", "DOUBLE", "LIST"]
"""Kafka's types of configs."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class TopicSetting(NamedTuple):
    """A topic config."""

    kind: Kind
    option: str
    """The broker's option, a field of `BrokerConfig`, that holds for topics without the config."""
    about: str
    least: float = 0
    most: float = LONG_MAX
    choices: tuple[str, ...] = ()


HONOURED: dict[str, TopicSetting] = {
    "cleanup.policy": TopicSetting(
        "LIST",
        "log_cleanup_policy",
        "delete: old segments go by retention; compact: the last record of each key stays; or both.",
        choices=("compact", "delete"),
    ),
    "delete.retention.ms": TopicSetting(
        "LONG", "log_cleaner_delete_retention_ms", "How long a compacted topic keeps tombstones, for its readers."
    ),
    "index.interval.bytes": TopicSetting(
        "INT", "log_index_interval_bytes", "Bytes between two entries of the index in memory.", most=INT_MAX
    ),
    "max.message.bytes": TopicSetting(
        "INT", "message_max_bytes", "The largest record batch that is taken.", most=INT_MAX
    ),
    "message.timestamp.type": TopicSetting(
        "STRING",
        "log_message_timestamp_type",
        "Whose time records have: the producer's (CreateTime) or the broker's (LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"),
    ),
    "min.cleanable.dirty.ratio": TopicSetting(
        "DOUBLE",
        "log_cleaner_min_cleanable_ratio",
        "The share of a compacted topic's bytes that was never compacted, from which on it is.",
        most=1,
    ),
    "retention.bytes": TopicSetting(
        "LONG", "log_retention_bytes", "Bytes of a partition beyond which old segments go; -1: no limit.", least=-1
    ),
    "retention.ms": TopicSetting(
        "LONG", "log_retention_ms", "Age of its latest record at which a segment goes; -1: no limit.", least=-1
    ),
    "segment.bytes": TopicSetting(
        "INT", "log_segment_bytes", "Size at which a new segment is begun.", least=1_024, most=INT_MAX
    ),
    "segment.ms": TopicSetting(
        "LONG", "log_roll_ms", "Time between records after which a new segment is begun.", least=1
    ),
}


class FixedSetting(NamedTuple):
    """A topic config that is the same for all topics."""

    kind: Kind
    value: str
    about: str


FIXED: dict[str, FixedSetting] = {
    "compression.type": FixedSetting("STRING", "producer", "Batches are kept as their producer compressed them."),
    "flush.messages": FixedSetting("LONG", "1", "Every batch is synced before it is acknowledged."),
    "min.insync.replicas": FixedSetting("INT", "1", "There is one replica."),
    "preallocate": FixedSetting("BOOLEAN", "false", "Segments grow as they are written."),
    "unclean.leader.election.enable": FixedSetting("BOOLEAN", "false", "There is one replica."),
}


NOT_HERE = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "file.delete.delay.ms",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "min.compaction.lag.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.index.bytes",
        "segment.jitter.ms",
    }
)
"""The other topic configs of Apache Kafka (4.3.1), which would be ignored here."""


class NotHonouredError(UsageError):
    """A topic config that Apache Kafka would take, and this broker would not honour."""


def policies(value: str) -> list[str]:
    """The items of a list."""
    return [item.strip() for item in value.split(",") if item.strip()]


def check_settings(settings: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The settings to keep. Raises `NotHonouredError` for one that is not here, `UsageError` for one that is wrong."""
    kept = {}
    for name, value in settings:
        if value is None:
            raise UsageError(f"topic config {name} without a value: give one, or leave it out")
        if name in FIXED:
            if value != FIXED[name].value:
                raise NotHonouredError(
                    f"Invalid value {value} for configuration {name}: this broker has {FIXED[name].value} for every "
                    f"topic ({FIXED[name].about}); leave it out"
                )
        elif name in HONOURED:
            kept[name] = check_value(name, value, HONOURED[name])
        else:
            raise (NotHonouredError if name in NOT_HERE else UsageError)(
                f"Unknown topic config name: {name} (this broker honours {', '.join(HONOURED)}; it refuses others)"
            )
    return kept


def check_value(name: str, value: str, wanted: TopicSetting) -> str:
    """The value without white space around it. Raises `UsageError` in Kafka's words."""
    value = value.strip()
    what = f"Invalid value {value} for configuration {name}"
    if wanted.choices:
        items = policies(value) if wanted.kind == "LIST" else [value]
        if not items or not set(items) <= set(wanted.choices):
            raise UsageError(f"{what}: String must be one of: {', '.join(wanted.choices)}")
        return ",".join(items)
    try:
        number = float(value) if wanted.kind == "DOUBLE" else int(value)
    except ValueError:
        raise UsageError(f"{what}: Not a number of type {wanted.kind}") from None
    if not number >= wanted.least:
        raise UsageError(f"{what}: Value must be at least {wanted.least}")
    if number > wanted.most:
        raise UsageError(f"{what}: Value must be no more than {wanted.most}")
    return value
