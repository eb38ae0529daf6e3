"""The pipeline and its options: frozen, validated where they are made, picklable by cloudpickle.

Durations are integers ending in `_ms`. Client settings live only in the librdkafka dict `kafka`; those that would break
offset tracking are refused by name. An option that this release does not offer yet is refused, never ignored.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from keylane.errors import UsageError
from keylane.guarantees import Delivery, check_commits, check_delivery, duration_ms
from keylane.telling import ClientSettings, kind_of, near_name, shown, with_named_options

if TYPE_CHECKING:
    from keylane.records import Produced, Record

Ordering = Literal["key", "partition", "unordered"]
Traversal = Literal["fair", "depth_first"]
WorkersKind = Literal["auto", "process"]
Tracing = Literal["auto", "on", "off"]
OffsetReset = Literal["earliest", "latest", "error"]
OnForeignMetadata = Literal["ignore", "fail"]
CommitMode = Literal["async", "sync"]
CommitsTo = Literal["group", "external"]

TRACKING_SETTINGS = {
    "enable.auto.commit": "keylane commits what is complete; use commit_interval_ms",
    "enable.auto.offset.store": "keylane stores offsets itself",
    "auto.offset.reset": "use the option offset_reset",
    "enable.partition.eof": "keylane needs it on",
    "on_commit": "keylane owns the commit callback; use the option on_commit",
    "on_delivery": "keylane owns the delivery callback; use the option on_produced",
    "delivery.report.only.error": "a record is complete when its outputs are reported as delivered",
    "transactional.id": "it is for delivery='transactional'",
    "error_cb": "keylane owns the error callback; errors are logged under keylane.kafka",
}
"""librdkafka settings that a pipeline refuses, each with the way out."""

DEFAULT_DELAY_MS = 1_000
"""The wait after the first failed attempt."""

AUTO_MOST = 1_000
"""Calls of the handler at once, at most, under `max_concurrency="auto"`."""

NO_ACKNOWLEDGEMENT = ("acks", "request.required.acks")
"""Settings that may not be 0: a record is complete when the broker has its outputs."""

COMMIT_S = 5.0
TRANSACTION_S = 0.1
"""Between two commits, unless the pipeline says more; Kafka Streams' for exactly-once is the same."""

DEFAULT_METADATA_CAP = 4096
"""Characters of metadata a broker takes with a commit (`offset.metadata.max.bytes`, Apache Kafka's default)."""


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")


def _one_of(name: str, value: object, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}={value!r}: give one of {', '.join(map(repr, choices))}")


@with_named_options
@dataclass(frozen=True, slots=True)
class Retries:
    """How often and when a failed record is tried again (exponential, with jitter).

    Attempt n (the first is 1) is followed by a wait of `delay_ms * multiplier ** (n - 1)`, at most `max_delay_ms`,
    of which a random share up to `jitter` is taken off. No attempt begins after `max_attempts`, or later than
    `max_age_ms` after the first one was handed to a worker; None is no bound. A restart begins both anew.

    `delay_ms` may be a function of (attempt, error, record) that returns the wait in milliseconds; the other figures
    of the wait then count for dead letters that are not acknowledged only. It runs on the engine's own thread: keep it
    short. An error that asks for a delay (`keylane.RetryAfter`) comes before either.
    """

    max_attempts: int | None = 5
    delay_ms: int | Callable[[int, BaseException, Record], float] = DEFAULT_DELAY_MS
    max_delay_ms: int = 60_000
    multiplier: float = 2.0
    jitter: float = 0.2
    max_age_ms: int | None = None

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            _at_least("Retries.max_attempts", self.max_attempts, 1)
        if self.max_age_ms is not None:
            _at_least("Retries.max_age_ms", self.max_age_ms, 0)
        if not callable(self.delay_ms):
            _at_least("Retries.delay_ms", self.delay_ms, 0)
            _at_least("Retries.max_delay_ms", self.max_delay_ms, self.delay_ms)
        if not self.multiplier >= 1:
            raise UsageError(f"Retries.multiplier={self.multiplier!r}: give a number of at least 1")
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"Retries.jitter={self.jitter!r}: give a share between 0 and 1")

    def allow(self, attempt: int) -> bool:
        """Whether another attempt may follow this one (the first is 1), as far as their number goes."""
        return self.max_attempts is None or attempt < self.max_attempts


