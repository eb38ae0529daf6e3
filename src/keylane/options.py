"""How a function runs over items: `Flow` and its values, for pipelines (`keylane.pipeline`) and for rows of DataFrames.

The idea: one option stands once, and what counts only beside another option's value is part of that value. All of it is
frozen, validated where it is made, and picklable by cloudpickle. Durations are integers ending in `_ms`. An option that
this release does not offer is refused, never ignored.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from keylane.errors import UndecodableError, UsageError
from keylane.foreign_errors import is_one_of
from keylane.telling import kind_of, with_named_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from keylane.records import Context, FailedAttempt, Record

Ordering = Literal["key", "partition", "unordered"]
Traversal = Literal["fair", "depth_first"]
Tracing = Literal["auto", "on", "off"]
DeliveryName = Literal["at_most_once", "at_least_once", "almost_once", "transactional"]
UnseenCommits = Literal["error", "rewind", "accept"]
Guarantee = Literal[DeliveryName, "exactly_once"]
"""What a crash may do to a record, by name."""

DEFAULT_DELAY_MS = 1_000
"""The wait after the first failed attempt."""

AUTO_MOST = 1_000
"""Calls of the handler at once, at most, under `max_concurrency="auto"`."""


def check_whole(name: str, value: object, least: int) -> None:
    """Raises `UsageError` for anything but a whole number of at least this."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")


def check_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    """Raises `UsageError` for anything but one of these."""
    if value not in choices:
        raise UsageError(f"{name}={value!r}: give one of {', '.join(map(repr, choices))}")


def check_function(name: str, value: object, takes: str) -> None:
    """Raises `UsageError` for what is given and cannot be called."""
    if value is not None and not callable(value):
        raise UsageError(f"{name}={value!r}: give a function of {takes}")


def check_callback(name: str, value: Callable[..., Any] | None, takes: str) -> None:
    """Raises `UsageError` for what cannot be called on a thread of its own."""
    check_function(name, value, takes)
    if value is not None and is_coroutine_function(value):
        raise UsageError(f"{name}={value!r} is a coroutine function: it runs in a thread; give a plain one")


