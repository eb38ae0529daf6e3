"""What a dead letter's headers say: keylane's are written and read here, those of others are read.

The idea: a dead letter is the record as it was, and headers behind its own. Which those are depends on who buried it: a
`Set` each (keylane, Spring, Connect, Kafka Streams, share groups). Where a letter has several, the one that begins last
is of its last death. `read` parts a letter's headers into the record's own and what its deaths left, and `redriven`
puts one set in place of all of those, with one more round.

Sources: spring-kafka's `KafkaHeaders` and `DeadLetterPublishingRecoverer` (numbers are big-endian bytes there, and text
everywhere else); KIP-298 (`__connect.errors.`); KIP-1034 (`__streams.errors.`); KIP-1191 (`__dlq.errors.`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keylane.errors import ParkedError
from keylane.foreign_errors import class_of, printable, text_of
from keylane.records import Output, carried_headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.flow.outcomes import Failure
    from keylane.records import Message, Record

    Headers = list[tuple[str, bytes | None]]
    Place = tuple[str, int, int]
    """Topic, partition and offset."""

ROUNDS = "keylane.rounds"
"""How often a record came back from the dead; it stays with the record when that dies again."""


@dataclass(frozen=True, slots=True)
class Set:
    """The headers that one kind of dead letter has: their names, by what they say."""

    kind: str
    topic: str
    partition: str
    offset: str
    error: str = ""
    """The error's class."""
    text: str = ""
    timestamp: str = ""
    attempts: str = ""
    steps: str = ""
    """Names of the steps that were done."""
    cause: str = ""
    """Class of the error's cause, which says more than the wrapper's."""
    prefix: str = ""
    """Every header that begins so is of the set."""
    others: tuple[str, ...] = ()
    """Headers of the set that are not read."""
    binary: bool = False
    """Whether numbers are big-endian bytes, and no text."""

    def names(self) -> frozenset[str]:
        named = (self.topic, self.partition, self.offset, self.error, self.text, self.timestamp, self.attempts)
        return frozenset(one for one in (*named, self.steps, self.cause, *self.others) if one)

    def has(self, name: str) -> bool:
        return name in self.names() or bool(self.prefix and name.startswith(self.prefix))


RETRY_TOPIC = ("retry_topic-attempts", "retry_topic-original-timestamp", "retry_topic-backoff-timestamp")
"""Of Spring's retries in topics of their own: a record that comes back begins anew."""


def _spring(prefix: str) -> Set:
    return Set(
        "spring",
        topic=f"{prefix}original-topic",
        partition=f"{prefix}original-partition",
        offset=f"{prefix}original-offset",
        timestamp=f"{prefix}original-timestamp",
        error=f"{prefix}exception-fqcn",
        cause=f"{prefix}exception-cause-fqcn",
        text=f"{prefix}exception-message",
        prefix=prefix if prefix == "kafka_dlt-" else "",
        others=(
            *(f"{prefix}original-{one}" for one in ("timestamp-type", "consumer-group")),
            *(f"{prefix}{one}" for one in ("exception-stacktrace", "key-exception-fqcn", "key-exception-message")),
            f"{prefix}key-exception-stacktrace",
            *RETRY_TOPIC,
        ),
        binary=True,
    )


MAX_DIGITS = 19
"""Of a number in text: any other one was written by nobody who buries."""

OURS = Set(
    "keylane",
    topic="keylane.topic",
    partition="keylane.partition",
    offset="keylane.offset",
    timestamp="keylane.timestamp",
    error="keylane.error.class",
    text="keylane.error.text",
    attempts="keylane.attempts",
    steps="keylane.steps",
)

SETS = (
    OURS,
    _spring("kafka_dlt-"),
    _spring("kafka_"),  # of @RetryableTopic
    Set(
        "connect",
        topic="__connect.errors.topic",
        partition="__connect.errors.partition",
        offset="__connect.errors.offset",
        error="__connect.errors.exception.class.name",
        text="__connect.errors.exception.message",
        prefix="__connect.errors.",
    ),
    Set(
        "streams",
        topic="__streams.errors.topic",
        partition="__streams.errors.partition",
        offset="__streams.errors.offset",
        error="__streams.errors.exception",
        text="__streams.errors.message",
        prefix="__streams.errors.",
    ),
    Set(
        "share group",
        topic="__dlq.errors.topic",
        partition="__dlq.errors.partition",
        offset="__dlq.errors.offset",
        text="__dlq.errors.message",
        attempts="__dlq.errors.delivery.count",
        prefix="__dlq.errors.",
    ),
)


# --- writing ---


def dead_letter(message: Message, topic: str, failure: Failure, attempts: int) -> Output:
    """The record as it was, with headers that say where it came from and what failed."""
    place = (message.topic(), message.partition(), message.offset())
    said = said_of(place, message.timestamp()[1], failure.error, attempts)
    return Output(
        topic, key=message.key(), value=message.value(), headers=[*as_it_was(carried_headers_of(message)), *said]
    )


def parked(record: Record, topic: str, why: str) -> Output:
    """A record that an operator sets aside, as it was, with headers that say where it came from."""
    place = (record.topic, record.partition, record.offset)
    said = said_of(place, record.timestamp_ms, ParkedError(why), 0)
    headers = [*as_it_was(carried_headers_of(record.message)), *said]
    return Output(topic, key=record.raw_key, value=record.raw_value, headers=headers)


