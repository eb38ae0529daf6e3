"""What a handler gets and gives: `Record`, `Context`, `Output`; and what became of it: `Produced`, `FailedAttempt`,
`Result`.

A `Record` is a slotted view over the Kafka client's message, because building a value per record costs eight times as
much (0.16 µs against 1.33 µs). Anything with the methods of `Message` below can stand behind it; tests need no client.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol

from keylane.errors import OutputTypeError, UnreadableHeadersError, UsageError
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import TypeVar

    Headers = list[tuple[str, bytes | None]]

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    K, V, R = TypeVar("K"), TypeVar("V"), TypeVar("R")


class HasHeaders(Protocol):
    """What `headers_of` reads."""

    def headers(self) -> Headers | None: ...
    def set_headers(self, headers: Any, /) -> None: ...


class Message(HasHeaders, Protocol):
    """The part of a Kafka client's message that a record reads."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...
    def __len__(self) -> int:
        """Bytes of the value."""


MISSING_HEADERS = "keylane.headers.missing"
"""The header that stands for those of a record which cannot be read, and says why."""


class _Unreadable(list[Any]):
    """What a message gives in place of headers that were refused."""


_UNREADABLE = _Unreadable()


_read_headers = methodcaller("headers")
"""Not a call of the method itself: in a loop CPython makes such calls without a look at whether they failed, and the
client's refusal, which comes with a result, would show at some later call of another's."""


def headers_of(message: HasHeaders) -> Headers:
    """A message's headers, in order. Nothing else reads them.

    Raises `UnreadableHeadersError`, each time it is asked. confluent-kafka refuses once, and then gives a list with
    holes whose use ends the process: so its refusal is kept in the message.
    """
    try:
        headers: Headers | None = _read_headers(message)
    except Exception:  # of a client: confluent-kafka's is a SystemError
        message.set_headers(_UNREADABLE)
        headers = _UNREADABLE
    if type(headers) is _Unreadable:
        raise UnreadableHeadersError(UNREADABLE_TEXT)
    return headers or []


UNREADABLE_TEXT = "a header's name is no UTF-8, so none of the record's headers can be read"


def readable_headers_of(message: HasHeaders) -> Headers | None:
    """The same; None where they cannot be read."""
    try:
        return headers_of(message)
    except UnreadableHeadersError:
        return None


def carried_headers_of(message: HasHeaders) -> Headers:
    """What a copy of the message has for headers: its own, or one that says that they are missing."""
    headers = readable_headers_of(message)
    return [(MISSING_HEADERS, UNREADABLE_TEXT.encode())] if headers is None else headers


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A message by value: what a record becomes when it crosses a process, and what fakes produce."""

    topic_: str
    partition_: int
    offset_: int
    key_: bytes | None = field(default=None, repr=False)
    value_: bytes | None = field(default=None, repr=False)
    headers_: tuple[tuple[str, bytes | None], ...] | None = field(default=(), repr=False)
    """None: they cannot be read."""
    timestamp_: tuple[int, int] = (0, -1)
    leader_epoch_: int | None = None

    def __len__(self) -> int:
        return len(self.value_ or b"")

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> Headers | None:
        return _UNREADABLE if self.headers_ is None else list(self.headers_) or None

    def set_headers(self, headers: Any) -> None:
        raise NotImplementedError("a message by value never refuses its headers")

    def timestamp(self) -> tuple[int, int]:
        return self.timestamp_

    def leader_epoch(self) -> int | None:
        return self.leader_epoch_


class Record:
    """One Kafka record. Key and value are bytes or None, exactly as stored."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def topic(self) -> str:
        return self._message.topic()

    @property
    def partition(self) -> int:
        return self._message.partition()

    @property
    def offset(self) -> int:
        return self._message.offset()

    @property
    def key(self) -> bytes | None:
        return self._message.key()

    @property
    def value(self) -> bytes | None:
        return self._message.value()

    @property
    def raw_key(self) -> bytes | None:
        """The key's bytes, with or without a deserializer."""
        return self._message.key()

    @property
    def raw_value(self) -> bytes | None:
        return self._message.value()

    @property
    def headers(self) -> Headers:
        """The headers in order; a name may occur more than once. A list of its own: what a handler changes in it is in
        no later attempt, and in no dead letter.

        Raises `keylane.errors.UnreadableHeadersError` when a name is no UTF-8."""
        return list(headers_of(self._message))

    @property
    def message(self) -> Message:
        """The Kafka client's message that the record is a view of."""
        return self._message

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the epoch; -1 when the record has none."""
        return self._message.timestamp()[1]

    @property
    def leader_epoch(self) -> int | None:
        return self._message.leader_epoch()

    def __repr__(self) -> str:
        return f"Record({self.topic}-{self.partition}@{self.offset})"

    def __reduce__(self) -> tuple[Any, ...]:
        m = self._message
        plain = PlainMessage(
            m.topic(),
            m.partition(),
            m.offset(),
            m.key(),
            m.value(),
            None if (headers := readable_headers_of(m)) is None else tuple(headers),
            m.timestamp(),
            m.leader_epoch(),
        )
        return (Record, (plain,))


class RecordView(Record):
    """A record as handlers get it. It is made without a call of `__init__` in Python, which takes longer than all else
    of it."""

    __slots__ = ()

    __init__ = object.__init__

    @staticmethod
    def of(message: Message) -> Record:
        made: Record = RecordView()
        made._message = message  # noqa: SLF001 - it is its own
        return made


class DecodedRecord(Record, Generic[K, V]):
    """A record whose key and value are what the pipeline's deserializers made of them: `DecodedRecord[str, Order]`."""

    __slots__ = ("_key", "_value")

    _key: K
    _value: V

    @classmethod
    def of(cls, record: Record, key: K, value: V) -> DecodedRecord[K, V]:
        made = object.__new__(cls)  # quicker than `__init__` in Python
        made._message, made._key, made._value = record._message, key, value  # noqa: SLF001 - a record of ours
        return made

    @property
    def key(self) -> K:  # type: ignore[override] # what the deserializer makes
        return self._key

    @property
    def value(self) -> V:  # type: ignore[override]
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        make, (plain,) = super().__reduce__()
        return (DecodedRecord.of, (make(plain), self._key, self._value))


