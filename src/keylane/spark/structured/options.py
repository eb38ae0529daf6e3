"""Options of the source, as Spark's own Kafka source has them: read, checked, and made a frozen value.

The idea: names are compared in lower case, as Spark does; everything that can be wrong is said before a broker is
asked. Pure. The options and their rules are those of Spark's Structured Streaming + Kafka integration guide.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from keylane.errors import UsageError
from keylane.kafka.java_settings import translate
from keylane.patterns import INTERNAL
from keylane.pipeline import OnCopiedMap
from keylane.telling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "keylane"
"""Of the data source: `format("keylane")`."""
FIRST_ANSWER_S = 30
"""So long a sink waits for brokers that have not answered, before each batch of a stream: brokers restart."""
EARLIEST, LATEST = -2, -1
"""What these offsets mean in Kafka's protocol and in the JSON options."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Subscription:
    """Which partitions: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """The whole name must match, as in Java's `Pattern.matches`; internal topics (`__…`) are read by name alone."""
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def named(self) -> list[str]:
        """The topics that are named."""
        return [*self.topics, *{topic for topic, _ in self.partitions}]

    def of(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """The partitions, given each topic's partition count. Raises `UsageError` for a topic that does not exist."""
        topics = self.named
        if self.pattern is not None:
            topics = [topic for topic in counts if self.reads(topic)]
        for topic in topics:
            if topic not in counts:
                raise UsageError(f"topic {topic!r} does not exist: create it, or correct its name")
        for topic, partition in self.partitions:
            if partition >= counts[topic]:
                raise UsageError(f"assign: topic {topic!r} has no partition {partition}, it has {counts[topic]}")
        return sorted(self.partitions or [(topic, one) for topic in topics for one in range(counts[topic])])

    def reads(self, topic: str) -> bool:
        """Whether it reads this topic, now or once it is made."""
        if self.pattern is not None:
            return not topic.startswith(INTERNAL) and re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == name for name, _ in self.partitions)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern}"
        return ", ".join(self.topics) or ", ".join(f"{topic}-{one}" for topic, one in self.partitions)


@dataclass(frozen=True)
class Position:
    """Where to start or to end: a name, offsets by partition, or times in milliseconds since the epoch."""

    option: str
    """Which option said so."""
    name: Literal["earliest", "latest", "committed"] | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    times: Mapping[TopicPartition, int] | None = None
    time: int | None = None
    """For every partition."""

    def check_covers(self, partitions: list[TopicPartition]) -> None:
        """Raises `UsageError` when offsets or times by partition leave one out, or name one too many."""
        given = self.offsets if self.offsets is not None else self.times
        if given is None or set(given) == set(partitions):
            return
        missing, extra = sorted(set(partitions) - set(given)), sorted(set(given) - set(partitions))
        wrong = [f"does not name {_shown(missing)}"] if missing else []
        wrong += [f"names {_shown(extra)}, which the query does not read"] if extra else []
        raise UsageError(
            f"{self.option} {' and '.join(wrong)}: give every partition (-2 is earliest and -1 latest for an offset)"
        )


@dataclass(frozen=True)
class SourceOptions:
    """All options of one source."""

    settings: Mapping[str, Any] = field(repr=False)  # may hold passwords
    """librdkafka's, with `bootstrap.servers`: texts, and `oauth_cb`, which is a function."""
    subscription: Subscription
    start: Position
    end: Position
    """Of a batch query."""
    no_offset_at_time: Literal["error", "latest"] = "error"
    max_offsets: int | None = None
    """Records a trigger."""
    min_offsets: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    retries: int = 3
    retry_interval_ms: int = 10
    group_id_prefix: str = "keylane-source"
    include_headers: bool = False
    carry_over: str | None = None
    """The folder of carry-over lists."""
    on_copied_map: OnCopiedMap = "run_again"
    """As `keylane.Commit.on_copied_map`, under startingOffsets=committed."""

    @property
    def group_id(self) -> str | None:
        return self.settings.get("group.id")


