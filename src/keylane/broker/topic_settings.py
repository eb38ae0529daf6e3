"""Topic configs: which are honoured, which are only kept, and what each may be (docs/adr/0118)."""

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
    """A topic config; or an option of the broker alone that can be changed while it runs."""

    kind: Kind
    option: str
    """The broker's option, a field of `BrokerConfig`, that holds for topics without the config."""
    about: str
    least: float = 0
    most: float = LONG_MAX
    choices: tuple[str, ...] = ()


COMPRESSIONS = ("gzip", "snappy", "lz4", "zstd")
"""In the order of Kafka's numbers, from 1 on."""

HONOURED: dict[str, TopicSetting] = {
    "cleanup.policy": TopicSetting(
        "LIST",
        "log_cleanup_policy",
        "delete: old segments go by retention; compact: the last record of each key stays; or both.",
        choices=("compact", "delete"),
    ),
    "compression.type": TopicSetting(
        "STRING",
        "compression_type",
        "What batches are kept in; producer: in what their producer compressed them.",
        choices=("producer", "uncompressed", *COMPRESSIONS),
    ),
    "compression.gzip.level": TopicSetting(
        "INT",
        "compression_gzip_level",
        "Of batches that the broker compresses; -1: zlib's default.",
        choices=("-1", *map(str, range(1, 10))),
    ),
    "compression.lz4.level": TopicSetting(
        "INT", "compression_lz4_level", "Of batches that the broker compresses.", least=1, most=17
    ),
    "compression.zstd.level": TopicSetting(
        "INT", "compression_zstd_level", "Of batches that the broker compresses.", least=-131_072, most=22
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
    "max.compaction.lag.ms": TopicSetting(
        "LONG", "log_cleaner_max_compaction_lag_ms", "After so long a record is compacted, however little there is.", 1
    ),
    "message.timestamp.after.max.ms": TopicSetting(
        "LONG", "log_message_timestamp_after_max_ms", "How far after the broker's time a record's may be."
    ),
    "message.timestamp.before.max.ms": TopicSetting(
        "LONG", "log_message_timestamp_before_max_ms", "How far before the broker's time a record's may be."
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
    "min.compaction.lag.ms": TopicSetting(
        "LONG", "log_cleaner_min_compaction_lag_ms", "For so long a record is not compacted."
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


class OwnSetting(NamedTuple):
    """A topic config that no option of the broker stands behind."""

    kind: Kind
    default: str
    """Apache Kafka's."""
    about: str
    """What it does; of one that is kept, why it does nothing."""
    least: float = 0
    most: float = LONG_MAX
    choices: tuple[str, ...] = ()


_TIERED = "There is no remote storage."
_BOOLEANS = ("false", "true")

TAKES_LETTERS = "errors.deadletterqueue.group.enable"
OWN: dict[str, OwnSetting] = {
    TAKES_LETTERS: OwnSetting("BOOLEAN", "false", "Whether share groups write dead letters here.", choices=_BOOLEANS),
}

KEPT: dict[str, OwnSetting] = {
    "file.delete.delay.ms": OwnSetting("LONG", "60000", "Files are removed at once."),
    "flush.messages": OwnSetting("LONG", str(LONG_MAX), "Every batch is synced before it is acknowledged.", least=1),
    "flush.ms": OwnSetting("LONG", str(LONG_MAX), "Every batch is synced before it is acknowledged."),
    "follower.replication.throttled.replicas": OwnSetting("LIST", "", "There is one replica."),
    "leader.replication.throttled.replicas": OwnSetting("LIST", "", "There is one replica."),
    "local.retention.bytes": OwnSetting("LONG", "-2", _TIERED, least=-2),
    "local.retention.ms": OwnSetting("LONG", "-2", _TIERED, least=-2),
    "max.decompressed.message.bytes": OwnSetting(
        "INT", "2147483639", "max.message.bytes alone bounds a batch.", least=1, most=INT_MAX
    ),
    "min.insync.replicas": OwnSetting("INT", "1", "There is one replica, and acks=all waits for it.", least=1),
    "preallocate": OwnSetting("BOOLEAN", "false", "Segments grow as they are written.", choices=_BOOLEANS),
    "remote.copy.lag.bytes": OwnSetting("LONG", "-1", _TIERED, least=-1),
    "remote.copy.lag.ms": OwnSetting("LONG", "0", _TIERED, least=-1),
    "remote.log.copy.disable": OwnSetting("BOOLEAN", "false", _TIERED, choices=_BOOLEANS),
    "remote.log.delete.on.disable": OwnSetting("BOOLEAN", "false", _TIERED, choices=_BOOLEANS),
    "remote.storage.enable": OwnSetting("BOOLEAN", "false", _TIERED, choices=_BOOLEANS),
    "segment.index.bytes": OwnSetting("INT", "10485760", "The index is in memory.", least=4, most=INT_MAX),
    "segment.jitter.ms": OwnSetting("LONG", "0", "Segments of different logs are rolled apart as they fill."),
    "unclean.leader.election.enable": OwnSetting("BOOLEAN", "false", "There is one replica.", choices=_BOOLEANS),
}


"""Those that have no effect on one node, or on this one. They are kept and shown, since tools copy them."""


def policies(value: str) -> list[str]:
    """The items of a list."""
    return [item.strip() for item in value.split(",") if item.strip()]


def known_setting(name: str) -> TopicSetting | OwnSetting | None:
    """None: Apache Kafka has no such topic config."""
    return HONOURED.get(name) or OWN.get(name) or KEPT.get(name)


def check_settings(settings: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The settings to keep. Raises `UsageError` for one that is wrong, or not a topic config of Apache Kafka."""
    kept = {}
    for name, value in settings:
        if value is None:
            raise UsageError(f"topic config {name} without a value: give one, or leave it out")
        wanted = known_setting(name)
        if wanted is None:
            raise UsageError(f"Unknown topic config name: {name}")
        kept[name] = check_value(name, value, wanted)
        if name == "remote.storage.enable" and kept[name] == "true":
            raise UsageError(
                "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
                "storage."
            )
    return kept


def check_value(name: str, value: str, wanted: TopicSetting | OwnSetting) -> str:
    """The value without white space around it. Raises `UsageError` in Kafka's words."""
    value = value.strip()
    what = f"Invalid value {value} for configuration {name}"
    if wanted.kind == "BOOLEAN":
        value = value.lower()
    if wanted.choices:
        items = policies(value) if wanted.kind == "LIST" else [value]
        if not items or not set(items) <= set(wanted.choices):
            raise UsageError(f"{what}: String must be one of: {', '.join(wanted.choices)}")
        return ",".join(items)
    if wanted.kind == "LIST":
        return ",".join(policies(value))
    if wanted.kind == "STRING":
        return value
    try:
        number = float(value) if wanted.kind == "DOUBLE" else int(value)
    except ValueError:
        raise UsageError(f"{what}: Not a number of type {wanted.kind}") from None
    if not number >= wanted.least:
        raise UsageError(f"{what}: Value must be at least {wanted.least}")
    if number > wanted.most:
        raise UsageError(f"{what}: Value must be no more than {wanted.most}")
    return value
