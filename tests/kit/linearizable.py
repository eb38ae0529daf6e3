"""`why_not`: whether a history of one group's commits, conditional commits and reads can have happened one by one.

Every operation took effect whole, at one moment between its begin and its answer, on the state that all before it
left. An operation without an answer took effect at some moment after its begin, or never. The search is the one of
Wing and Gong, with Lowe's memory of what was tried: of the operations that may come next, by time, each is tried whose
answer fits the state.

Sources: Herlihy and Wing 1990; Lowe 2017, "Testing for linearizability".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

State = tuple[int, ...]
"""The offset of each partition; -1 for none."""


@dataclass(slots=True)
class Operation:
    """One request, as its client saw it."""

    kind: str
    """`commit`, `commit_if` or `fetch`."""
    began: int
    changes: dict[int, int] = field(default_factory=dict)
    """By partition, the new offset; -1 ends it."""
    expected: dict[int, int] = field(default_factory=dict)
    """Of a conditional commit."""
    ended: int | None = None
    """None: without an answer."""
    found: dict[int, int] | None = None
    """What a fetch, or a refused condition, was told; None when it has changed what it was to change."""

    def after(self, state: State) -> State | None:
        """The state behind it; None when its answer does not fit."""
        if self.found is not None:
            if any(state[partition] != offset for partition, offset in self.found.items()):
                return None
            is_refusal = self.kind == "commit_if"
            return None if is_refusal and self._holds(state) else state
        if self.kind == "fetch":
            return state  # without an answer
        if not self._holds(state):
            return None
        return tuple(self.changes.get(partition, offset) for partition, offset in enumerate(state))

    def _holds(self, state: State) -> bool:
        return all(state[partition] == offset for partition, offset in self.expected.items())


def why_not(history: Sequence[Operation], partitions: int) -> str | None:
    """None for a history that is linearizable; else the operations that do not fit behind the longest prefix."""
    operations = _needed(history)
    answered = sum(1 << number for number, one in enumerate(operations) if one.ended is not None)
    start: tuple[int, State] = (0, (-1,) * partitions)
    tried = {start}
    front = [start]
    longest, best = -1, start
    while front:
        done, state = front.pop()
        if done & answered == answered:
            return None
        if (count := (done & answered).bit_count()) > longest:
            longest, best = count, (done, state)
        for number, after in _next(operations, done, state):
            reached = (done | 1 << number, after)
            if reached not in tried:
                tried.add(reached)
                front.append(reached)
    done, state = best
    left = [one for number, one in enumerate(operations) if not done >> number & 1]
    return f"at state {state}, {longest} operations on, none of these fits: " + "; ".join(map(str, left[:6]))


def _needed(history: Sequence[Operation]) -> list[Operation]:
    """By begin, without what has no answer and that no answer can rest on: fetches, and offsets that nobody saw."""
    seen = {-1}
    for one in history:
        if one.ended is not None:
            seen.update((one.found or {}).values())
        seen.update(one.expected.values())
    needed = [one for one in history if one.ended is not None or seen & set(one.changes.values())]
    return sorted(needed, key=lambda one: one.began)


def _next(operations: Sequence[Operation], done: int, state: State) -> list[tuple[int, State]]:
    """What may come next, and the state behind it; what is to be tried first is the last."""
    left = [(number, one) for number, one in enumerate(operations) if not done >> number & 1]
    # Nothing can come behind an operation that began after its end.
    limit = min(one.ended for _, one in left if one.ended is not None)
    found, optional, alike = [], [], set()
    for number, one in left:
        if one.began > limit:
            break
        after = one.after(state)
        if after is None:
            continue
        if one.ended is None:
            what = (*one.changes.items(), None, *one.expected.items())
            if what not in alike:  # of several that do the same, the first will do
                alike.add(what)
                optional.append((number, after))
        elif one.found is not None:
            return [(number, after)]  # it fits and changes nothing: no later moment is better for it
        else:
            found.append((one.ended, number, after))
    return optional + [(number, after) for _, number, after in sorted(found, reverse=True)]
