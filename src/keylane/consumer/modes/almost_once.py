"""`AlmostOnce`: each record's commit is awaited before another one starts in its place.

The idea: a record that is complete keeps its place among those in flight until an acknowledged commit has it, so that a
crash repeats at most what was in flight.
"""

from __future__ import annotations

from keylane.consumer.modes.at_least_once import AtLeastOnce


class AlmostOnce(AtLeastOnce):
    """One consumer's mode. Thread safety: none; its owner is the loop."""

    alone = True
    may_queue = False
    keeps_records = True

    def before_take(self) -> None:
        parts = self._parts
        is_coming = parts.partitions.uncommitted or parts.commits.on_its_way is not None
        waiting = parts.acknowledgements.waiting if is_coming else 0
        parts.flow.hand_over.withhold(waiting + parts.deliveries.delivering)

    @property
    def waits_for_commit(self) -> bool:
        return self._parts.acknowledgements.waiting > 0