SHORT = 100
"""Characters of an error's text in a letter that is too large with all of it."""


def shorter(letter: Output) -> Output | None:
    """A letter with less of what keylane says of the error: a short text, then none; where the record was stays. None,
    where there is nothing left to cut."""
    said = dict(letter.headers)
    text = said.get(OURS.text)
    if text is not None and len(text) > SHORT:
        less = text[:SHORT].decode("utf-8", "ignore").encode()
        return replace(letter, headers=[(name, less if name == OURS.text else value) for name, value in letter.headers])
    left_out = {OURS.text, OURS.error, OURS.timestamp, OURS.steps}
    if left_out.isdisjoint(said):
        return None
    return replace(letter, headers=[one for one in letter.headers if one[0] not in left_out])


def as_it_was(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """A record's headers without what keylane says of an earlier death; how often it came back stays. A zero character
    in a name, at which clients would cut it, is written out."""
    return [(name.replace("\0", "\\0"), value) for name, value in headers if name not in _OURS]


_OURS = OURS.names()


def said_of(
    place: Place | None, timestamp_ms: int | None, error: BaseException, attempts: int
) -> list[tuple[str, bytes]]:
    """What a dead letter's headers say of a record, by its topic, partition and offset; what is not known is left
    out."""
    topic, partition, offset = place or (None, None, None)
    what, steps = (class_of(error), text_of(error)), noted_steps(error, place)
    return _said(Death("keylane", topic, partition, offset, timestamp_ms, *what, attempts, steps))


def _said(death: Death) -> list[tuple[str, bytes]]:
    text = death.error_text
    said = {
        OURS.topic: death.topic,
        OURS.partition: death.partition,
        OURS.offset: death.offset,
        OURS.timestamp: death.timestamp_ms,
        OURS.error: death.error_class,
        OURS.text: None if text is None else printable(text),
        OURS.attempts: death.attempts,
        OURS.steps: death.steps,
    }
    return [(key, str(value).encode()) for key, value in said.items() if value is not None]


# --- steps that were done ---

MOST_STEPS = 50
"""That a letter names."""
_NOTED = "_keylane_steps"


def note_steps(error: BaseException, place: Place, names: Sequence[str]) -> None:
    """An attempt at the record in this place has failed with the error, after it was through with these steps. They
    travel with the error: a user's wrapper around it has none."""
    error.__dict__[_NOTED] = (place, json.dumps(names[:MOST_STEPS]))


def noted_steps(error: BaseException, place: Place | None) -> str | None:
    """The same, where it is of that place: one error may be raised for many records."""
    noted, names = error.__dict__.get(_NOTED, (None, None))
    return names if noted == place else None


# --- reading ---


@dataclass(frozen=True, slots=True)
class Death:
    """What a letter says of the record's death; None is what it does not say."""

    kind: str = "unknown"
    """`keylane`, `spring`, `connect`, `streams`, `share group`; `unknown` without such headers."""
    topic: str | None = None
    """Where the record was, with `partition` and `offset`."""
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    """The record's own, in milliseconds since the epoch."""
    error_class: str | None = None
    error_text: str | None = None
    attempts: int | None = None
    steps: str | None = None
    """Names of the steps that were done, as JSON."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter's headers, parted."""

    death: Death
    rounds: int
    """How often the record came back from the dead before."""
    headers: Headers
    """The record's own."""


def read(headers: Iterable[tuple[str, bytes | None]]) -> Letter:
    """What a dead letter says. A header that cannot be read counts as not there."""
    own: Headers = []
    said: dict[Set, dict[str, list[bytes]]] = {}
    rounds = 0
    for name, value in headers:
        if name == ROUNDS:
            rounds = max(rounds, _number(value or b"", binary=False) or 0)
        elif (of := next((one for one in SETS if one.has(name)), None)) is not None:
            said.setdefault(of, {}).setdefault(name, []).append(value or b"")
        else:
            own.append((name, value))
    deaths = [(of, names) for of, names in said.items() if not {of.topic, of.error, of.text}.isdisjoint(names)]
    return Letter(_death(*deaths[-1]) if deaths else Death(), rounds, own)


def _death(of: Set, said: Mapping[str, list[bytes]]) -> Death:
    def text(name: str) -> str | None:
        return said[name][-1].decode("utf-8", "replace") if said.get(name) else None

    def number(name: str) -> int | None:
        """The first one: Spring adds another place when a letter's own consumer fails; the record's is the first."""
        return _number(said[name][0], binary=of.binary) if said.get(name) else None

    first_topic = said.get(of.topic, [b""])[0].decode("utf-8", "replace")
    return Death(
        of.kind,
        first_topic or None,
        number(of.partition),
        number(of.offset),
        number(of.timestamp),
        text(of.cause) or text(of.error),
        text(of.text),
        number(of.attempts),
        text(of.steps),
    )


def _number(value: bytes, *, binary: bool) -> int | None:
    if binary:
        return int.from_bytes(value, signed=True) if len(value) in (4, 8) else None
    text = value.decode("utf-8", "replace")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


# --- coming back ---


def redriven(letter: Letter) -> Headers:
    """The headers of a record that comes back: its own, and one set that says how it died, with one more round."""
    return [*letter.headers, *_said(letter.death), (ROUNDS, str(letter.rounds + 1).encode())]
