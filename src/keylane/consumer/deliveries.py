"""Outputs, dead letters and results: what has to be seen through before a record is complete.

The idea: a `Delivery` is all that one attempt of one record produces. The record is complete when each of it is
acknowledged (docs/adr/0004); one failure makes the whole delivery a failed attempt. What user code is to see of it
comes after that, in the order of the record's shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.consumer.dead_letters import dead_letter, shorter
from keylane.consumer.outputs import Delivery
from keylane.consumer.own_topics import OwnTopics
from keylane.consumer.parked import Parked
from keylane.errors import HandlerError, ParkedError, RecordTooLargeError
from keylane.flow.keys import PassedOver
from keylane.flow.outcomes import Failure
from keylane.flow.retries import Schedule, backoff_s
from keylane.foreign_errors import line_of, logged_line_of, one_line
from keylane.options import DeadLetter, Skip

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable

    from keylane.consumer.outputs import Answer, ResultsMoved, ResultsRule
    from keylane.flow.core import FlowCore
    from keylane.flow.items import Item
    from keylane.flow.outcomes import Notes, NotRun, Outcome
    from keylane.pipeline import Pipeline
    from keylane.records import Message, Output
    from keylane.telling import Log


class DeadLetterState:
    """A record on its way to the dead-letter topic."""

    __slots__ = ("attempts", "failure", "letter", "parked", "topic", "tries")

    def __init__(self, failure: Failure, attempts: int, topic: str, parked: Parked | None = None) -> None:
        self.failure = failure
        self.topic = topic
        self.parked = parked
        """Set, where an operator has set it aside."""
        self.attempts = attempts
        """Attempts of the handler."""
        self.tries = 1
        """Attempts to deliver the dead letter."""
        self.letter: Output | None = None
        """What is produced, once it is made; shorter than at first, if it was too large."""

    def try_again(self) -> None:
        self.tries += 1

    def made(self, message: Message) -> Output:
        """The letter."""
        if self.letter is None:
            self.letter = dead_letter(message, self.topic, self.failure, self.attempts)
        return self.letter

    def shorten(self) -> bool:
        """Say less in the letter; returns whether there was something to leave out."""
        less = None if self.letter is None else shorter(self.letter)
        self.letter = less or self.letter
        return less is not None


class Deliveries:
    """What is seen through for records, by whom, and what follows. Thread safety: none; its owner is the loop."""

    def __init__(
        self,
        pipeline: Pipeline,
        flow: FlowCore,
        rule: ResultsRule,
        counters: Counter[str],
        *,
        halt: Callable[[BaseException, float], None],
        notes: Notes,
        random: Callable[[], float],
        log: Log,
    ) -> None:
        self._flow = flow
        self._rule = rule
        self._counters = counters
        self._halt = halt
        self._notes = notes
        self._random = random
        self._log = log
        self._own_topics = OwnTopics(pipeline)
        self._retries = pipeline.tries
        self._on_exhausted = pipeline.on_exhausted
        self._produce: list[Delivery] = []
        self._results: list[Delivery] = []
        self._to_show: dict[Item, Delivery] = {}
        """Acknowledged results that wait for earlier ones of their shard."""
        self._dead: dict[Item, DeadLetterState] = {}
        self._schedule = Schedule()
        """Dead letters that wait for another attempt."""
        self.delivering = 0
        """Records that wait for the acknowledgement of their outputs, or for results to be seen."""
        self._unseen = rule.waiting
        """Results that wait for a callback or a reader."""

    @property
    def unseen(self) -> int:
        return self._unseen

    @property
    def too_many_unseen(self) -> bool:
        """Whether nothing new may start until results are seen."""
        return self._unseen >= self._rule.max_unseen

    @property
    def next_due(self) -> float | None:
        return self._schedule.next_due

    def release_due(self, now: float) -> None:
        """Let go on what has waited long enough."""
        for item in self._schedule.pop_due(now):
            item.source.back_out()
            item.begin(now)
            self._bury(item)

    def pop_results(self) -> list[Delivery]:
        """Which to show; each is handed out once."""
        popped, self._results = self._results, []
        return popped

    def pop_outputs(self) -> list[Delivery]:
        """What to produce; each is handed out once."""
        popped, self._produce = self._produce, []
        return popped

    def drop_outputs(self) -> list[Delivery]:
        """The same, without what nobody wants any more."""
        popped = self.pop_outputs()
        wanted = [one for one in popped if one.wanted]
        self.delivering -= len(popped) - len(wanted)
        self._counters["stale"] += len(popped) - len(wanted)
        return wanted

    @property
    def has_outputs(self) -> bool:
        return bool(self._produce)

    def forget_closed(self) -> None:
        """Partitions were closed."""
        self._schedule.forget_closed()
        self._dead = {item: state for item, state in self._dead.items() if item.source.wanted}
        self._to_show = {item: one for item, one in self._to_show.items() if item.source.wanted}

    # --- what a handler returned, or failed with for the last time ---

    def ended(self, item: Item, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Failure):
            self._given_up(item, outcome, now)
        elif isinstance(outcome, PassedOver):
            self._log.info("skipped %s: by an operator, and not processed", item.name)
            self._counters["skipped"] += 1
            self._flow.release(item, now)
        elif isinstance(outcome, Parked):
            self._log.info("to the dead-letter topic %r, by an operator: %s", outcome.dlq, item.name)
            failure = Failure(ParkedError(outcome.why), final=True)
            self._dead[item] = DeadLetterState(failure, item.attempt - 1, outcome.dlq, outcome)
            self._bury(item)
        elif (refused := self._own_topics.refused(outcome)) is not None:
            self._flow.fail(item, refused, now)
        else:
            self._deliver(Delivery(item, outcome), now)

    def failed_before(self, item: Item, failure: Failure, dead: DeadLetterState | None, now: float) -> None:
        """The turn of one has come whose delivery failed in an epoch before this one."""
        if dead is None:
            self._flow.fail(item, failure, now)
        else:
            self._dead[item] = dead
            self._not_buried(item, failure, now)

    def _given_up(self, item: Item, failure: Failure, now: float) -> None:
        """There is no other attempt: a dead letter, a skip, or the end of the run."""
        rule = self._on_exhausted
        attempts = item.attempt - failure.is_expiry
        reason = f"{item.name}: {line_of(failure.error)}; failed {_attempts(attempts)}"
        told = f"{item.name}: {logged_line_of(failure.error)}; failed {_attempts(attempts)}"
        if failure.halts:
            self._flow.tell_failed(item, failure, "halted")
            self._end_run(item, f"{item.name}: {one_line(failure.error)}", failure, now)
        elif isinstance(rule, Skip):
            self._flow.tell_failed(item, failure, "skipped")
            self._log.info("skipped %s", told)
            self._counters["skipped"] += 1
            self._flow.release(item, now)
        elif isinstance(rule, DeadLetter):
            self._flow.tell_failed(item, failure, "dead_lettered")
            self._log.info("to the dead-letter topic %r: %s", rule.topic, told)
            self._dead[item] = DeadLetterState(failure, attempts, rule.topic)
            self._bury(item)
        else:
            self._flow.tell_failed(item, failure, "halted")
            way_out = "mend the handler and start again, or set on_exhausted to DeadLetter or Skip"
            self._end_run(item, f"{reason}; {way_out}", failure, now)

    def _end_run(self, item: Item, text: str, failure: Failure, now: float) -> None:
        item.source.put_off()  # it is neither gone nor runs again
        self._dead.pop(item, None)
        error = HandlerError(text)
        error.__cause__ = failure.error
        self._halt(error, now)

    def _bury(self, item: Item) -> None:
        dead = self._dead[item]
        self._send(Delivery(item, (dead.made(item.payload),), is_dead_letter=True))

    def _not_buried(self, item: Item, failure: Failure, now: float) -> None:
        """A dead letter was not acknowledged. It has as many attempts as a record; that it was too large is none, while
        there is something of keylane's own to leave out."""
        if isinstance(failure.error, RecordTooLargeError) and self._dead[item].shorten():
            self._log.warning("the dead letter of %s says less of its error: %s", item.name, one_line(failure.error))
            self._bury(item)
            return
        self._notes.note(failure, item.name, item.attempt, now)
        self._counters["failed"] += 1
        dead = self._dead[item]
        if self._retries.allow(dead.tries):
            dead.try_again()
            self._counters["retried"] += 1
            item.source.put_off()
            self._schedule.add(item, now + backoff_s(self._retries, dead.tries - 1, self._random))
            return
        if dead.parked is not None:
            del self._dead[item]
            dead.parked.fail(f"its letter could not be produced to {dead.topic!r}: {line_of(failure.error)}")
            self._flow.run_again(item, now)
            return
        text = (
            f"{item.name}: {line_of(dead.failure.error)}; failed {_attempts(dead.attempts)}, and its dead letter could "
            f"not be produced to {dead.topic!r}: {line_of(failure.error)}; {_way_out(failure.error)}"
        )
        self._end_run(item, text, dead.failure, now)

    # --- outputs ---

    def _deliver(self, delivery: Delivery, now: float) -> None:
        if delivery.outputs:
            self._send(delivery)
        else:
            self._succeeded(delivery, now)

    def _send(self, delivery: Delivery) -> None:
        self.delivering += 1
        self._produce.append(delivery)

    def delivered(self, answers: Iterable[Answer], now: float, is_undone: Callable[[Delivery], bool]) -> None:
        """The broker acknowledged outputs, or refused them; `is_undone`: whether that has ended their transaction."""
        for answer in answers:
            delivery = answer.delivery
            self._counters["produced"] += answer.error is None
            if not delivery.answered(answer):
                continue
            self.delivering -= 1
            if is_undone(delivery):
                continue
            if not delivery.wanted:
                self._counters["stale"] += 1
            elif delivery.is_dead_letter:
                self._buried(delivery, now)
            elif delivery.error is None:
                self._succeeded(delivery, now)
            else:
                self._came_to(delivery, Failure(delivery.error), now)

    def _buried(self, delivery: Delivery, now: float) -> None:
        item = delivery.item
        if delivery.error is not None:
            self._not_buried(item, Failure(delivery.error), now)
        else:
            self._counters["dead_lettered"] += 1
            del self._dead[item]
            self._flow.release(item, now)

    def dead_state(self, item: Item) -> DeadLetterState | None:
        """Of one that is on its way to the dead-letter topic."""
        return self._dead.get(item)

    # --- results ---

    def _succeeded(self, delivery: Delivery, now: float) -> None:
        """All outputs are acknowledged: complete, unless user code is to see the result first, in the shard's order."""
        together = delivery.item.chain
        if not self._rule.wants(delivery):
            self._came_to(delivery, None, now)
        elif together is None or together.head is delivery.item:
            self._show(delivery)
        else:
            self._to_show[delivery.item] = delivery

    def _show(self, delivery: Delivery) -> None:
        self.delivering += 1
        self._unseen += 1
        self._results.append(delivery)

    def results_moved(self, event: ResultsMoved[Delivery], now: float) -> None:
        """Callbacks or a reader have seen results, or will not."""
        self._unseen -= len(event.passed)
        self.delivering -= len(event.settled)
        for delivery, outcome in event.settled:
            self._came_to(delivery, outcome, now)

    def _came_to(self, delivery: Delivery, outcome: Failure | NotRun | None, now: float) -> None:
        """What an attempt came to whose handler succeeded."""
        item, together = delivery.item, delivery.item.chain
        if not delivery.wanted:
            self._counters["stale"] += 1
        elif outcome is None:
            self._counters["processed"] += 1
            self._flow.release(item, now)
        elif isinstance(outcome, Failure):
            self._flow.fail(item, outcome, now)
        else:
            self._flow.run_again(item, now)
        if together is not None and self._to_show:
            for one in together.items:
                if one.void:
                    self._to_show.pop(one, None)
            if together.head in self._to_show:
                self._show(self._to_show.pop(together.head))


def _way_out(error: BaseException) -> str:
    """Of a letter that no attempt has brought to its topic."""
    if isinstance(error, RecordTooLargeError):
        return "raise what the topic takes, or set on_exhausted to Skip, and start again"
    return "check that topic and start again"


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count != 1 else ''}"