REFUSED_KAFKA = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are bytes; use DataFrame operations",
    "value.deserializer": "values are bytes; use DataFrame operations",
    "key.serializer": "use DataFrame operations",
    "value.serializer": "use DataFrame operations",
    "enable.auto.commit": "the source commits nothing by itself; use keylane.spark.acknowledged",
    "enable.auto.offset.store": "the source stores no offsets",
    "enable.partition.eof": "the source needs it on",
    "interceptor.classes": "interceptors cannot run here",
}

SOURCE_OPTIONS = (
    "assign", "subscribe", "subscribePattern",
    "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "carryOver", "onCopiedMap",
)  # fmt: skip

_KNOWN = {name.lower(): name for name in SOURCE_OPTIONS}
_KAFKA = "kafka."


def kafka_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """The options `kafka.*` for librdkafka: texts, and the function that `kafka.oauth_cb` names.

    Raises `UsageError` for those that the source or sink must own, and for a function that is not there.
    """
    java = {name.lower()[len(_KAFKA) :]: value for name, value in options.items() if name.lower().startswith(_KAFKA)}
    for name, way_out in REFUSED_KAFKA.items():
        if name in java:
            raise UsageError(f"option kafka.{name}={shown(name, java[name])} is not supported: {way_out}")
    if not java.get("bootstrap.servers"):
        raise UsageError("option kafka.bootstrap.servers is missing: give HOST:PORT")
    return translate(java)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a query. Raises `UsageError` that names the option, its value, and what it takes."""
    given = _Given(options)
    given.refuse_unknown(_KNOWN)
    start = _position(given, "starting", "latest" if streaming else "earliest")
    if streaming:
        given.refuse(
            ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
            "is for batch queries: a stream has no end",
        )
    elif start.name == "latest" or LATEST in (start.offsets or {}).values():
        raise UsageError(f"{start.option}: a batch query cannot start at the latest offset")
    end = _position(given, "ending", "latest")
    if end.name in ("earliest", "committed") or EARLIEST in (end.offsets or {}).values():
        raise UsageError(f"{end.option}: a batch query cannot end at the {end.name or 'earliest'} offset")
    settings = kafka_settings(options)
    if start.name == "committed" and not settings.get("group.id"):
        raise UsageError("startingOffsets=committed needs a group: give option kafka.group.id")
    most, least = given.number("maxOffsetsPerTrigger", 1), given.number("minOffsetsPerTrigger", 1)
    if most is not None and least is not None and least > most:
        raise UsageError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    if not streaming:
        given.refuse(("carryOver",), "is for streaming queries")
    if (folder := given.get("carryOver")) is not None and not re.match(r"/|[A-Za-z][A-Za-z0-9+.-]*:", folder):
        raise UsageError(f"carryOver={folder!r} is another folder in each process: give the CarryOver's .folder")
    return SourceOptions(
        settings=settings,
        subscription=_subscription(given),
        start=start,
        end=end,
        no_offset_at_time="latest"
        if given.choice("startingOffsetsByTimestampStrategy", "error", "latest")
        else "error",
        max_offsets=most,
        min_offsets=least,
        max_trigger_delay_ms=given.duration("maxTriggerDelay", 15 * 60_000),
        min_partitions=given.number("minPartitions", 1),
        max_records_per_partition=given.number("maxRecordsPerPartition", 1),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", 1) or 120_000,
        retries=_or(given.number("fetchOffset.numRetries", 0), 3),
        retry_interval_ms=_or(given.number("fetchOffset.retryIntervalMs", 0), 10),
        group_id_prefix=given.get("groupIdPrefix") or "keylane-source",
        include_headers=given.flag("includeHeaders", default=False),
        carry_over=given.get("carryOver"),
        on_copied_map=_on_copied_map(given.get("onCopiedMap")),
    )


def _on_copied_map(text: str | None) -> OnCopiedMap:
    for choice in get_args(OnCopiedMap):
        if (text or "run_again").strip().lower() == choice:
            return cast("OnCopiedMap", choice)
    raise UsageError(f"onCopiedMap={text!r}: give one of {', '.join(get_args(OnCopiedMap))}")


def _shown(partitions: list[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{one}" for topic, one in partitions)


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


class _Given:
    """Options by name, whatever their case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def refuse_unknown(self, known: Mapping[str, str]) -> None:
        for name, value in self._values.items():
            if name not in known and not name.startswith(_KAFKA):
                hint = did_you_mean(name, known.values()) or f"it takes kafka.* and {', '.join(known.values())}"
                raise UsageError(f"option {name}={shown(name, value)} is not known: {hint}")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if self.get(name) is not None:
                raise UsageError(f"option {name}={self.get(name)!r} {why}")

    def number(self, name: str, least: int) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not text.strip().lstrip("-").isdecimal() or int(text) < least:
            raise UsageError(f"{name}={text!r}: give a whole number of at least {least}")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = (self.get(name) or str(default)).strip().lower()
        if text not in ("true", "false"):
            raise UsageError(f"{name}={self.get(name)!r}: give true or false")
        return text == "true"

    def choice(self, name: str, default: str, other: str) -> bool:
        """True for the other one."""
        text = (self.get(name) or default).strip().lower()
        if text not in (default, other):
            raise UsageError(f"{name}={self.get(name)!r}: give {default} or {other}")
        return text == other

    def duration(self, name: str, default_ms: int) -> int:
        text = self.get(name)
        return default_ms if text is None else _duration_ms(name, text)


