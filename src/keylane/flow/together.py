"""Items that go to a worker together: `Lingering`, whether there is enough for a batch; and what becomes of those that
went together, where not all of them are simply through.

The idea of the second: items of one shard are gone in order, up to the first that has to be seen through or runs again;
those behind it wait for it in their place again. Items of different shards stand each for itself.

Pure: time is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.flow.outcomes import Failure, Later, NotRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.flow.items import Call, Carried, Chain, Source
    from keylane.flow.outcomes import Outcome
    from keylane.options import Batch


class Lingering:
    """Batches wait for their least size, and no longer than they may."""

    def __init__(self, batch: Batch | None) -> None:
        self.size = 1 if batch is None else batch.size
        """The most items in one."""
        self._min_size = 1 if batch is None else batch.min_size
        self._linger_s = 0.0 if batch is None else batch.linger_ms / 1000
        self._since: float | None = None
        """Since when there is something for a batch, and too little."""

    def end(self) -> None:
        """Nothing more is fed: they wait no longer."""
        self._min_size = 1

    def is_due(self, sources: Iterable[Source], now: float) -> bool:
        """Whether there is enough for a batch, or has been something for long enough, or something is tried again."""
        least = self._min_size
        if least > 1:
            ready = 0
            for source in sources:
                ready += source.startable(least - ready)
                if ready >= least or source.tries_again:
                    break
            else:
                if self._since is None:
                    self._since = now
                if now < self._since + self._linger_s:
                    return False
        self._since = None
        return True

    @property
    def until(self) -> float | None:
        """When what there is makes a batch, if it waits."""
        return None if self._since is None else self._since + self._linger_s


def told_apart(call: Call, end: int) -> tuple[Sequence[int], Sequence[Carried], Sequence[int], dict[int, Outcome]]:
    """Of a call's items before index `end` that were not reported before: the numbers and payloads of those that are
    through, which of them passed their shard on, and what the others came to. Now they are reported."""
    known = dict(call.outcomes)  # in one step: its worker may add to it
    outcomes = {index: known[index] for index in sorted(known) if call.first <= index < end}
    if call.ordered and outcomes:
        (end,) = outcomes
        if call.source.wanted:
            behind = slice(end + 1, len(call.numbers))
            call.source.put_back(call.numbers[behind], call.payloads[behind], behind=True)
    through = [index for index in range(call.first, end) if index not in outcomes]
    call.reported(end)
    numbers, payloads = call.numbers, call.payloads
    if len(through) < len(payloads):
        numbers, payloads = [numbers[one] for one in through], [payloads[one] for one in through]
    passed = () if not call.ordered else numbers if end < len(call.numbers) else numbers[:-1]
    return numbers, payloads, passed, outcomes


def give_back(call: Call, numbers: Sequence[int], payloads: Sequence[Carried]) -> None:
    """These of the call have not begun: they are in their place again."""
    source = call.source
    if call.item is not None:
        source.not_begun(call.item)
    elif call.ordered and len(numbers) == len(call.payloads):
        source.put_back(numbers[1:], payloads[1:], behind=True)
        source.put_back(numbers[:1], payloads[:1], behind=False)
    else:
        source.put_back(numbers, payloads, behind=call.ordered)


def undo(together: Chain) -> None:
    """The first item of a chain that is not gone goes on alone; the others wait for it again."""
    rest = together.undo()
    if rest and rest[0].source.wanted:
        rest[0].source.put_back([one.number for one in rest], [one.payload for one in rest], behind=True)


def begin_settling(together: Chain, now: float) -> None:
    """Items of one shard came back with their batch: their owner gets them, up to the first that failed."""
    held = []
    for item in together.items:
        outcome = item.outcome
        if outcome is None:
            together.results[item] = None
        elif isinstance(outcome, Failure | NotRun | Later):
            together.results[item] = outcome
            break
        else:
            together.held.add(item)
            held.append(item)
    for item in held:
        if not item.void:
            item.source.owner.ended(item, item.outcome, now)
