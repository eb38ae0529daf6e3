"""The sink `keylane`: `df.write.format("keylane")` and `df.writeStream.format("keylane")`, as Spark's own Kafka sink.

The idea: a task is done when the broker has acknowledged its records. The options and columns are Spark's: `value`, and
optionally `key`, `topic`, `partition`, `headers`; rows of a task that is run again are produced again (at least once).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from keylane.errors import UsageError
from keylane.pipeline import OFFSETS_SERVERS
from keylane.spark.structured.exact.record import NAME
from keylane.spark.structured.options import kafka_settings
from keylane.spark.structured.own_topics import Reads
from keylane.spark.structured.rows import RowWriter, number_of
from keylane.spark.structured.sink_rows import SinkRows
from keylane.spark.versions import ARROW_STREAM_SINKS
from keylane.telling import did_you_mean, shown

if ARROW_STREAM_SINKS.here:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriter  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Row
    from pyspark.sql.types import DataType

    from keylane.spark.structured.sink_rows import Headers

COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
}

_SPARKS = frozenset({"checkpointlocation", "queryname", "path", "outputmode"})
"""Options that Spark itself hands on to every sink."""
_OWN = frozenset({"topic", "includeheaders", "delivery", "sinkname", "onmissingrecord"})
"""Of these, `includeHeaders` changes nothing: a column `headers` is always written, as by Spark's own sink."""
ANSWER_S = 10
"""So long a batch write waits for brokers that have not answered."""
BATCH_ROWS = 1_000
"""Rows that become an Arrow batch, where Spark hands over rows."""
TRANSACTION_TIMEOUT_MS = 600_000
"""Of exactly once: all tasks of a batch, its commit, and a driver's restart. Brokers allow 15 minutes by default."""
_HEADER_FIELDS = [("key", StringType), ("value", BinaryType)]


@dataclass(frozen=True)
class SinkOptions:
    settings: Mapping[str, Any] = field(repr=False)  # may hold passwords
    topic: str | None
    """Wins over the column."""
    sink: str | None = None
    """The name of a sink of `delivery=exactly_once`; None: at least once."""
    may_begin: bool = False
    """Whether that sink may begin behind a query's first batch (onMissingRecord=begin)."""

    @property
    def transaction_timeout_ms(self) -> int:
        """Of exactly once."""
        return int(self.settings.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))