def check_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Raises `UsageError` for anything but a value of one of these classes."""
    if not isinstance(value, kinds):
        names = [f"keylane.{kind.__name__}(...)" for kind in kinds if kind is not type(None)]
        raise UsageError(f"{name}={value!r}: give {' or '.join(names)}")


def check_errors(name: str, value: object) -> None:
    """Raises `UsageError` unless it is a class of exceptions, or a tuple of them."""
    classes = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise UsageError(f"{name}={value!r}: give a class of exceptions, or a tuple of them")


@with_named_options()
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
    never: type[BaseException] | tuple[type[BaseException], ...] = UndecodableError
    """Classes of errors after which there is no other attempt, as after `Fatal`. By default what deserializers raise
    for bytes that they cannot decode (`keylane.UndecodableError`): name it with yours to keep that."""

    def __post_init__(self) -> None:
        check_errors("Retries.never", self.never)
        if self.max_attempts is not None:
            check_whole("Retries.max_attempts", self.max_attempts, 1)
        if self.max_age_ms is not None:
            check_whole("Retries.max_age_ms", self.max_age_ms, 0)
        if not callable(self.delay_ms):
            check_whole("Retries.delay_ms", self.delay_ms, 0)
            check_whole("Retries.max_delay_ms", self.max_delay_ms, self.delay_ms)
        if not self.multiplier >= 1:
            raise UsageError(f"Retries.multiplier={self.multiplier!r}: give a number of at least 1")
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"Retries.jitter={self.jitter!r}: give a share between 0 and 1")

    def allow(self, attempt: int) -> bool:
        """Whether another attempt may follow this one (the first is 1), as far as their number goes."""
        return self.max_attempts is None or attempt < self.max_attempts

    def forbid(self, error: BaseException) -> bool:
        """Whether no other attempt may follow this error."""
        return is_one_of(error, self.never)


@with_named_options()
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
        check_whole("Rates.burst_ms", self.burst_ms, 0)


@with_named_options()
@dataclass(frozen=True, slots=True)
class Batch:
    """The handler gets a list of up to `size` records, of any partitions and keys, those of a key (or, under
    "partition", of a partition) in order. It returns None, or a list with one result a record, in which an exception
    fails its record alone."""

    size: int
    min_size: int = 1
    """A batch waits for so many records, for at most `linger_ms`."""
    linger_ms: int = 0

    def __post_init__(self) -> None:
        check_whole("Batch.size", self.size, 2)
        check_whole("Batch.min_size", self.min_size, 1)
        check_whole("Batch.linger_ms", self.linger_ms, 0)
        if self.min_size > self.size:
            raise UsageError(f"Batch.min_size={self.min_size}: give at most the size, which is {self.size}")
        if (self.min_size > 1) != (self.linger_ms > 0):
            raise UsageError(
                f"Batch.min_size={self.min_size}, linger_ms={self.linger_ms}: a least size needs a time to wait for "
                "it, and the other way round; give both"
            )


@with_named_options()
@dataclass(frozen=True, slots=True)
class Threads:
    """Worker threads for a handler that is a plain function (at most `max_concurrency` of them are used)."""

    count: int = 16

    def __post_init__(self) -> None:
        check_whole("Threads.count", self.count, 1)


@with_named_options()
@dataclass(frozen=True, slots=True)
class Processes:
    """Worker processes, for a function that computes (at most `max_concurrency` of them are used).

    The function, its resource (made once a process) and what they use must be picklable by cloudpickle.
    """

    count: int | None = None
    """None: one for each processor that this process may use (affinity, a container's limit); in a task of Spark, one
    for each of `spark.task.cpus`."""

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole("Processes.count", self.count, 1)


@with_named_options()
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


@with_named_options(fail_max="failures", reset_timeout="probe_interval_ms", exclude="errors")
@dataclass(frozen=True, slots=True)
class Breaker:
    """While the service behind the handler is down, items are held, and use up no attempt (a circuit breaker).

    It is down once `failures` calls in a row have failed, or once an item has used up its attempts and no call has
    succeeded since its first one. Then one call each `probe_interval_ms` goes to it. The first that succeeds says that
    it is back, and all goes on; what fails after that, and began before, uses up no attempt either.
    """

    failures: int = 10
    """Calls in a row, without one that succeeds."""
    errors: type[BaseException] | tuple[type[BaseException], ...] = Exception
    """What a handler raises when the service is down; other errors are judged as without a breaker, as `Fatal` is. An
    item that fails with one of these by its own fault, and has nothing beside it that succeeds, is held for ever."""
    probe_interval_ms: int = 1_000
    target: Callable[..., str] | None = None
    """A function of the record that names the service which it calls (a host, a tenant): each is down or not by
    itself. It runs in the loop, so it has to be quick. None: there is one service."""

    def __post_init__(self) -> None:
        check_whole("Breaker.failures", self.failures, 1)
        check_errors("Breaker.errors", self.errors)
        if self.errors == ():
            raise UsageError("Breaker.errors=(): give a class of exceptions, or a tuple of them")
        check_whole("Breaker.probe_interval_ms", self.probe_interval_ms, 1)
        check_function("Breaker.target", self.target, "(record) that returns a str")


@with_named_options()
@dataclass(frozen=True, slots=True)
class Transactional:
    """Outputs, dead letters and offsets are committed together in Kafka transactions (docs/transactions.md)."""

    id_prefix: str | None = None
    """What the producers' `transactional.id` begins with. None: the group's id."""

    def __post_init__(self) -> None:
        if self.id_prefix is not None and not (isinstance(self.id_prefix, str) and self.id_prefix):
            raise UsageError(f"Transactional.id_prefix={self.id_prefix!r}: give a text, or leave it out")


@with_named_options(identity_retention_ms="retention_ms")
@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """What the handler does in `context.transaction` happens once, by the record's identity in `store`."""

    store: Any = field(repr=False)
    """Where records' identities are kept, beside what the handler does in `context.transaction`.
    `keylane.delivery.SqliteStore`, `PostgresStore`, or a store of one's own; or the path of a SQLite file, or a
    postgresql:// address. It is opened when the pipeline starts."""
    identity: Callable[..., str | bytes] | str | None = None
    """A function of the record that returns a key that it is known by in its group, instead of topic, partition and
    offset, so that what was produced twice is processed once. Of rows of a DataFrame: of the row, or a column's name.
    """
    retention_ms: int = 7 * 24 * 3_600_000
    """How long such a key is kept; and rows' places where nothing tells that Spark's checkpoint has them."""
    scope: str | None = None
    """What identities are kept under, which nothing else has. None: of a pipeline, cluster, group, topic and the
    topic's id; a scope holds over clusters, for a key that is the same in each (`identity`), or a log that is copied
    offset by offset. Of a DataFrame: the id of the query, which is its checkpoint's."""
    unseen_commits: UnseenCommits = "error"
    """What becomes of a partition of which the group has committed what the store has not seen (it was restored,
    emptied, failed over, or is another one; or an operator set the group's offset): "error" ends the run, "rewind"
    starts where the store is, "accept" where the group is. A pipeline's."""

    def __post_init__(self) -> None:
        if self.store == "":
            raise UsageError("ExactlyOnce.store='': give the path of a SQLite file, or a postgresql:// address")
        if not isinstance(self.store, str) and not hasattr(self.store, "open"):
            raise UsageError(
                f"ExactlyOnce.store is {kind_of(self.store)}: give the path of a SQLite file, a postgresql:// address, "
                "or a keylane.delivery store"
            )
        if not isinstance(self.identity, str) or not self.identity:
            check_function("ExactlyOnce.identity", self.identity, "(record) that returns a str or bytes")
        check_whole("ExactlyOnce.retention_ms", self.retention_ms, 1)
        if self.scope is not None and not (isinstance(self.scope, str) and self.scope):
            raise UsageError(f"ExactlyOnce.scope={self.scope!r}: give a text, or leave it out")
        if self.unseen_commits not in get_args(UnseenCommits):
            raise UsageError(
                f"ExactlyOnce.unseen_commits={self.unseen_commits!r}: give one of {', '.join(get_args(UnseenCommits))}"
            )


NO_PLACE_FOR_LATE = (
    "expires_ms: the first record that is too late would end the run: set on_exhausted to DeadLetter or Skip"
)

RENAMED = {
    "threads": "workers=Threads(count)",
    "processes": "workers=Processes(count)",
    "batch_size": "batch=Batch(size)",
    "batch_min_size": "batch=Batch(size, min_size, linger_ms)",
    "batch_linger_ms": "batch=Batch(size, min_size, linger_ms)",
    "store": "delivery=ExactlyOnce(store)",
    "identity": "delivery=ExactlyOnce(store, identity=...)",
    "identity_retention_ms": "delivery=ExactlyOnce(store, retention_ms=...)",
    "timeout_ms": "handler_timeout_ms",
}
"""Names that somebody may give, and what stands for them."""


@with_named_options(**RENAMED)
@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How a function runs over items: the options that pipelines and `keylane.spark.parallel_map` have in common.

    Raises `UsageError` for any value that cannot work.
    """

    handler: Callable[[Any], Any] | Callable[[Any, Context[Any]], Any]
    """One or two positional arguments (record, context). A coroutine function runs on asyncio, another one in threads.
    Returns None, an `Output`, or a list of them."""
    resource: Callable[[], Any] | None = None
    """Returns a (sync or async) context manager, entered once a worker process; its value is `context.resource`."""
    around: Callable[..., AbstractContextManager[Any] | AbstractAsyncContextManager[Any]] | None = None
    """Called like the handler, with (record) or (record, context), before each attempt; returns a (sync or async)
    context manager in which the handler runs: a unit of work, a session. Its value is `context.around`. What it raises
    is a failed attempt; what it swallows is none."""
    ordering: Ordering = "key"
    """What keeps its order (docs/orderings.md): the items of a "key", of a "partition", or nothing ("unordered")."""
    max_concurrency: int | Literal["auto"] = 100
    """Calls of the handler at once: records, or batches. "auto" finds out how many the service behind them takes,
    from latency and failures, and follows it; within `workers`, and `AUTO_MOST`."""
    workers: Threads | Processes | None = None
    """None: asyncio for a coroutine function, `Threads()` for another one."""
    batch: Batch | None = None
    """None: the handler gets one record a call."""
    rates: Rates = field(default_factory=Rates)
    """How many may start in a second."""
    retries: Retries | None = None
    """None: `Retries()`; one attempt under "at_most_once"."""
    breaker: Breaker | None = None
    """While the service behind the handler is down, items are held. None: each failed attempt counts."""
    on_exhausted: OnExhausted = field(default_factory=Halt)
    """What becomes of an item after its last attempt."""
    on_failure: Callable[[FailedAttempt], Any] | None = None
    """Called with each attempt that failed: its record, its error, and what becomes of it. For who reports errors; it
    changes nothing. It runs on one thread of its own, in order, in the process that has the flow: also for worker
    processes, and on lanes and in Spark's tasks there. What it raises is logged once. What it is too slow for, beyond
    10,000 attempts or 64 MiB of their values, is left out, which is logged."""
    handler_timeout_ms: int = 0
    """How long one attempt may take; 0: as long as it likes. A coroutine is cancelled and a worker process is killed,
    which is a failed attempt. A thread cannot be ended: it keeps its key, is named in the log, and is counted as stuck
    until it comes back."""
    not_before: Callable[[Record], float | None] | None = None
    """A function of the record that gives the earliest time for it, in milliseconds since the epoch (None: now). It
    runs in the workers, and again when the time has come. Until then the record holds back what follows of its key
    (under "partition", of its partition) and nothing else, and counts as buffered. What it raises is a failed
    attempt."""
    expires_ms: int | str | Callable[[Record], float | None] | None = None
    """What is too late is not started, and goes where `on_exhausted` says. A whole number: so long after the record's
    timestamp. A text: the name of a header with the time, in milliseconds since the epoch. A function of the record
    that returns that time (None: never). It is looked at in the worker before each attempt. Of a call that runs it is
    `context.deadline`, of a batch the latest of its records'."""
    traversal: Traversal = "fair"
    """Whose turn it is when more is ready than may run. "fair": partitions in turn with equal shares, keys in turn;
    none of them starves. "depth_first": the first partition (by topic and number) that has something ready, and in it
    the key that ran last; others get what is left."""
    delivery: DeliveryName | Transactional | ExactlyOnce = "at_least_once"
    """What a crash may do to a record (docs/delivery.md). "at_least_once": periodic commits; what was not committed
    runs again. "at_most_once": a record is committed before it runs, and never runs again. "almost_once": each record's
    commit is awaited before another one starts in its place, so that a crash repeats at most what was in flight.
    "transactional" or `Transactional(...)`: outputs, dead letters and offsets are committed together. `ExactlyOnce`:
    what the handler does in a store's transaction happens once."""
    stall_timeout_ms: int = 600_000
    """The run fails, naming a record, when handlers run and none has ended for this long; 0: never."""
    tracing: Tracing = "auto"
    """OpenTelemetry spans around the handler, in the trace of the record's headers, carried on by its outputs. "auto":
    when the application has set a tracer provider before the consumer starts."""

    def __post_init__(self) -> None:
        _check_called_with_records("handler", self.handler)
        self._check_around()
        if self.resource is not None and not callable(self.resource):
            raise UsageError(f"resource={self.resource!r}: give a function that returns a context manager")
        check_choice("ordering", self.ordering, get_args(Ordering))
        if self.max_concurrency != "auto":
            check_whole("max_concurrency", self.max_concurrency, 1)
        check_kind("workers", self.workers, (Threads, Processes, type(None)))
        if self.workers is not None and self.is_async:
            raise UsageError(f"workers={self.workers!r} runs plain functions: give one, or leave workers out")
        check_kind("batch", self.batch, (Batch, type(None)))
        check_kind("rates", self.rates, (Rates,))
        check_kind("retries", self.retries, (Retries, type(None)))
        check_kind("breaker", self.breaker, (Breaker, type(None)))
        check_kind("on_exhausted", self.on_exhausted, (DeadLetter, Skip, Halt))
        check_whole("handler_timeout_ms", self.handler_timeout_ms, 0)
        check_function("not_before", self.not_before, "(record) that returns epoch milliseconds, or None")
        if isinstance(self.expires_ms, int):
            check_whole("expires_ms", self.expires_ms, 1)
        elif not isinstance(self.expires_ms, str) or not self.expires_ms:
            takes = (
                "(record) that returns epoch milliseconds or None, a whole number of milliseconds, or a header's name"
            )
            check_function("expires_ms", self.expires_ms, takes)
        check_choice("traversal", self.traversal, get_args(Traversal))
        if not isinstance(self.delivery, Transactional | ExactlyOnce):
            check_choice("delivery", self.delivery, (*get_args(DeliveryName), "keylane.ExactlyOnce(store)"))
        check_whole("stall_timeout_ms", self.stall_timeout_ms, 0)
        check_choice("tracing", self.tracing, get_args(Tracing))
        check_callback("on_failure", self.on_failure, "one keylane.FailedAttempt")
        self._check_together()

    def _check_around(self) -> None:
        around = self.around
        if around is None:
            return
        _check_called_with_records("around", around)
        if is_coroutine_function(around) or inspect.isgeneratorfunction(around) or inspect.isasyncgenfunction(around):
            raise UsageError(
                f"around={around!r} returns no context manager: decorate it with contextlib.contextmanager or "
                "asynccontextmanager"
            )
        if not self.is_async and inspect.isasyncgenfunction(inspect.unwrap(around)):
            raise UsageError(
                f"around={around!r} is an async context manager, and the handler is a plain function: make the handler "
                "`async def`, or give a plain context manager"
            )

    def _check_together(self) -> None:
        """What one guarantee needs of the options beside it."""
        if self.guarantee == "at_most_once":
            if self.retries is not None and self.retries.max_attempts != 1:
                raise UsageError(
                    f"retries={self.retries!r}: delivery='at_most_once' runs a record once, whatever comes of it: "
                    "leave retries out"
                )
            if self.breaker is not None:
                raise UsageError(
                    "breaker: delivery='at_most_once' runs a record once, so that one which failed cannot be held: "
                    "use another delivery"
                )
            if self.not_before is not None:
                raise UsageError(
                    "not_before: delivery='at_most_once' commits a record before it is scheduled, so that it would be "
                    "lost with the process while it waits: use another delivery"
                )
        if self.guarantee == "exactly_once":
            if isinstance(self.workers, Processes):
                raise UsageError(
                    f"workers={self.workers!r}: a database transaction is open in the process that commits it: leave "
                    "workers out under delivery=ExactlyOnce(...); for more cores use lanes, or more tasks of Spark"
                )
            if self.batch is not None and self.tries.max_attempts == 1:
                raise UsageError(
                    "retries: under delivery=ExactlyOnce(...) one record that fails rolls back its batch, and the "
                    "others are tried again each alone: give max_attempts of at least 2, or leave batch out"
                )

    @property
    def guarantee(self) -> Guarantee:
        """The name of `delivery`, whatever its options."""
        if isinstance(self.delivery, Transactional):
            return "transactional"
        return "exactly_once" if isinstance(self.delivery, ExactlyOnce) else self.delivery

    @property
    def tries(self) -> Retries:
        """`retries`, or what stands for them."""
        return self.retries or Retries(max_attempts=1 if self.guarantee == "at_most_once" else 5)

    @property
    def most_concurrent(self) -> int:
        """The most calls of the handler that `max_concurrency` ever lets run at once."""
        return AUTO_MOST if self.max_concurrency == "auto" else self.max_concurrency

    @property
    def is_async(self) -> bool:
        """Whether the handler runs on asyncio."""
        return is_coroutine_function(self.handler)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """True for `async def` functions and for objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def takes_context(handler: Callable[..., Any]) -> bool:
    """Whether the handler takes (record, context) rather than (record). A second argument with a default of its own
    keeps it, unless it is named `context`."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # built-ins without a signature take the record alone
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = next(iter([p for p in parameters if p.kind in kinds][1:]), None)
    if second is None:
        return any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return second.default is second.empty or second.name == "context"


def check_deserializer(name: str, function: Any, *, is_async: bool) -> None:
    """Raises `UsageError` for what is not called with (bytes or None, context); `is_async`: whether there is a loop in
    which a coroutine function is awaited."""
    check_function(name, function, "(bytes or None, context)")
    if function is None:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class or a built-in
        fits, takes = False, "how many arguments it takes cannot be seen"
    else:
        fits, takes = _takes_data_and_context(signature), f"it takes {signature}"
    if not fits:
        raise UsageError(
            f"{name}={function!r}: {takes}; give a function of (bytes or None, context): of one that takes the bytes "
            "alone, lambda data, context: None if data is None else function(data)"
        )
    if is_coroutine_function(function) and not is_async:
        raise UsageError(
            f"{name}={function!r} is a coroutine function, which goes with a handler that is declared with `async def`"
        )


def _takes_data_and_context(signature: inspect.Signature) -> bool:
    """A second argument that has another default than None is for something else (`bytes.decode`)."""
    try:
        signature.bind(b"", None)
    except TypeError:
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [one for one in signature.parameters.values() if one.kind in kinds][1:2]
    return all(one.default is None or one.default is one.empty for one in second)


def _check_called_with_records(name: str, function: Any) -> None:
    if not callable(function):
        raise UsageError(f"{name}={function!r}: give a function of (record) or (record, context)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None] * (2 if takes_context(function) else 1)))
    except TypeError:
        raise UsageError(
            f"{name}={function!r}: it takes {signature}; give a function of (record) or (record, context)"
        ) from None