@dataclass(frozen=True, slots=True)
class Output:
    """A record to produce: what a handler returns (one, or a list of them).

    Text for key or value is taken as UTF-8. Raises `OutputTypeError`, at once and where it is made, for a field that is
    of another type.
    """

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    """None leaves the choice to the producer's partitioner."""
    timestamp_ms: int | None = None
    """None lets the producer stamp the record."""

    def __post_init__(self) -> None:
        # In one expression, because a handler makes one for each record.
        if not (
            (self.value is None or type(self.value) is bytes)
            and (self.key is None or type(self.key) is bytes)
            and type(self.topic) is str
            and self.topic
            and self.headers == ()
            and self.partition is None
            and self.timestamp_ms is None
        ):
            _check_output(self)

    def __repr__(self) -> str:
        """Where it goes and how large it is: never what is in it."""
        sizes = {name: len(data) for name, data in (("key", self.key), ("value", self.value)) if data is not None}
        parts = [f"{name}=<{size:,} long>" for name, size in sizes.items()]
        parts += [f"headers=<{len(self.headers)}>"] if self.headers else []
        parts += [f"partition={self.partition}"] if self.partition is not None else []
        parts += [f"timestamp_ms={self.timestamp_ms}"] if self.timestamp_ms is not None else []
        return f"Output({', '.join([repr(self.topic), *parts])})"


def _check_output(output: Output) -> None:
    """Raises `OutputTypeError`."""
    if not isinstance(output.topic, str) or not output.topic:
        given = "''" if output.topic == "" else kind_of(output.topic)
        raise OutputTypeError(f"Output.topic is {given}: give the name of a topic")
    for name in ("key", "value"):
        data: object = getattr(output, name)
        if isinstance(data, str):
            object.__setattr__(output, name, _encoded(data, f"Output.{name} for topic {output.topic!r}"))
        elif not isinstance(data, bytes | None):
            raise OutputTypeError(
                f"Output.{name} for topic {output.topic!r} is {kind_of(data)}: give bytes or None; "
                "json.dumps(…).encode() makes bytes of a dict"
            )
    for name in ("partition", "timestamp_ms"):
        number: object = getattr(output, name)
        if isinstance(number, bool) or not isinstance(number, int | None):
            raise OutputTypeError(f"Output.{name} for topic {output.topic!r} is {kind_of(number)}: give a whole number")
    if output.partition is not None and output.partition < 0:  # librdkafka's -1 is any partition
        raise OutputTypeError(
            f"Output.partition for topic {output.topic!r} is {output.partition}: give one from 0 on, or None, which "
            "leaves the choice to the partitioner"
        )
    if not isinstance(output.headers, list | tuple) or not all(map(_is_header, output.headers)):
        raise OutputTypeError(
            f"Output.headers for topic {output.topic!r} is {kind_of(output.headers)} that is no list of (name, bytes "
            "or None): give one like [('source', b'web')]"
        )
    if output.headers:
        where = f"Output.headers for topic {output.topic!r}"
        object.__setattr__(
            output, "headers", [(_named(name, where), _valued(name, value, where)) for name, value in output.headers]
        )


