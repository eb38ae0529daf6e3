"""Dead letters of rows: the record that a row is, with headers that say what failed.

The idea: a row is a record as far as its columns go, by the names of the source's and the sink's: `value`, and `key`,
`headers`, `timestamp`, `topic`, `partition` and `offset` where they are there. They are produced as they come, and
acknowledged before the task gives back what follows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.consumer.dead_letters import as_it_was, said_of
from keylane.errors import HandlerError, InternalError, UsageError
from keylane.records import Output
from keylane.spark.structured.rows import RECORD, bytes_of, headers_of, name_of, place_of, timestamp_ms_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from keylane.kafka.bulk import BulkProducer
    from keylane.kafka.sizes import Limits
    from keylane.spark.structured.rows import TaskRow

logger = logger_of("keylane.spark")

KINDS = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""The columns that make a dead letter, and the types that they may have."""


def check_columns(columns: Mapping[str, str]) -> None:
    """Raises `UsageError` when rows of these columns (names and types) make no dead letter, or one without what a
    column of another case holds."""
    for other in columns:
        if (name := other.lower()) in {*KINDS, *RECORD} and name not in columns:
            raise UsageError(
                f"on_exhausted=DeadLetter(...): the frame has a column {other!r}, and a dead letter is made of "
                f"{name!r}: rename it, .withColumnRenamed({other!r}, {name!r}), or give it a name of another meaning"
            )
    if "value" not in columns:
        raise UsageError(
            "on_exhausted=DeadLetter(...): the frame has no column 'value', which a dead letter's value is made of; "
            "keep the source's, or make one: .withColumn('value', to_json(struct('*')))"
        )
    for name, kinds in KINDS.items():
        if name in columns and columns[name] not in kinds:
            raise UsageError(
                f"on_exhausted=DeadLetter(...): the column {name} is {columns[name]}, and a dead letter's is "
                f"{' or '.join(kinds)}; cast it, or give it another name"
            )


def dead_letter(dead: TaskRow, topic: str) -> Output:
    """The record as it was, with the headers of `keylane.DeadLetter`."""
    row, error = dead.row, dead.error
    if error is None:
        raise InternalError(f"{name_of(row, dead.number)}: dead, and nothing failed")
    said = said_of(place_of(row), timestamp_ms_of(row), error, dead.attempts)
    return Output(topic, bytes_of(row, "key"), bytes_of(row, "value"), [*as_it_was(headers_of(row)), *said])


class DeadLetters:
    """What a task buries. Thread safety: one thread."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self._topic = topic
        self._settings = settings
        self._producer: BulkProducer | None = None
        """Made for the first one."""
        self._limits: Limits | None = None

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is not None:
            self._producer.__exit__(kind, error, trace)

    @property
    def delivered(self) -> int:
        """Those that the broker has acknowledged."""
        return 0 if self._producer is None else self._producer.delivered

    def bury(self, dead: TaskRow) -> None:
        """Raises `HandlerError` for a record of the dead-letter topic itself, which would come back without end."""
        name = name_of(dead.row, dead.number)
        if (place := place_of(dead.row)) is not None and place[0] == self._topic:
            raise HandlerError(
                f"{name}: on_exhausted: the dead-letter topic is {self._topic!r}, which the query reads itself and "
                "would feed without end: name another one"
            ) from dead.error
        logger.info("to the dead-letter topic %r: %s", self._topic, name)
        if self._producer is None:
            from keylane.kafka.bulk import BulkProducer
            from keylane.kafka.letters_topic import warn_of_letters
            from keylane.kafka.missing_topics import NO_NEW_TOPICS
            from keylane.kafka.sizes import Limits

            self._producer = BulkProducer(self._settings["bootstrap.servers"], NO_NEW_TOPICS | dict(self._settings))
            self._limits = Limits(self._settings)
            warn_of_letters(self._settings, self._topic)
        assert self._limits is not None
        self._producer.produce(self._limits.fitted(dead_letter(dead, self._topic)))

    def acknowledged(self) -> None:
        """Waits until the broker has all. Raises `PeerError` when it does not take one."""
        if self._producer is not None:
            self._producer.flush()
