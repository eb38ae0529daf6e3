"""What is asked of a consumer while it runs (`pause`, `resume`, `adjust`, rules by key), and what holds of it:
`Settings`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.consumer.start import TopicPartition
    from keylane.flow.keys import KeyRule
    from keylane.options import Rates

Change: TypeAlias = Pause | Resume | Adjust | RuleKeys


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds from now on, also for a consumer that starts later."""

    all_paused: bool = False
    paused: frozenset[TopicPartition] = frozenset()
    max_concurrency: int | None = None
    rates: Rates | None = None
    keys: tuple[KeyRule, ...] = ()

    def after(self, change: Change) -> Settings:
        match change:
            case Pause(None):
                return replace(self, all_paused=True)
            case Resume(None):
                return replace(self, all_paused=False, paused=frozenset())
            case Pause(names):
                return replace(self, paused=self.paused.union(names or ()))
            case Resume(names):
                return replace(self, paused=self.paused.difference(names or ()))
            case Adjust(most, rates):
                most = self.max_concurrency if most is None else most
                return replace(self, max_concurrency=most, rates=self.rates if rates is None else rates)
            case RuleKeys(rules):
                return replace(self, keys=rules)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What brings a new consumer here."""
        made: list[Change] = []
        if self.all_paused:
            made.append(Pause(None))
        if self.paused:
            made.append(Pause(tuple(sorted(self.paused))))
        if self.max_concurrency is not None or self.rates is not None:
            made.append(Adjust(self.max_concurrency, self.rates))
        if self.keys:
            made.append(RuleKeys(self.keys))
        return tuple(made)


class Adjustable(Protocol):
    """A consumer, or a query of lanes."""

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None: ...
    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None: ...
    def adjust(self, *, max_concurrency: int | None = None, rates: Rates | None = None) -> None: ...
    def rule_keys(self, rules: tuple[KeyRule, ...]) -> None: ...


def apply(consumer: Adjustable, change: Change) -> None:
    """Ask this of it."""
    match change:
        case Pause(names):
            consumer.pause(names)
        case Resume(names):
            consumer.resume(names)
        case Adjust(max_concurrency, rates):
            consumer.adjust(max_concurrency=max_concurrency, rates=rates)
        case RuleKeys(rules):
            consumer.rule_keys(rules)
