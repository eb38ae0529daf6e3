"""`Pipeline`: what to consume from Kafka, what to do with each record, and within which bounds.

The idea: a `Flow` (`keylane.options`) with Kafka's part on it. Client settings live only in the dict `kafka`, and those
that would break offset tracking are refused by name. A guarantee that another option would break is not given
silently without it: the pipeline is refused where it is made, in one sentence (docs/delivery.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from keylane import patterns
from keylane.errors import UsageError
from keylane.limits import Cost
from keylane.options import (
    NO_PLACE_FOR_LATE,
    RENAMED,
    DeadLetter,
    ExactlyOnce,
    Flow,
    Halt,
    Processes,
    check_callback,
    check_choice,
    check_deserializer,
    check_function,
    check_kind,
    check_whole,
    takes_context,
)
from keylane.telling import ClientSettings, kind_of, near_name, shown, size_in_utf8, with_named_options

if TYPE_CHECKING:
    from keylane.records import Produced, Record

OffsetReset = Literal["earliest", "latest", "error"]
LATEST_THEN_EARLIEST = "latest_then_earliest"
OnCommitsAtBrokers = Literal["fail", "begin_anew"]
OnForeignMetadata = Literal["fail_on_unknown_map", "ignore", "fail"]
OnCopiedMap = Literal["run_again", "fail", "believe"]
CommitMode = Literal["async", "sync"]

TRACKING_SETTINGS = {
    "enable.auto.commit": "keylane commits what is complete; use commit=Commit(interval_ms=...)",
    "enable.auto.offset.store": "keylane stores offsets itself",
    "auto.offset.reset": "use the option offset_reset",
    "enable.partition.eof": "keylane needs it on",
    "on_commit": "keylane owns the commit callback; use the option on_commit",
    "on_delivery": "keylane owns the delivery callback; use the option on_produced",
    "delivery.report.only.error": "a record is complete when its outputs are reported as delivered",
    "transactional.id": "use delivery=Transactional(id_prefix)",
    "error_cb": "keylane owns the error callback; errors are logged under keylane.kafka",
}
"""librdkafka settings that a pipeline refuses, each with the way out."""

OFFSETS_SERVERS = "offsets.servers"
"""keylane's own setting beside `bootstrap.servers`: offset servers that have the group, its members and its commits."""
OF_OFFSET_SERVERS = "offsets."
"""How settings begin that are for offset servers alone: `offsets.sasl.username`."""

NO_ACKNOWLEDGEMENT = ("acks", "request.required.acks")
"""Settings that may not be 0: a record is complete when the broker has its outputs."""

MOST_PRIORITY = 1_000_000
"""The lowest is as far below 0."""

COMMIT_S = 5.0
TRANSACTION_S = 0.1
"""Between two commits, unless the pipeline says more; Kafka Streams' for exactly-once is the same."""

TRANSACTION_TIMEOUT_MS = 10_000
"""`transaction.timeout.ms`, unless the pipeline says more: so long readers of committed records wait for a process that
died in a transaction. Kafka Streams' default."""

DEFAULT_METADATA_CAP = 4096
"""Characters of metadata a broker takes with a commit (`offset.metadata.max.bytes`, Apache Kafka's default)."""