_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(name: str, text: str) -> int:
    """Spark's `15m`, `2s`, `500ms`; a number alone is milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise UsageError(f"{name}={text!r}: give a time like 500ms, 30s, 15m, 1h")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])


def _subscription(given: _Given) -> Subscription:
    chosen = {
        name: text for name in ("assign", "subscribe", "subscribePattern") if (text := given.get(name)) is not None
    }
    if len(chosen) != 1:
        there = " and ".join(chosen) or "none of them"
        raise UsageError(f"give exactly one of the options assign, subscribe, subscribePattern; there is {there}")
    ((name, text),) = chosen.items()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise UsageError(f"subscribe={text!r}: name at least one topic")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"subscribePattern={text!r} is no regular expression: {error}") from None
        if not text.strip():
            raise UsageError("subscribePattern is empty: give a regular expression of topic names")
        return Subscription(pattern=text)
    by_topic = _json(name, text)
    partitions = [
        (topic, one) for topic, some in by_topic.items() for one in _list_of_partitions(name, text, topic, some)
    ]
    if not partitions:
        raise UsageError(f"assign={text!r}: name at least one partition")
    return Subscription(partitions=tuple(dict.fromkeys(partitions)))


def _list_of_partitions(name: str, text: str, topic: str, some: object) -> list[int]:
    if not isinstance(some, list) or not all(type(one) is int and one >= 0 for one in some):
        raise UsageError(
            f'{name}={text!r}: the partitions of {topic!r} are no list of numbers, like {{"{topic}":[0,1]}}'
        )
    return list(some)


def _position(given: _Given, side: str, default: str) -> Position:
    """The first that is given of `<side>Timestamp`, `<side>OffsetsByTimestamp`, `<side>Offsets`."""
    option = f"{side}Timestamp"
    if (time := given.number(option, 0)) is not None:
        return Position(option, time=time)
    option = f"{side}OffsetsByTimestamp"
    if (text := given.get(option)) is not None:
        return Position(option, times=_by_partition(option, text, least=0))
    option = f"{side}Offsets"
    text = (given.get(option) or default).strip()
    for name in ("earliest", "latest", "committed"):
        if text.lower() == name:
            return Position(option, name=name)
    return Position(option, offsets=_by_partition(option, text, least=EARLIEST))


def _by_partition(option: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in _json(option, text).items():
        for partition, number in partitions.items() if isinstance(partitions, dict) else ((None, None),):
            if partition is None or not partition.isdecimal() or type(number) is not int or number < least:
                raise UsageError(f'{option}={text!r}: give numbers by partition, like {{"{topic}":{{"0":23,"1":42}}}}')
            numbers[topic, int(partition)] = number
    return numbers


def _json(option: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        words = "earliest, latest, committed or JSON" if option.endswith("Offsets") else "JSON"
        raise UsageError(f'{option}={text!r}: give {words} like {{"topic":…}}')
    return value