def parse_sink(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Checks options and columns. Raises `UsageError` that names what cannot work."""
    given = {name.lower(): value for name, value in options.items()}
    for name, value in given.items():
        if name not in _OWN | _SPARKS and not name.startswith("kafka."):
            ours = ("topic", "includeHeaders", "delivery", "sinkName", "onMissingRecord")
            hint = did_you_mean(name, ours) or f"the sink takes kafka.*, {', '.join(ours)}"
            raise UsageError(f"option {name}={shown(name, value)} is not known: {hint}")
    topic = given.get("topic")
    names = {field.name.lower(): field.dataType for field in schema.fields}
    for name in names:
        if name not in COLUMNS:
            raise UsageError(f"column {name!r}: the sink takes {', '.join(COLUMNS)}; drop it, or put it into value")
    if len(names) < len(schema.fields):
        given_names = ", ".join(schema.fieldNames())
        raise UsageError(
            f"columns {given_names}: two have one name, whatever its case: the sink would take one of them"
        )
    if "value" not in names:
        raise UsageError("the sink needs a column 'value' of string or binary; there is none")
    if topic is None and "topic" not in names:
        raise UsageError("no topic: give option topic, or a column 'topic'")
    for name, kind in names.items():
        if not isinstance(kind, COLUMNS[name]) or (name == "headers" and not _is_headers(kind)):
            wanted = " or ".join(one().simpleString() for one in COLUMNS[name] if one is not ArrayType)
            raise UsageError(
                f"column {name!r} is {kind.simpleString()}: give {wanted or 'array<struct<key:string,value:binary>>'}"
            )
    settings = kafka_settings(options)
    if OFFSETS_SERVERS in settings:
        raise UsageError(
            f"option kafka.{OFFSETS_SERVERS}={settings[OFFSETS_SERVERS]!r} is for a source's group; a sink has "
            "none: leave it out"
        )
    return SinkOptions(settings, topic, _sink_name(given, settings), _may_begin(given))


def _sink_name(given: Mapping[str, str], settings: Mapping[str, Any]) -> str | None:
    """Of exactly once; None for at least once. Raises `UsageError`."""
    delivery, name = given.get("delivery", "at_least_once").strip().lower(), given.get("sinkname")
    if delivery not in ("at_least_once", "exactly_once"):
        raise UsageError(f"delivery={given['delivery']!r}: give at_least_once or exactly_once")
    if delivery == "at_least_once":
        if name is not None:
            raise UsageError(f"sinkName={name!r} counts for delivery=exactly_once alone: give that, too")
        return None
    if name is None or not NAME.fullmatch(name):
        raise UsageError(
            f"sinkName={name!r}: delivery=exactly_once needs a name for the sink that no other query has, of at most "
            "200 letters, digits, dots, hyphens and underscores"
        )
    if "transactional.id" in settings:
        raise UsageError("option kafka.transactional.id is not supported: give sinkName, the ids are made of it")
    timeout = settings.get("transaction.timeout.ms", "1000")
    if not timeout.isdecimal() or int(timeout) < 1_000:
        raise UsageError(f"kafka.transaction.timeout.ms={timeout!r}: give a whole number of at least 1000")
    return name


def _may_begin(given: Mapping[str, str]) -> bool:
    text = given.get("onmissingrecord", "fail")
    if text.strip().lower() not in ("fail", "begin"):
        raise UsageError(f"onMissingRecord={text!r}: give fail or begin")
    return text.strip().lower() == "begin"


def checked(options: SinkOptions, wait_s: int) -> SinkOptions:
    """Raises `BrokerUnavailableError` after `wait_s`, before tasks wait a minute for acknowledgements."""
    from keylane.kafka.admin import Admin

    Admin(options.settings, timeout_ms=1_000 * wait_s).cluster_id()
    return options


def _is_headers(kind: Any) -> bool:
    element = kind.elementType
    return (
        isinstance(element, StructType)
        and len(element.fields) == len(_HEADER_FIELDS)
        and all(
            field.name == name and isinstance(field.dataType, wanted)
            for field, (name, wanted) in zip(element.fields, _HEADER_FIELDS, strict=True)
        )
    )


@dataclass
class Acknowledged(WriterCommitMessage):
    """What a task tells the driver."""

    records: int


class KeylaneWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Acknowledged:
        return _produce(iterator, self._options)


class KeylaneStreamWriter(StreamWriter):
    """A streaming write: each task of each batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Of Arrow batches, or of rows."""
        return _produce(arrow_batches(iterator, self._schema), self._options)


def arrow_batches(given: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """What Spark gives to the `write` of a stream's writer."""
    return given if ARROW_STREAM_SINKS.here else _batches(given, schema)


def _batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    writer = RowWriter(schema)
    while some := list(islice(rows, BATCH_ROWS)):
        yield writer.batch(some)


def _produce(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> Acknowledged:
    """Produce every row, and wait until all are acknowledged."""
    from keylane.kafka.bulk import BulkProducer
    from keylane.kafka.missing_topics import NO_NEW_TOPICS

    servers, reads = options.settings["bootstrap.servers"], Reads.of_task()
    allowed: set[str] = set()
    with BulkProducer(servers, NO_NEW_TOPICS | dict(options.settings)) as producer:
        for rows in sink_rows(batches, options):
            if reads is not None:
                for topic in rows.names - allowed:
                    reads.refuse("the sink's topic", topic, options.settings)
                    allowed.add(topic)
            rows.produce(producer)
    return Acknowledged(producer.delivered)


def sink_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[SinkRows]:
    """Of each batch of a task. Raises `UsageError` for a row that cannot be written, by its number in the task."""
    before = 0
    for batch in batches:
        yield _sink_rows(batch, options, before)
        before += batch.num_rows


def _sink_rows(batch: pa.RecordBatch, options: SinkOptions, before: int) -> SinkRows:
    columns = {name.lower(): batch.column(name) for name in batch.schema.names}
    topics = options.topic if options.topic is not None else columns["topic"].to_pylist()
    if not isinstance(topics, str) and None in topics:
        row = number_of(before + topics.index(None))
        raise UsageError(f"{row} has no topic: its column 'topic' is null, and there is no option topic")
    headers: list[Headers] | None = None
    if "headers" in columns:
        headers = [_headers(some or (), before + at) for at, some in enumerate(columns["headers"].to_pylist())]
    partitions = columns["partition"].to_pylist() if "partition" in columns else None
    for at, one in enumerate(partitions or ()):
        if one is not None and one < 0:
            raise UsageError(
                f"{number_of(before + at)}: column 'partition' is {one}: give one from 0 on, or null, which leaves the "
                "choice to the partitioner"
            )
    has_nulls = any(columns[name].null_count for name in ("key", "value") if name in columns)
    keys = _bytes(columns["key"]) if "key" in columns else None
    return SinkRows(topics, keys, _bytes(columns["value"]), headers, partitions, has_nulls)


def _headers(some: Sequence[Any], row: int) -> Headers:
    if any(one is None or one["key"] is None for one in some):
        raise UsageError(
            f"{number_of(row)}: column 'headers' has a header without a name, which Kafka does not have: leave it out, "
            "filter(headers, h -> h.key IS NOT NULL)"
        )
    return tuple((one["key"], one["value"]) for one in some)


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Strings as UTF-8."""
    values: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return values
