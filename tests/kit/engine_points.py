"""The points between the engine's steps at which a crash tells what a delivery guarantee is worth: `lay_points`.

The second file of the proofs, beside `kit.engines`, that names the engine's own classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from keylane.consumer.core import Core
from keylane.consumer.intake import Intake
from keylane.flow.items import Batch
from keylane.kafka.consumer import KafkaConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.flow.items import Unit

Point = Literal["dispatched", "inside", "done", "requested", "acknowledged"]
"""Handed over and not begun; in the handler; the effect is there (an output is acknowledged), and the engine does not
know it; the commit was made, and its answer did not arrive; the answer has arrived."""


_listening: list[Callable[..., None]] = []
"""Whoever is told of points in this process: nobody yet, or one."""


def lay_points(at: Callable[..., None]) -> None:
    """From now on `at(point, times)` is called between the engine's steps, in this process; who was told before is not
    told any more. (Spark's Python workers serve one lane after another.)"""
    if not _listening:
        _lay(lambda point, times=1: _listening[0](point, times))
    _listening[:] = [at]


def _lay(at: Callable[..., None]) -> None:
    plan, completed, delivered, answered = Core.plan, Core.calls_ended, Core.delivered, Core.commit_answered
    commit_now, on_committed = KafkaConsumer.commit_now, Intake.on_committed
    transaction_answered = Core.transaction_answered

    def planned(self: Core, now: float) -> Any:
        made = plan(self, now)
        at("dispatched", len(made.dispatch))
        return made

    def has_completed(self: Core, units: Sequence[Unit], now: float) -> None:
        at("done", sum(map(_through, units)))  # else it has an output
        completed(self, units, now)

    def was_delivered(self: Core, answers: Any, now: float) -> None:
        at("done", sum(answer.error is None for answer in answers))
        delivered(self, answers, now)

    def has_answered(self: Core, entries: Any, problems: Any, now: float, sent: Any = None) -> None:
        answered(self, entries, problems, now, sent)
        at("acknowledged", not problems)

    def has_committed(self: Intake, problems: Any) -> None:
        at("requested", not problems)
        on_committed(self, problems)

    def committed_now(self: KafkaConsumer, offsets: Any, timeout_s: float | None = None) -> Any:
        problems = commit_now(self, offsets, timeout_s)
        at("requested", not problems)
        return problems

    def has_ended(self: Core, event: Any, now: float) -> None:
        at("requested", event.step == "commit" and event.problem is None)
        transaction_answered(self, event, now)

    Core.plan, Core.calls_ended, Core.commit_answered = planned, has_completed, has_answered  # type: ignore[method-assign]
    Core.delivered, Core.transaction_answered = was_delivered, has_ended  # type: ignore[method-assign]
    Intake.on_committed = has_committed  # type: ignore[method-assign]
    KafkaConsumer.commit_now = committed_now  # type: ignore[method-assign]


def _through(unit: Unit) -> int:
    """How many of its records are through."""
    if isinstance(unit, Batch):
        return sum(item.outcome is None for item in unit.items)
    end = min(unit.outcomes, default=len(unit)) if unit.ordered else len(unit)
    return sum(index not in unit.outcomes for index in range(unit.first, end))
