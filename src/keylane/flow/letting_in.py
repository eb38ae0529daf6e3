"""`let_in`, `let_in_batch`: of what a source would hand over, what its keys' rules let go (`keylane.flow.keys`). Pure.

The idea: what is stopped leaves the hand-over before anybody has it, and what it was taken with goes on. What would
follow it in its shard is in its place again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.flow.items import Call
from keylane.flow.together import undo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.flow.items import Item
    from keylane.flow.keys import KeyGate


def let_in(calls: list[Call], gate: KeyGate, now: float) -> list[Call]:
    """Those whose keys may run now; the same list where all may. Of several in one call the others go on; what follows
    a stopped one in its shard waits for it."""
    if gate.is_about_none([one for call in calls for one in (call.payloads[:1] if call.ordered else call.payloads)]):
        return calls
    passed: list[Call] = []
    for call in calls:
        stopped = gate.about(call.payloads[:1] if call.ordered else call.payloads)
        if not stopped:
            passed.append(call)
            continue
        source, numbers, payloads = call.source, call.numbers, call.payloads
        if len(numbers) == 1:
            if _goes(call.item_at(0), gate, now):
                passed.append(call)
            continue
        if call.ordered:
            source.put_back(numbers[1:], payloads[1:], behind=True)
        elif others := [at for at in range(len(numbers)) if at not in stopped]:
            passed.append(Call(source, [numbers[at] for at in others], [payloads[at] for at in others], now))
        for at in stopped:
            goes = _goes(call.item_at(at), gate, now)
            assert not goes, "what a limit lets in goes alone"
    return passed


def let_in_batch(items: Iterable[Item], gate: KeyGate, now: float) -> list[Item]:
    """The same of what one source gives for a batch."""
    passed = []
    for item in items:
        if item.void:  # the first of its shard was stopped
            continue
        together = item.chain
        is_first = together is None or together.head is item
        if is_first and gate.about((item.payload,)):
            if together is not None:
                undo(together)
            if not _goes(item, gate, now):
                continue
        passed.append(item)
    return passed


def _goes(item: Item, gate: KeyGate, now: float) -> bool:
    """Whether it does; else it waits in the gate, or is its owner's."""
    if item.source.is_due(item.number):  # it has run
        return True
    verdict = gate.admit(item, now)
    if verdict == "wait":
        item.source.put_off()
    elif verdict != "go":
        item.source.owner.ended(item, verdict, now)
    return verdict == "go"