def _named(name: str, where: str) -> str:
    """A header's name that clients carry as it is. Raises `OutputTypeError`."""
    if "\0" in name:
        raise OutputTypeError(f"{where}: the name {name!r} holds a zero character, at which clients cut it")
    _encoded(name, f"{where}: the name {name!r}")
    return name


def _valued(name: str, value: bytes | str | None, where: str) -> bytes | None:
    return _encoded(value, f"{where}: the value of {name!r}") if isinstance(value, str) else value


def _encoded(text: str, what: str) -> bytes:
    """Raises `OutputTypeError` for text that has no bytes."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise OutputTypeError(f"{what} holds a lone surrogate, which UTF-8 cannot carry: give bytes") from None


def _is_header(pair: object) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], bytes | str | None)
    )


@dataclass(frozen=True, slots=True)
class Produced:
    """An output that the broker has acknowledged: what `on_produced` gets."""

    record: Record
    """The record whose handler returned it, as it was polled: key and value are bytes."""
    output: Output
    topic: str
    partition: int
    """Where it is: the partition that was chosen, and its offset there."""
    offset: int
    """-1 where the client does not know it: the broker had the output already, from a request whose answer was lost."""


FailureOutcome = Literal[
    "retried", "held", "throttled", "carried_over", "dead_lettered", "skipped", "returned", "halted"
]


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed, of one record or row: what `on_failure` gets."""

    record: Any = field(repr=False)
    """The record as it was polled: key and value are bytes. In `parallel_map`, the row."""
    error: BaseException = field(repr=False)
    """What the handler raised, or why an output was not delivered. From a worker process it comes without a traceback;
    a repr leaves it out, as its text may quote the record."""
    attempt: int
    """1 for the first."""
    outcome: FailureOutcome
    """What becomes of the record. "retried": after `delay_ms`. "held": its service is down, the attempt does not count,
    and it runs again. "throttled": the same, because its service asks for a slower pace. "dead_lettered", "skipped": by
    `on_exhausted`. "halted": the run ends with it, or Spark's task. Of rows alone, "carried_over": into a later batch;
    "returned": with its error (`outcome=True`)."""
    delay_ms: int | None = None
    """Until the next attempt, at the soonest; for "retried", "held" and "throttled"."""


@dataclass(frozen=True, slots=True)
class Result:
    """A record whose handler succeeded: what `ParallelConsumer.stream` yields."""

    record: Record
    value: Any = field(repr=False)
    """What the handler returned; a repr leaves it out, as all that may be a payload."""
    produced: tuple[Produced, ...] = ()
    """Its outputs, in the handler's order."""


class Returned:
    """A handler's value on its way to a stream, with the outputs that are in it."""

    __slots__ = ("outputs", "record", "value")

    def __init__(self, value: Any, outputs: Sequence[Output] = (), record: DecodedRecord | None = None) -> None:
        self.value = value
        self.outputs = outputs
        self.record = record
        """What the handler got, where that is more than what was polled."""


class Codec(Protocol):
    """What makes bytes of a step's result, and the result of them; the modules `pickle` and `json` are close to it."""

    def dumps(self, value: Any, /) -> bytes: ...
    def loads(self, data: bytes, /) -> Any: ...