@with_named_options
@dataclass(frozen=True, slots=True)
class Rates:
    """How many records may start a second, retries included: over all, of each partition, of each key of a partition.

    None is no limit. A bucket holds what comes together in `burst_ms` (at least one record), so that a pause does not
    lower the rate. With a rate by key, a batch holds one record of a key. Records without a key have no rate by key.
    """

    records_per_s: float | None = None
    per_partition: float | None = None
    per_key: float | None = None
    burst_ms: int = 100

    def __post_init__(self) -> None:
        for name in ("records_per_s", "per_partition", "per_key"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise UsageError(f"Rates.{name}={value!r}: give a number above 0, or None")
        _at_least("Rates.burst_ms", self.burst_ms, 0)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """After the last attempt: produce the original record to `topic`, with headers that say what failed, then go on."""

    topic: str

    def __post_init__(self) -> None:
        if not self.topic:
            raise UsageError("DeadLetter.topic='': name the dead-letter topic")


@dataclass(frozen=True, slots=True)
class Skip:
    """After the last attempt: count the record as skipped and go on."""


@dataclass(frozen=True, slots=True)
class Halt:
    """After the last attempt: stop the consumer with a `HandlerError` that names the record (the default)."""


OnExhausted = DeadLetter | Skip | Halt


class RebalanceListener:
    """Is told which partitions come and go; override what is of interest.

    Called on the thread of the group's client: while a method runs, no other rebalance is handled, and the client does
    not poll (`max.poll.interval.ms`). What it raises ends the consumer with a `HandlerError`; the rebalance itself is
    carried out all the same.
    """

    def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
        """These partitions are ours; called before any record of them runs."""

    def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
        """The group takes these back, or the consumer closes; called after their last commit, before they are given
        to others."""

    def on_lost(self, partitions: list[tuple[str, int]]) -> None:
        """The group went on without us: others may have these already. Nothing of them can be committed."""


@with_named_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What to consume, what to do with each record, and within which bounds.

    Raises `UsageError` for any value that cannot work.
    """

    kafka: Mapping[str, Any]
    """librdkafka settings for consumer and producer; `bootstrap.servers` and `group.id` are required."""
    handler: Callable[..., Any]
    """One or two positional arguments (record, context). A coroutine function runs on asyncio, another one in threads.
    Returns None, an `Output`, or a list of them."""
    topics: Sequence[str] = ()
    """Names; or a regular expression that begins with ^, alone or among them. What matches later is read as well."""
    assignment: Sequence[tuple[str, int]] = ()
    """Partitions (topic, number) to read without taking part in a group's rebalances, instead of `topics`. Offsets are
    committed to `group.id`, which must have no members."""
    outputs: Sequence[str] = ()
    """Topics that the handler produces to: they are looked for at the start, so that a missing one is told at once."""
    key_deserializer: Callable[..., Any] | None = None
    """A function of (bytes or None, context) that makes `record.key`, as confluent-kafka's and Schema Registry's are.
    It runs in the worker, and its failure is a failed attempt. Ordering goes by the bytes."""
    value_deserializer: Callable[..., Any] | None = None
    """The same for `record.value`."""
    resource: Callable[[], Any] | None = None
    """Returns a (sync or async) context manager, entered once a worker process; its value is `context.resource`."""
    on_produced: Callable[[Produced], Any] | None = None
    """Called with each output once the broker has it, before its record is complete; on one thread of its own, in
    order. What it raises is a failed attempt: the handler runs, and its outputs are produced, again."""
    ordering: Ordering = "key"
    max_concurrency: int | Literal["auto"] = 100
    """Calls of the handler at once: records, or batches. "auto" finds out how many the service behind them takes,
    from latency and failures, and follows it; within `threads` or `processes`, and `AUTO_MOST`."""
    threads: int = 16
    """Worker threads for a handler that is a plain function (at most max_concurrency of them are used)."""
    one_processor: bool = False
    """Keep all threads of the consumer on one processor, the quickest way for handlers that wait or run Python alone
    (docs/host.md). Not for those that compute outside the interpreter's lock (numpy) or start processes: what a
    handler starts inherits the one processor. Linux; elsewhere it is logged that it has no effect."""
    workers: WorkersKind = "auto"
    """"auto": asyncio for a coroutine function, threads for another one. "process": worker processes, for a function
    that computes; it, its resource (made once a process) and what they use must be picklable by cloudpickle."""
    processes: int | None = None
    """Worker processes (at most max_concurrency of them are used). None: one a core."""
    batch_size: int = 1
    """Above 1 the handler gets a list of up to so many records, of any partitions and keys, those of a key (or, under
    "partition", of a partition) in order. It returns None, or a list with one result a record, in which an exception
    fails its record alone."""
    batch_min_size: int = 1
    """A batch waits for so many records, for at most `batch_linger_ms`."""
    batch_linger_ms: int = 0
    not_before: Callable[[Record], float | None] | None = None
    """A function of the record that gives the earliest time for it, in milliseconds since the epoch (None: now). It
    runs in the workers, and again when the time has come. Until then the record holds back what follows of its key
    (under "partition", of its partition) and nothing else, and counts as buffered. What it raises is a failed
    attempt."""
    rates: Rates = field(default_factory=Rates)
    traversal: Traversal = "fair"
    """Whose turn it is when more is ready than may run. "fair": partitions in turn with equal shares, keys in turn;
    none of them starves. "depth_first": the first partition (by topic and number) that has something ready, and in it
    the key that ran last; others get what is left."""
    max_uncommitted: int | None = None
    """Offsets of one partition, from its committed base on, within which records may start. None leaves it to the
    offset map, which one stuck record never fills."""
    max_buffered_records: int = 20_000
    """Records polled and not yet complete, over all partitions."""
    max_buffered_bytes: int = 64 * 1024 * 1024
    """Bytes of their values, over all partitions; one poll may go beyond it."""
    retries: Retries = field(default_factory=Retries)
    on_exhausted: OnExhausted = field(default_factory=Halt)
    delivery: Delivery = "at_least_once"
    """What a crash may do to a record (docs/delivery.md). "at_least_once": periodic commits; what was not committed
    runs again. "at_most_once": a record is committed before it runs, and never runs again. "almost_once": each record's
    commit is awaited before another one starts in its place, so that a crash repeats at most what was in flight.
    "transactional": outputs, dead letters and offsets are committed together in Kafka transactions; `transactional.id`
    in `kafka` is then the prefix of the producer's (default: the group id).
    "exactly_once": what the handler does in `context.transaction` happens once, by the record's identity in `store`."""
    store: Any = field(default=None, repr=False)
    """Under `delivery="exactly_once"`: where records' identities are kept, beside what the handler does in
    `context.transaction`. `keylane.delivery.SqliteStore`, `PostgresStore`, or a store of one's own; or the path of a
    SQLite file, or a postgresql:// address."""
    identity: Callable[[Record], str | bytes] | None = None
    """Under `delivery="exactly_once"`: a function of the record that returns a key that it is known by in its group,
    instead of topic, partition and offset, so that what was produced twice is processed once."""
    identity_retention_ms: int = 7 * 24 * 3_600_000
    """How long such a key is kept."""
    commit_interval_ms: int | None = None
    """The time between two commits. None: 5,000; under "transactional" 100, because that is how long outputs wait until
    readers of committed records see them."""
    commits: CommitsTo = "group"
    """"external": keylane commits nothing to Kafka. Where partitions start is said by `start_offsets`, and `on_commit`
    is told what a commit would say: the offset of each partition below which all is complete."""
    start_offsets: Callable[[list[tuple[str, int]]], Mapping[tuple[str, int], Any]] | None = None
    """Under `commits="external"`: called with (topic, partition) pairs that are assigned; returns the offset of each,
    the next to run. None, or a pair that is left out: `offset_reset` decides. It runs on the group's thread."""
    offset_reset: OffsetReset | str = "latest"
    """Where a partition without a committed offset starts; the choice is committed before the first record runs.
    "by_duration:PT24H" (ISO 8601, as Kafka's `auto.offset.reset`): at the first record of the last 24 hours."""
    commit_mode: CommitMode = "async"
    """"async": records go on while a commit is on its way. "sync": nothing new starts until the broker has answered, so
    that a crash repeats at most what ran in one period."""
    commit_every_records: int = 0
    """Commit as well whenever this many records have completed since the last commit; 0: on the period alone."""
    on_commit: Callable[..., Any] | None = None
    """Called after each commit with ({(topic, partition): offset}, error): what the broker took, and None; or what it
    did not take, and a `keylane.PeerError`."""
    on_committed: Callable[[Record], Any] | None = None
    """Called with each record once its completion is in an acknowledged commit: it will not run again. Records are kept
    until then."""
    beyond_log_end: OffsetReset = "error"
    """Where a partition starts whose committed offset is beyond the end of its log (the topic was made anew, or its log
    was cut); anything but "error" is committed before the first record runs."""
    on_foreign_metadata: OnForeignMetadata | Callable[..., Any] = "ignore"
    """For commit metadata that is no offset map (Kafka Streams', garbage), or one that speaks of offsets beyond the end
    of the log. "ignore": start from the committed offset with nothing complete above it, and log that; "fail": stop. A
    function of (topic, partition, offset, metadata) returns a `keylane.offsets.OffsetMap` with that base, or None to
    ignore it."""
    handler_timeout_ms: int = 0
    """How long one attempt may take; 0: as long as it likes. A coroutine is cancelled and a worker process is killed,
    which is a failed attempt. A thread cannot be ended: it keeps its key, is named in the log, and is counted as stuck
    until it comes back."""
    stall_timeout_ms: int = 600_000
    """The consumer leaves the group and fails, naming a record, when handlers run and none has ended for this long; 0:
    never."""
    drain_timeout_ms: int = 30_000
    """How long closing waits for records in handlers."""
    revoke_timeout_ms: int = 10_000
    """How long a revoked partition waits for its records in handlers before it is given up."""
    offset_metadata_max_bytes: int = DEFAULT_METADATA_CAP
    rebalance_listener: RebalanceListener | None = None
    tracing: Tracing = "auto"
    """OpenTelemetry spans around the handler, in the trace of the record's headers, carried on by its outputs. "auto":
    when the application has set a tracer provider before the consumer starts."""

    def __post_init__(self) -> None:
        self._check_kafka()
        self._check_subscription()
        self._check_membership()
        self._check_commits()
        if not callable(self.handler):
            raise UsageError(f"handler={self.handler!r}: give a function of (record) or (record, context)")
        _check_arity(self.handler)
        if self.resource is not None and not callable(self.resource):
            raise UsageError(f"resource={self.resource!r}: give a function that returns a context manager")
        if self.on_produced is not None and not callable(self.on_produced):
            raise UsageError(f"on_produced={self.on_produced!r}: give a function of one keylane.Produced")
        if self.on_produced is not None and is_coroutine_function(self.on_produced):
            raise UsageError(
                f"on_produced={self.on_produced!r} is a coroutine function: it runs in a thread; give a plain one"
            )
        _one_of("delivery", self.delivery, get_args(Delivery))
        self._check_numbers()
        self._check_flow()
        self._check_batches()
        self._check_ends()
        check_delivery(self)
        check_commits(self)

    def _check_numbers(self) -> None:
        if self.max_concurrency != "auto":
            _at_least("max_concurrency", self.max_concurrency, 1)
        for name in (
            "threads",
            "batch_size",
            "batch_min_size",
            "max_buffered_records",
            "max_buffered_bytes",
        ):
            _at_least(name, getattr(self, name), 1)
        _at_least("batch_linger_ms", self.batch_linger_ms, 0)
        if self.max_uncommitted is not None:
            _at_least("max_uncommitted", self.max_uncommitted, 1)

    def _check_flow(self) -> None:
        _one_of("ordering", self.ordering, get_args(Ordering))
        _one_of("tracing", self.tracing, get_args(Tracing))
        _one_of("workers", self.workers, get_args(WorkersKind))
        if self.workers == "process" and self.is_async:
            raise UsageError("workers='process' runs plain functions: give one, or leave workers='auto' to a coroutine")
        if self.processes is not None:
            _at_least("processes", self.processes, 1)
        if not isinstance(self.one_processor, bool):
            raise UsageError(f"one_processor={self.one_processor!r}: give True or False")
        if self.one_processor and self.workers == "process":
            raise UsageError("one_processor=True, workers='process': worker processes want processors; leave one out")
        _one_of("traversal", self.traversal, get_args(Traversal))
        if self.not_before is not None and not callable(self.not_before):
            raise UsageError(f"not_before={self.not_before!r}: give a function of (record), to epoch ms or None")
        if not isinstance(self.rates, Rates):
            raise UsageError(f"rates={self.rates!r}: give keylane.Rates(...)")

    def _check_ends(self) -> None:
        if not isinstance(self.retries, Retries):
            raise UsageError(f"retries={self.retries!r}: give keylane.Retries(...)")
        if not isinstance(self.on_exhausted, DeadLetter | Skip | Halt):
            raise UsageError(
                f"on_exhausted={self.on_exhausted!r}: give keylane.DeadLetter(topic), keylane.Skip() or keylane.Halt()"
            )

    def _check_subscription(self) -> None:
        if isinstance(self.topics, str) and self.topics.startswith("^"):
            object.__setattr__(self, "topics", [self.topics])
        for name in ("topics", "outputs"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(one, str) and one for one in given):
                more = ", or a regular expression that begins with ^" if name == "topics" else ""
                raise UsageError(f"{name}={given!r}: give a list of topic names{more}")
        if not self.topics and not self.assignment:
            raise UsageError(f"topics={self.topics!r}: give a list of topic names, or partitions as assignment")
        if self.topics and self.assignment:
            raise UsageError(
                f"topics={self.topics!r}, assignment={self.assignment!r}: give topics to subscribe to, or partitions "
                "that are assigned by hand"
            )
        for one in self.assignment:
            if not (isinstance(one, tuple) and [type(part) for part in one] == [str, int] and one[1] >= 0):
                raise UsageError(f"assignment: {one!r}: give (topic, partition)")
        for expression in (one for one in self.topics if one.startswith("^")):
            try:
                re.compile(expression)
            except re.error as error:
                raise UsageError(f"topics: {expression!r} is no regular expression: {error}") from None
        self._check_own_topics()
        for name in ("key_deserializer", "value_deserializer"):
            if not callable(getattr(self, name) or print):
                raise UsageError(f"{name}={getattr(self, name)!r}: give a function of (bytes, context)")

    def _check_own_topics(self) -> None:
        written = [("outputs", topic) for topic in self.outputs]
        if isinstance(self.on_exhausted, DeadLetter):
            written.append(("on_exhausted: the dead-letter topic", self.on_exhausted.topic))
        for what, topic in written:
            if self.reads_topic(topic):
                raise UsageError(self.own_topic(f"{what} is {topic!r}"))

    def _check_membership(self) -> None:
        for name in ("drain_timeout_ms", "revoke_timeout_ms", "handler_timeout_ms", "stall_timeout_ms"):
            _at_least(name, getattr(self, name), 0)
        if not isinstance(self.rebalance_listener, RebalanceListener | None):
            raise UsageError(
                f"rebalance_listener={self.rebalance_listener!r}: give an object of a class derived from "
                "keylane.RebalanceListener"
            )

    def _check_commits(self) -> None:
        if duration_ms(self.offset_reset) is None:
            _one_of("offset_reset", self.offset_reset, (*get_args(OffsetReset), "by_duration:PT24H (a duration)"))
        _one_of("commits", self.commits, get_args(CommitsTo))
        _one_of("beyond_log_end", self.beyond_log_end, get_args(OffsetReset))
        if not callable(self.on_foreign_metadata):
            _one_of("on_foreign_metadata", self.on_foreign_metadata, get_args(OnForeignMetadata))
        _one_of("commit_mode", self.commit_mode, get_args(CommitMode))
        _at_least("offset_metadata_max_bytes", self.offset_metadata_max_bytes, 1)
        if self.commit_interval_ms is not None:
            _at_least("commit_interval_ms", self.commit_interval_ms, 1)
        _at_least("commit_every_records", self.commit_every_records, 0)
        for name, takes in (("on_commit", "(offsets, error)"), ("on_committed", "one keylane.Record")):
            if not callable(getattr(self, name) or print):
                raise UsageError(f"{name}={getattr(self, name)!r}: give a function of {takes}")

    def _check_batches(self) -> None:
        if self.batch_min_size > self.batch_size:
            raise UsageError(
                f"batch_min_size={self.batch_min_size}: give at most the batch_size, which is {self.batch_size}"
            )
        if (self.batch_min_size > 1) != (self.batch_linger_ms > 0):
            raise UsageError(
                f"batch_min_size={self.batch_min_size}, batch_linger_ms={self.batch_linger_ms}: a least size needs "
                "a time to wait for it, and the other way round; give both"
            )

    def _check_kafka(self) -> None:
        if not isinstance(self.kafka, Mapping):
            raise UsageError(f"kafka is {kind_of(self.kafka)}: give a dict of librdkafka settings")
        object.__setattr__(self, "kafka", ClientSettings(self.kafka))
        for name in ("bootstrap.servers", "group.id"):
            if not self.kafka.get(name):
                written = near_name(name, self.kafka, cutoff=0.85)
                meant = f"; there is {written!r} in their place" if written else ""
                raise UsageError(f"kafka[{name!r}] is missing{meant}: give it in the pipeline's kafka settings")
        for name, way_out in TRACKING_SETTINGS.items():
            if name in self.kafka and (name, self.delivery) != ("transactional.id", "transactional"):
                raise UsageError(
                    f"kafka[{name!r}]={shown(name, self.kafka[name])} would break offset tracking: {way_out}"
                )
        for name in NO_ACKNOWLEDGEMENT:
            if str(self.kafka.get(name, "all")) == "0":
                raise UsageError(
                    f"kafka[{name!r}]=0 would break offset tracking: outputs would be lost unnoticed; leave it out"
                )

    @property
    def most_concurrent(self) -> int:
        """The most calls of the handler that `max_concurrency` ever lets run at once."""
        return AUTO_MOST if self.max_concurrency == "auto" else self.max_concurrency

    @property
    def commit_interval_s(self) -> float:
        """The time between two commits, in seconds."""
        if self.commit_interval_ms is not None:
            return self.commit_interval_ms / 1000
        return TRANSACTION_S if self.delivery == "transactional" else COMMIT_S

    @property
    def is_async(self) -> bool:
        """Whether the handler runs on asyncio."""
        return is_coroutine_function(self.handler)

    @property
    def reads(self) -> tuple[str, ...]:
        """The topics that it reads; regular expressions as they are."""
        return tuple(self.topics) or tuple(dict.fromkeys(topic for topic, _ in self.assignment))

    def reads_topic(self, topic: str) -> bool:
        """Whether it reads this topic, by its name or by a regular expression."""
        return any(re.search(one, topic) if one.startswith("^") else one == topic for one in self.reads)

    def own_topic(self, what: str) -> str:
        """Why a topic that it reads may not be written by it."""
        reads = ", ".join(self.reads)
        return f"{what}, which the pipeline reads itself ({reads}) and would feed without end: name another one"

    @property
    def group_id(self) -> str:
        return str(self.kafka["group.id"])


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """True for `async def` functions and for objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def takes_context(handler: Callable[..., Any]) -> bool:
    """Whether the handler takes (record, context) rather than (record)."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # built-ins without a signature take the record alone
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in kinds]) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _check_arity(handler: Any) -> None:
    if not callable(handler):
        raise UsageError(f"handler={handler!r}: give a function of (record) or (record, context)")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None] * (2 if takes_context(handler) else 1)))
    except TypeError:
        raise UsageError(
            f"handler={handler!r}: it takes {signature}; give a function of (record) or (record, context)"
        ) from None