@with_named_options()
@dataclass(frozen=True, slots=True)
class Partitions:
    """Partitions (topic, number) to read without taking part in a group's rebalances, instead of topics' names. Offsets
    are committed to `group.id`, which must have no members."""

    of: Sequence[tuple[str, int]]

    def __post_init__(self) -> None:
        if not self.of:
            raise UsageError(f"Partitions({self.of!r}): give a list of (topic, partition)")
        for one in self.of:
            if not (isinstance(one, tuple) and [type(part) for part in one] == [str, int] and one[1] >= 0):
                raise UsageError(f"Partitions: {one!r}: give (topic, partition)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """When to commit, or to say what a commit would."""

    interval_ms: int | None = None
    """The time between two commits. None: 5,000; under "transactional" 100, because that is how long outputs wait until
    readers of committed records see them."""
    every_records: int = 0
    """Commit as well whenever this many records have completed since the last commit; 0: on the interval alone."""
    mode: CommitMode = "async"
    """"async": records go on while a commit is on its way. "sync": nothing new starts until the broker has answered, so
    that a crash repeats at most what ran in one interval."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.interval_ms is not None:
            check_whole(f"{name}.interval_ms", self.interval_ms, 1)
        check_whole(f"{name}.every_records", self.every_records, 0)
        check_choice(f"{name}.mode", self.mode, get_args(CommitMode))


@with_named_options(offset_metadata_max_bytes="metadata_max_bytes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Periods):
    """keylane commits offsets to the group (the default)."""

    metadata_max_bytes: int = DEFAULT_METADATA_CAP
    """The most characters of metadata that the broker takes with a commit; it learns of a smaller cap by itself."""
    on_foreign_metadata: OnForeignMetadata | Callable[..., Any] = "fail_on_unknown_map"
    """For commit metadata that is no offset map (Kafka Streams', garbage), or one that speaks of offsets beyond the end
    of the log. "ignore": start from the committed offset with nothing complete above it, and log that; "fail": stop.
    "fail_on_unknown_map": stop at what may be a map of a kind that is not known here (a later Parallel Consumer's), by
    which records may be complete that would run again; ignore the rest. A function of (topic, partition, offset,
    metadata) returns a `keylane.offsets.OffsetMap` with that base, or None to ignore it."""
    on_commits_at_brokers: OnCommitsAtBrokers = "fail"
    """With `offsets.servers`: for a partition of which the group has committed nothing at the servers, and something at
    the brokers. "fail": stop, and name `keylane offsets move`, which takes that over; "begin_anew": start where
    `offset_reset` says."""
    on_copied_map: OnCopiedMap | None = None
    """For an offset map that keylane wrote and another program copied, beside the offset of another log, as mirrors of
    a cluster do (docs/mirrors.md). "run_again": start from the committed offset with nothing complete above it, and log
    how much runs again; "fail": stop; "believe": take the map, because both logs have the same records at the same
    offsets. None: "run_again" under at_least_once, and "fail" under the other guarantees, which a repeat breaks."""
    metadata: Callable[[str, int, int], str] | None = None
    """Under `ordering="partition"`, where no offset map is needed: a function of (topic, partition, offset) that
    returns what is committed with the offset, for example the name of a file with the state as of it. It is given
    back at the assignment (`RebalanceListener.on_metadata`). It runs on the engine's thread: keep it short."""

    def __post_init__(self) -> None:
        Periods.__post_init__(self)
        check_whole("Commit.metadata_max_bytes", self.metadata_max_bytes, 1)
        if not callable(self.on_foreign_metadata):
            check_choice("Commit.on_foreign_metadata", self.on_foreign_metadata, get_args(OnForeignMetadata))
        check_choice("Commit.on_commits_at_brokers", self.on_commits_at_brokers, get_args(OnCommitsAtBrokers))
        if self.on_copied_map is not None:
            check_choice("Commit.on_copied_map", self.on_copied_map, get_args(OnCopiedMap))
        check_function("Commit.metadata", self.metadata, "(topic, partition, offset) that returns a str")


@with_named_options()
@dataclass(frozen=True, slots=True)
class External(Periods):
    """keylane commits nothing to Kafka: offsets are kept elsewhere. `on_commit` is told what a commit would say: the
    offset of each partition below which all is complete."""

    start_offsets: Callable[[list[tuple[str, int]]], Mapping[tuple[str, int], Any]]
    """Called with (topic, partition) pairs that are assigned; returns the offset of each, the next to run. None, or a
    pair that is left out: `offset_reset` decides. It runs on the group's thread."""

    def __post_init__(self) -> None:
        Periods.__post_init__(self)
        if not callable(self.start_offsets):
            raise UsageError(
                f"External.start_offsets={self.start_offsets!r}: give a function of a list of (topic, partition) that "
                "returns their offsets"
            )


LEAST_TOKEN = 16
"""Characters: whoever reads commands may try tokens at home."""


@with_named_options()
@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Members of the group tell what they do, and do what `keylane operate` asks, through two topics of the cluster
    (docs/operations.md)."""

    token: str | None = field(default=None, repr=False)
    """What a command is signed with, and known by: of at least 16 characters, the same for all members. It is in no
    topic. None: members report, and take no commands."""
    report_interval_ms: int = 2_000
    """How often a member reports."""
    show_keys: bool = False
    """Whether reports have the keys of records that others wait for."""

    def __post_init__(self) -> None:
        if self.token is not None and not (isinstance(self.token, str) and len(self.token) >= LEAST_TOKEN):
            found = f"shorter than {LEAST_TOKEN} characters" if isinstance(self.token, str) else kind_of(self.token)
            raise UsageError(f"Operations.token is {found}: give a random text, as `openssl rand -hex 32` makes it")
        check_whole("Operations.report_interval_ms", self.report_interval_ms, 1)
        if not isinstance(self.show_keys, bool):
            raise UsageError(f"Operations.show_keys={self.show_keys!r}: give True or False")


@with_named_options()
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Results of `context.step` are kept until their record is complete: in a topic of the cluster, or in the store of
    `ExactlyOnce` (docs/steps.md)."""

    topic: str | None = None
    """Of a pipeline that reads one topic, where its steps are kept. None: in one whose name is made of the group's and
    of each input topic's. It is made where it is missing, with as many partitions and replicas as the input."""

    def __post_init__(self) -> None:
        if self.topic is not None and not (isinstance(self.topic, str) and self.topic):
            raise UsageError(f"Steps.topic={self.topic!r}: give the name of a topic, or leave it out")


def check_has_steps(flow: Flow) -> None:
    """Raises `UsageError` for a handler that cannot have steps."""
    if flow.batch is not None:
        raise UsageError("steps, batch: a step is of one record, and this handler gets several: leave one out")
    if isinstance(flow.workers, Processes):
        raise UsageError(
            f"steps, workers={flow.workers!r}: steps are kept by the process that is the group's member: use "
            "Threads(), or a coroutine function"
        )
    if not takes_context(flow.handler):
        raise UsageError("steps: the handler takes no context, which has them: give it (record, context)")


def topics_of_operations(group: str) -> tuple[str, str]:
    """The topics of a group's commands and reports. What a topic's name cannot have of the group's stands as its code;
    a record says itself which group it is of. Raises `UsageError` for a name that is too long."""
    name = re.sub(r"[^a-zA-Z0-9._-]", lambda found: f"-{ord(found[0]):x}", group)
    if len(name) > MAX_TOPIC_NAME - len("keylane-commands-"):
        raise UsageError(f"operations: the name of the group {group!r} is too long for that of a topic: shorten it")
    return f"keylane-commands-{name}", f"keylane-reports-{name}"


MAX_TOPIC_NAME = 249
"""Characters, in Kafka."""


class RebalanceListener:
    """Is told which partitions come and go; override what is of interest.

    Called on the thread of the group's client: while a method runs, no other rebalance is handled, and the client does
    not poll (`max.poll.interval.ms`). What it raises ends the consumer with a `HandlerError`; the rebalance itself is
    carried out all the same.
    """

    def on_metadata(self, partition: tuple[str, int], offset: int, metadata: str) -> None:
        """What `Commit(metadata=...)` left with the committed offset of a partition that is ours now; called before
        `on_assigned`."""

    def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
        """These partitions are ours; called before any record of them runs."""

    def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
        """The group takes these back, or the consumer closes; called after their last commit, before they are given
        to others."""

    def on_lost(self, partitions: list[tuple[str, int]]) -> None:
        """The group went on without us: others may have these already. Nothing of them can be committed."""


@with_named_options(
    **RENAMED,
    assignment="topics=Partitions([(topic, partition), ...])",
    commit_interval_ms="commit=Commit(interval_ms=...)",
    commit_mode="commit=Commit(mode=...)",
    commit_every_records="commit=Commit(every_records=...)",
    offset_metadata_max_bytes="commit=Commit(metadata_max_bytes=...)",
    on_foreign_metadata="commit=Commit(on_foreign_metadata=...)",
    on_commits_at_brokers="commit=Commit(on_commits_at_brokers=...)",
    commits="commit=External(start_offsets)",
    start_offsets="commit=External(start_offsets)",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Flow):
    """A `Flow` over the records of Kafka topics: what to consume, what to do with each record, and within which bounds.

    Raises `UsageError` for any value that cannot work.
    """

    kafka: Mapping[str, Any]
    """librdkafka settings for consumer and producer; `bootstrap.servers` and `group.id` are required. With
    `offsets.servers` the group is at these offset servers, and records stay at the brokers."""
    topics: Sequence[str] | Partitions
    """Names; or an expression that begins with ^, alone or among them (`^orders-.*`): it is about the whole name, and
    what matches later is read as well, but no internal topic (`__…`), which is read by its name alone. Or `Partitions`
    that are assigned by hand."""
    outputs: Sequence[str] = ()
    """Topics that the handler produces to: they are looked for at the start, so that a missing one is told at once."""
    key_deserializer: Callable[..., Any] | None = None
    """A function of (bytes or None, context) that makes `record.key`, as confluent-kafka's and Schema Registry's are.
    It runs in the worker, and its failure is a failed attempt. Ordering goes by the bytes. Beside a handler that is
    `async def` it may be a coroutine function."""
    value_deserializer: Callable[..., Any] | None = None
    """The same for `record.value`."""
    on_produced: Callable[[Produced], Any] | None = None
    """Called with each output once the broker has it, before its record is complete; on one thread of its own, in
    order. What it raises is a failed attempt: the handler runs, and its outputs are produced, again."""
    priority: Mapping[str, int] | Callable[[Record], int] | None = None
    """What is urgent starts first: whole numbers by topic (0 for one that is not named), or a function of the record.
    The higher goes first, among all that is polled and may start. A key is as urgent as the most urgent of its records
    that waits. A record is overtaken by those alone that were polled at most 10,000 records later, for each step
    between them. A function runs in the consumer's loop when a record was polled, so it has to be quick."""
    one_processor: bool = False
    """Keep all threads of the consumer on one processor, the quickest way for handlers that wait or run Python alone
    (docs/host.md). Not for those that compute outside the interpreter's lock (numpy) or start processes: what a
    handler starts inherits the one processor. Linux; elsewhere it is logged that it has no effect."""
    max_uncommitted: int | None = None
    """Offsets of one partition, from its committed base on, within which records may start. None leaves it to the
    offset map, which one stuck record never fills."""
    max_buffered_records: int | None = None
    """Records polled and not yet complete, over all partitions. None: 20,000, or 400 for each assigned partition if
    that is more, and never more than 400,000."""
    max_buffered_bytes: int = 64 * 1024 * 1024
    """Bytes of their values, over all partitions, and about those of their keys and headers; one poll may go beyond
    it."""
    commit: Commit | External = field(default_factory=Commit)
    """When to commit, and what else a commit says; or that nothing is committed to Kafka."""
    offset_reset: OffsetReset | str = "latest"
    """Where a partition without a committed offset starts; the choice is committed before the first record runs.
    "by_duration:PT24H" (ISO 8601, as Kafka's `auto.offset.reset`): at the first record of the last 24 hours.
    "latest_then_earliest": a group that has committed nothing for a topic starts at the ends of the partitions that are
    there; one that is added later is read from its beginning (what "latest" passes over, in every client). So is a
    topic that an expression brings later."""
    beyond_log_end: OffsetReset = "error"
    """Where a partition starts whose committed offset is beyond the end of its log (the topic was made anew), or beyond
    the place where its log was cut since (docs/mirrors.md): "earliest" is where it was cut, or the log's start where
    nobody knows. Anything but "error" is committed before the first record runs."""
    on_commit: Callable[..., Any] | None = None
    """Called after each commit with ({(topic, partition): offset}, error): what the broker took, and None; or what it
    did not take, and a `keylane.PeerError`."""
    on_committed: Callable[[Record], Any] | None = None
    """Called with each record once its completion is in an acknowledged commit: it will not run again. Records are kept
    until then."""
    drain_timeout_ms: int = 30_000
    """How long closing waits for records in handlers."""
    revoke_timeout_ms: int = 10_000
    """How long a revoked partition waits for its records in handlers before it is given up."""
    rebalance_listener: RebalanceListener | None = None
    operations: Operations | None = None
    """Members report, and take commands (`keylane operate`). None: nothing of it is there."""
    budget: Cost | None = None
    """What each call of the handler costs of a `keylane.Budget` that other pipelines and processes spend as well:
    `model.cost({"requests": 1})`, or of a function of the record. A record starts when its turn has come, and a further
    attempt costs as much again."""
    steps: Steps | None = None
    """Keep results of `context.step`. None: the handler has no steps, and nothing of them is there."""

    def __post_init__(self) -> None:
        self._check_kafka()
        self._check_topics()
        Flow.__post_init__(self)
        for name, takes in (
            ("on_commit", "(offsets, error)"),
            ("on_committed", "one keylane.Record"),
        ):
            check_function(name, getattr(self, name), takes)
        for name in ("key_deserializer", "value_deserializer"):
            check_deserializer(name, getattr(self, name), is_async=self.is_async)
        check_callback("on_produced", self.on_produced, "one keylane.Produced")
        self._check_processors()
        self._check_priority()
        if self.max_uncommitted is not None:
            check_whole("max_uncommitted", self.max_uncommitted, 1)
        if self.max_buffered_records is not None:
            check_whole("max_buffered_records", self.max_buffered_records, 1)
        for name, least in (
            ("max_buffered_bytes", 1), ("drain_timeout_ms", 0), ("revoke_timeout_ms", 0)
        ):  # fmt: skip
            check_whole(name, getattr(self, name), least)
        check_kind("commit", self.commit, (Commit, External))
        if duration_ms(self.offset_reset) is None:
            choices = (*get_args(OffsetReset), LATEST_THEN_EARLIEST)
            check_choice("offset_reset", self.offset_reset, (*choices, "by_duration:PT24H (a duration)"))
        check_choice("beyond_log_end", self.beyond_log_end, get_args(OffsetReset))
        if not isinstance(self.rebalance_listener, RebalanceListener | None):
            raise UsageError(
                f"rebalance_listener={self.rebalance_listener!r}: give an object of a class derived from "
                "keylane.RebalanceListener"
            )
        check_kind("operations", self.operations, (Operations, type(None)))
        if self.expires_ms is not None and isinstance(self.on_exhausted, Halt):
            raise UsageError(NO_PLACE_FOR_LATE)
        self._check_budget()
        self._check_commits()
        check_kind("steps", self.steps, (Steps, type(None)))
        if self.steps is not None:
            self._check_steps(self.steps)
        if self.guarantee == "transactional":
            self._check_transactional()
        if isinstance(self.delivery, ExactlyOnce):
            _check_identities(self.delivery)

    def _check_processors(self) -> None:
        if not isinstance(self.one_processor, bool):
            raise UsageError(f"one_processor={self.one_processor!r}: give True or False")
        if self.one_processor and isinstance(self.workers, Processes):
            raise UsageError(
                f"one_processor=True, workers={self.workers!r}: worker processes want processors; leave one out"
            )

    def _check_budget(self) -> None:
        budget: object = self.budget
        if budget is not None and not isinstance(budget, Cost):
            raise UsageError(f"budget={budget!r}: give keylane.Budget(...).cost(...), what a record costs")
        if budget is not None and self.not_before is not None:
            raise UsageError(
                "not_before: it runs in the workers, behind budget=..., and would spend each time that it says later: "
                "leave one out"
            )

    def _check_priority(self) -> None:
        priority = self.priority
        if isinstance(priority, Mapping):
            for topic, number in priority.items():
                check_whole(f"priority[{topic!r}]", number, -MOST_PRIORITY)
                if not self.reads_topic(topic):
                    raise UsageError(
                        f"priority[{topic!r}]: the pipeline does not read that topic: give one of its topics"
                    )
        else:
            check_function("priority", priority, "(record) that returns a whole number, or a dict of them by topic")
        if priority is not None and self.traversal == "depth_first":
            raise UsageError("priority and traversal='depth_first' both say what goes first: leave one out")

    def _check_topics(self) -> None:
        topics = [self.topics] if isinstance(self.topics, str) and patterns.is_pattern(self.topics) else self.topics
        object.__setattr__(self, "topics", topics)
        for name, given in (("topics", () if isinstance(topics, Partitions) else topics), ("outputs", self.outputs)):
            if isinstance(given, str) or not all(isinstance(one, str) and one for one in given):
                more = ", a regular expression that begins with ^, or Partitions(...)" if name == "topics" else ""
                raise UsageError(f"{name}={given!r}: give a list of topic names{more}")
        named = (*self.reads, *self.outputs, getattr(self.on_exhausted, "topic", ""))
        for name in named:
            if size_in_utf8(name) is None or "\0" in name:
                raise UsageError(f"{name!a}: no topic is called so: give the name of a topic")
        if not topics:
            raise UsageError(f"topics={topics!r}: give a list of topic names, or Partitions(...)")
        for expression in filter(patterns.is_pattern, self.subscription):
            patterns.for_clients(expression)  # refused here, and not when brokers are asked
        self._check_written_topics()

    def _check_written_topics(self) -> None:
        written = [("outputs", topic) for topic in self.outputs]
        if isinstance(self.on_exhausted, DeadLetter):
            written.append(("on_exhausted: the dead-letter topic", self.on_exhausted.topic))
        if self.operations is not None:
            written += [("operations: one of its topics", one) for one in topics_of_operations(self.group_id)]
        if isinstance(self.budget, Cost):
            written.append(("budget: its topic", self.budget.budget.topic))
        if isinstance(self.steps, Steps) and self.steps.topic is not None:
            written.append(("steps: its topic", self.steps.topic))
        for what, topic in written:
            if self.reads_topic(topic):
                raise UsageError(self.own_topic(f"{what} is {topic!r}"))

    def _check_kafka(self) -> None:
        if not isinstance(self.kafka, Mapping):
            raise UsageError(f"kafka is {kind_of(self.kafka)}: give a dict of librdkafka settings")
        object.__setattr__(self, "kafka", ClientSettings(self.kafka))
        for name in ("bootstrap.servers", "group.id"):
            if not self.kafka.get(name):
                written = near_name(name, self.kafka, cutoff=0.85)
                meant = f"; there is {written!r} in their place" if written else ""
                raise UsageError(f"kafka[{name!r}] is missing{meant}: give it in the pipeline's kafka settings")
        self._check_offset_servers()
        for name, way_out in TRACKING_SETTINGS.items():
            if name in self.kafka:
                raise UsageError(
                    f"kafka[{name!r}]={shown(name, self.kafka[name])} would break offset tracking: {way_out}"
                )
        for name in NO_ACKNOWLEDGEMENT:
            if str(self.kafka.get(name, "all")) == "0":
                raise UsageError(
                    f"kafka[{name!r}]=0 would break offset tracking: outputs would be lost unnoticed; leave it out"
                )

    def _check_offset_servers(self) -> None:
        given = [name for name in self.kafka if name.startswith(OF_OFFSET_SERVERS)]
        if given and not self.kafka.get(OFFSETS_SERVERS):
            raise UsageError(
                f"kafka[{given[0]!r}]={shown(given[0], self.kafka[given[0]])} is for offset servers, and "
                f"kafka[{OFFSETS_SERVERS!r}] is missing: give HOST:PORT, or leave both out"
            )

    def _check_commits(self) -> None:
        if isinstance(self.commit, External):
            if self.guarantee != "at_least_once":
                raise UsageError(
                    f"delivery={self.delivery!r} needs commits that keylane makes: leave it at 'at_least_once' with "
                    "commit=External(...), where what is repeated is up to the offsets that you keep"
                )
            if self.offset_reset == LATEST_THEN_EARLIEST:
                raise UsageError(
                    f"offset_reset={LATEST_THEN_EARLIEST!r}: with commit=External(...) no commits tell which "
                    "partitions are new: have start_offsets return their starts"
                )
            if self.on_committed is not None:
                raise UsageError("on_committed: with commit=External(...) there are no commits: use on_commit")
        if self.guarantee == "at_most_once" and self.on_committed is not None:
            raise UsageError(
                "on_committed: delivery='at_most_once' commits a record before it runs, so that its commit says "
                "nothing of what came of it: use on_commit"
            )
        if self.metadata is not None and self.ordering != "partition":
            raise UsageError(
                f"Commit.metadata: under ordering={self.ordering!r} the metadata of a commit says what is complete "
                "beyond its offset: give ordering='partition'"
            )
        by_record = self.guarantee in ("at_most_once", "almost_once")
        if by_record and (self.commit.mode != "async" or self.commit.every_records):
            raise UsageError(
                f"commit={self.commit!r}: delivery={self.delivery!r} says itself when commits go: leave mode and "
                "every_records out"
            )

    def _check_steps(self, steps: Steps) -> None:
        if self.guarantee not in ("at_least_once", "exactly_once"):
            raise UsageError(
                f"steps, delivery={self.delivery!r}: steps are kept under 'at_least_once' and ExactlyOnce(...); under "
                "another guarantee a record does not run again, or its outputs are in a transaction of Kafka's, which "
                "is fenced by itself"
            )
        if self.guarantee == "exactly_once" and steps.topic is not None:
            raise UsageError(
                f"Steps.topic={steps.topic!r}: under delivery=ExactlyOnce(...) the store keeps the steps: leave it out"
            )
        if isinstance(self.commit, External):
            raise UsageError(
                "steps: with commit=External(...) there are no commits after which a record's steps can be deleted: "
                "leave one out"
            )
        check_has_steps(self)
        if steps.topic is not None and (len(self.reads) != 1 or patterns.is_pattern(self.reads[0])):
            raise UsageError(
                f"Steps.topic={steps.topic!r}: the pipeline may read several topics, whose records would have one "
                "another's places in it: leave it out"
            )

    def _check_transactional(self) -> None:
        if OFFSETS_SERVERS in self.kafka:
            raise UsageError(
                f"kafka[{OFFSETS_SERVERS!r}]={self.kafka[OFFSETS_SERVERS]!r}: delivery='transactional' commits offsets "
                "in the transaction of their outputs, which Kafka ends in its own store alone: leave one out"
            )
        if self.assignment:
            raise UsageError(
                f"topics={self.topics!r}: delivery='transactional' fences a member that was frozen by its group's "
                "generation, and partitions assigned by hand have none: give topics"
            )
        if self.on_produced is not None:
            raise UsageError(
                "on_produced: delivery='transactional' may take an output back after it was acknowledged: use "
                "on_committed"
            )
        if str(self.kafka.get("isolation.level", "read_committed")) != "read_committed":
            raise UsageError(
                f"kafka['isolation.level']={self.kafka['isolation.level']!r}: delivery='transactional' would process "
                "records that their producer takes back: leave it out"
            )
        if str(self.kafka.get("enable.idempotence", True)).lower() != "true":
            raise UsageError(
                f"kafka['enable.idempotence']={self.kafka['enable.idempotence']!r}: delivery='transactional' needs an "
                "idempotent producer: leave it out"
            )
        longest_ms = int(self.kafka.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        if self.commit_interval_s * 1000 * 2 > longest_ms:
            raise UsageError(
                f"Commit.interval_ms={self.commit_interval_s * 1000:.0f}: delivery='transactional' commits a "
                f"transaction as often, and the broker aborts it after transaction.timeout.ms={longest_ms}: give at "
                "most half of that"
            )

    @property
    def commit_interval_s(self) -> float:
        """The time between two commits, in seconds."""
        if self.commit.interval_ms is not None:
            return self.commit.interval_ms / 1000
        return TRANSACTION_S if self.guarantee == "transactional" else COMMIT_S

    @property
    def metadata_cap(self) -> int:
        """The most characters of metadata in a commit, which bound how far records run ahead (docs/adr/0002)."""
        return self.commit.metadata_max_bytes if isinstance(self.commit, Commit) else DEFAULT_METADATA_CAP

    @property
    def metadata(self) -> Callable[[str, int, int], str] | None:
        """What makes the metadata of its commits, where that is the user's."""
        return self.commit.metadata if isinstance(self.commit, Commit) else None

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics that it reads as a member of its group, regular expressions as they are; none when partitions are
        assigned by hand."""
        return () if isinstance(self.topics, Partitions) else tuple(self.topics)

    @property
    def assignment(self) -> tuple[tuple[str, int], ...]:
        """The partitions that are assigned by hand."""
        return tuple(self.topics.of) if isinstance(self.topics, Partitions) else ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The topics that it reads, either way."""
        return self.subscription or tuple(dict.fromkeys(topic for topic, _ in self.assignment))

    def reads_topic(self, topic: str) -> bool:
        """Whether it reads this topic, by its name or by a regular expression."""
        return patterns.is_read(self.reads, topic)

    def own_topic(self, what: str) -> str:
        """Why a topic that it reads may not be written by it."""
        reads = ", ".join(self.reads)
        return f"{what}, which the pipeline reads itself ({reads}) and would feed without end: name another one"

    @property
    def group_id(self) -> str:
        return str(self.kafka["group.id"])


_DURATION = re.compile(
    r"by_duration:P(?=.)(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)


def duration_ms(offset_reset: str) -> int | None:
    """The duration of "by_duration:PnDTnHnMnS" in milliseconds (KIP-1106); None for something else."""
    found = _DURATION.fullmatch(offset_reset)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(found[name] or 0) for name in "dhms")
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _check_identities(once: ExactlyOnce) -> None:
    """What a pipeline's records are not known by."""
    if isinstance(once.identity, str):
        raise UsageError(
            f"ExactlyOnce.identity={once.identity!r}: a column is for rows of DataFrames: give a function of the record"
        )