class StepCall(NamedTuple):
    """keylane's: what a handler has given `Context.step`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str | None
    key: str
    keep_if: Callable[[Any], bool] | None
    retries: Any
    codec: Codec | None


WaitsFor = Literal["running", "pool"]


class Context(Generic[R]):
    """What a handler may know beside its record. `Context[Session]` has a resource of that type."""

    __slots__ = (
        "_begin",
        "_budget",
        "_entered",
        "_steps",
        "_transaction",
        "_why",
        "attempt",
        "cancelled",
        "deadline",
        "is_inside",
        "resource",
    )

    def __init__(
        self,
        resource: R = None,  # type: ignore[assignment] # without one its type is None
        attempt: int = 1,
        deadline: float | None = None,
        transaction: Any = None,
        cancelled: bool = False,
    ) -> None:
        self.resource = resource
        """What the pipeline's `resource` yielded in this worker process; None without one."""
        self.attempt = attempt
        """1 for the first try of this record since it was assigned."""
        self.deadline = deadline
        """`time.monotonic()` seconds after which the result is no longer wanted; None when there is no limit."""
        self.cancelled = cancelled
        """True once the result can no longer count (the partition was lost, or the consumer is closing at once)."""
        self._transaction = transaction
        self._begin: Callable[[], Any] | None = None
        self.is_inside = False
        """keylane's: whether the transaction has begun."""

    @property
    def transaction(self) -> Any:
        """Under `delivery=ExactlyOnce(...)`: the open transaction's connection (`sqlite3.Connection`, psycopg's), which
        begins when it is first used. What is done on it is there exactly when the record counts as processed. None
        otherwise."""
        return self._transaction if self._begin is None else self._begin()

    @transaction.setter
    def transaction(self, connection: Any) -> None:
        self._transaction = connection

    @property
    def around(self) -> Any:
        """What the pipeline's `around` has yielded for this attempt; None without one."""
        return getattr(self, "_entered", None)

    @property
    def budget(self) -> Any:
        """Of a pipeline with `budget=...`: `settle(tokens=...)` says what the call really took, and `take(tokens=...)`
        waits for the turn of a further one. Raises `UsageError` where there is none: without the option, and in worker
        processes."""
        budget = getattr(self, "_budget", None)
        if budget is None:
            raise UsageError("context.budget: give Pipeline(budget=...); worker processes have none")
        return budget

    def spend_of(self, budget: Any) -> None:
        """keylane's: what this attempt spends of."""
        self._budget = budget

    def enter(self, value: Any) -> None:
        """keylane's: what `around` has yielded."""
        self._entered = value

    def step(
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        key: str = "",
        keep_if: Callable[[Any], bool] | None = None,
        retries: Any = None,
        codec: Codec | None = None,
    ) -> Any:
        """What `function(*args)` returns, which is kept durably before it is given: whenever this record runs again, on
        whichever member, that is given, and the function is not called. In a coroutine function: `await` it.

        The result is bytes, a str, or what JSON takes; or what `codec.dumps` makes bytes of, as `pickle`'s. It is known
        by `name` (the function's own if there is none), and by `key` where a record has several of that name. With
        `keep_if` a result is kept only where that says so. With `retries` (`keylane.Retries`) a call that fails is made
        again within this attempt of the record.

        Raises what the function raises, which keeps nothing; `keylane.errors.StepLostError` where the partition is
        another member's by now; and `UsageError` for what cannot be kept.
        """
        return self._kept_steps().step(self, StepCall(function, args, name, key, keep_if, retries, codec))

    def forget(self, name: str, key: str = "") -> Any:
        """Keep the step's result no longer: the next `step` of that name calls its function. In a coroutine function:
        `await` it."""
        return self._kept_steps().forget(self, name, key)

    def step_key(self, name: str, key: str = "") -> str:
        """A text that is the same whenever this step of this record is called, and no other's: for services that take
        an idempotency key."""
        return str(self._kept_steps().key(name, key))

    def keep_steps(self, steps: Any) -> None:
        """keylane's: the steps of this attempt."""
        self._steps = steps

    def _kept_steps(self) -> Any:
        steps = getattr(self, "_steps", None)
        if steps is None:
            raise UsageError(
                "context.step: this handler keeps no steps: give its Pipeline steps=keylane.Steps() (docs/steps.md)"
            )
        return steps

    @property
    def why(self) -> WaitsFor:
        """keylane's: what the handler waits for, as `WorkRecord.why`."""
        return getattr(self, "_why", "running")

    def wait_for(self, why: WaitsFor) -> None:
        """keylane's: what the handler waits for; "running" once it does not."""
        self._why = why

    def begin_with(self, begin: Callable[[], Any] | None) -> None:
        """keylane's: what begins the transaction, and gives its connection."""
        self._begin = begin
        self._transaction = None

    def has_begun(self, connection: Any) -> Any:
        """keylane's: the transaction of this connection has, and needs nothing more to be used."""
        self._begin = None
        self._transaction = connection
        return connection

    def limit(self, deadline: float | None) -> None:
        """keylane's: the result is wanted until then; None: for as long as it takes."""
        self.deadline = deadline

    def cancel(self) -> None:
        """keylane's: the result can no longer count."""
        self.cancelled = True

    @property
    def remaining_ms(self) -> int | None:
        """Milliseconds to the deadline (never below 0), or None."""
        return None if self.deadline is None else max(0, int((self.deadline - time.monotonic()) * 1000))
