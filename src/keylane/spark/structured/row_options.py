"""`RowOptions`: what `parallel_map` is told, checked before Spark has anything to run.

The idea: the options are those of every flow (`keylane.options.Flow`) and mean the same; rows add columns. What rows
cannot have is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.delivery.stored_steps import check_store_of_steps
from keylane.delivery.transactions import checked_store
from keylane.errors import UsageError
from keylane.http import Calls
from keylane.options import (
    NO_PLACE_FOR_LATE,
    DeadLetter,
    Flow,
    Halt,
    Ordering,
    Processes,
    Skip,
    check_deserializer,
    check_kind,
)
from keylane.pipeline import Steps, check_has_steps
from keylane.spark.structured.dead_letters import check_columns
from keylane.spark.structured.rows import RECORD
from keylane.spark.structured.step_counts import StepCounts
from keylane.telling import ClientSettings, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType

    from keylane.spark.structured.carry_over import CarryOver

PARTITION_KEY = ("topic", "partition")

NOT_FROM_SPARK = {
    "at_most_once": "Spark runs the tasks of a batch that failed again",
    "almost_once": "Spark's checkpoint goes on batch by batch, not record by record",
    "transactional": "a stream's progress is in Spark's checkpoint, which no Kafka transaction covers",
}
"""Guarantees that are refused here, and why."""


@dataclass(frozen=True, slots=True)
class RowOptions(Flow):
    """See `keylane.spark.parallel_map`. Raises `UsageError` for any value that cannot work."""

    handler: Callable[..., Any]
    returns: str | StructType
    """Columns and types: a DDL string or a StructType."""
    _: KW_ONLY
    ordering: Ordering = "unordered"
    """"key" runs rows with the same values in the columns `key` one after another, in the order in which their task
    gets them; "partition" those of one Kafka partition."""
    key: str | Sequence[str] | None = None
    order_by: str | Sequence[str] = ()
    """Columns: rows are first brought together by key across tasks, and sorted within."""
    outcome: bool = False
    """Whether a row that failed for the last time becomes a row of nulls with its `error`, `attempts` and `seconds`."""
    carry_over: CarryOver | None = None
    """For streams that end in `acknowledged`; see docs/dataframes.md."""
    kafka: Mapping[str, Any] | None = None
    """librdkafka settings of the producer of dead letters (`on_exhausted`); `bootstrap.servers` is required."""
    key_deserializer: Callable[..., Any] | None = None
    """A function of (bytes or None, context) that makes `row.key`, as a pipeline's. Order and dead letters go by the
    bytes."""
    value_deserializer: Callable[..., Any] | None = None
    """The same for `row.value`."""
    steps: Steps | None = None
    """Keep results of `context.step` in the store of `delivery=ExactlyOnce(store)` (docs/steps.md)."""
    counts: StepCounts = field(default_factory=StepCounts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Flow.__post_init__(self)
        if self.guarantee in NOT_FROM_SPARK:
            raise UsageError(
                f"delivery={self.delivery!r} is for pipelines in one process and in lanes: "
                f"{NOT_FROM_SPARK[self.guarantee]}"
            )
        if self.guarantee == "exactly_once":
            checked_store(self)
        if isinstance(self.handler, Calls) and self.handler.on_response is None:
            raise UsageError("handler=Calls(...): a row becomes what on_response returns: give it that function")
        for name in ("key_deserializer", "value_deserializer"):
            check_deserializer(name, getattr(self, name), is_async=self.is_async)
        check_kind("steps", self.steps, (Steps, type(None)))
        if self.steps is not None:
            self._check_steps(self.steps)
        self._check_failures()
        self._check_order()
        if self.handler_timeout_ms and not self.is_async and not isinstance(self.workers, Processes):
            raise UsageError(
                "handler_timeout_ms needs what can be ended, and a thread cannot: declare the function `async def`, or "
                "run it with workers=Processes()"
            )

    def _check_steps(self, steps: Steps) -> None:
        if self.guarantee != "exactly_once":
            raise UsageError(
                "steps: rows have no commits of their own, and no member that owns them, so that nobody could keep "
                "their steps in Kafka: give delivery=ExactlyOnce(store), which keeps them, or leave steps out"
            )
        if steps.topic is not None:
            raise UsageError(f"Steps.topic={steps.topic!r}: the store keeps the steps of rows: leave it out")
        check_has_steps(self)
        check_store_of_steps(checked_store(self))

    def _check_failures(self) -> None:
        """What becomes of a row that failed for the last time is said once."""
        if self.carry_over is not None and self.outcome:
            raise UsageError("outcome=True and carry_over=…: a row that fails is carried, so no row has an error")
        if self.carry_over is not None and not isinstance(self.on_exhausted, Halt):
            raise UsageError(
                f"on_exhausted={self.on_exhausted!r} and carry_over=…: give CarryOver(dead_letter=DeadLetter(…), "
                "kafka=…), so that its lists say what is dead"
            )
        if self.outcome and isinstance(self.on_exhausted, Skip):
            raise UsageError("outcome=True and on_exhausted=Skip(): a row that fails is a row, or none: leave one out")
        gives_up = self.carry_over.dead_letter is not None if self.carry_over is not None else self.outcome
        if self.expires_ms is not None and isinstance(self.on_exhausted, Halt) and not gives_up:
            raise UsageError(NO_PLACE_FOR_LATE)
        if self.expires_ms is not None and not callable(self.expires_ms):
            raise UsageError(f"expires_ms={self.expires_ms!r} is for records: give a function of the row")
        buries = isinstance(self.on_exhausted, DeadLetter)
        if self.kafka is not None:
            if not isinstance(self.kafka, Mapping):
                raise UsageError(f"kafka is {kind_of(self.kafka)}: give a dict of librdkafka settings")
            object.__setattr__(self, "kafka", ClientSettings(self.kafka))
            if not buries:
                raise UsageError("kafka=… is for dead letters: give on_exhausted=DeadLetter(topic), or leave it out")
        if buries and not (self.kafka or {}).get("bootstrap.servers"):
            raise UsageError(
                f"on_exhausted={self.on_exhausted!r} needs kafka={{'bootstrap.servers': …}}: where its topic is"
            )

    def _check_order(self) -> None:
        if self.ordering == "key" and not self.key:
            raise UsageError("ordering='key' needs key=…: the column, or columns, whose rows stay in order")
        if self.ordering != "key" and self.key:
            raise UsageError(f"key={self.key!r} needs ordering='key'")
        if self.order_by and self.keys is None:
            raise UsageError(f"order_by={self.order_by!r} needs ordering='key' or 'partition'")
        for name, ordering in (("per_key", "key"), ("per_partition", "partition")):
            if getattr(self.rates, name) is not None and self.ordering != ordering:
                raise UsageError(f"Rates.{name} needs ordering={ordering!r}: it goes by what keeps rows in order")
        if self.traversal == "depth_first" and self.keys is None:
            raise UsageError(
                "traversal='depth_first' needs ordering='key' or 'partition': rows without an order run as they come"
            )

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The columns whose rows stay in order."""
        return PARTITION_KEY if self.ordering == "partition" else _columns(self.key) or None

    @property
    def sorted_by(self) -> tuple[str, ...]:
        return _columns(self.order_by)

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """What options need of the frame."""
        if isinstance(self.on_exhausted, DeadLetter):
            check_columns(columns)
        for name in ("key", "value"):
            if getattr(self, f"{name}_deserializer") is not None:
                if columns.get(name) != "binary":
                    raise UsageError(
                        f"{name}_deserializer: the column {name} is {columns.get(name, 'not there')}: give it the "
                        "source's bytes"
                    )
                if "topic" not in columns:
                    raise UsageError(f"{name}_deserializer is told the topic: keep the source's column topic")
        if self.tracing == "on" and (missing := sorted(RECORD - columns.keys())):
            raise UsageError(
                f"tracing='on': a span tells which record it is of, and the frame has no column {', '.join(missing)}: "
                "keep the source's, and headers (the option includeHeaders) for the trace that they name"
            )


def _columns(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())
