"""How a member gets from what it has to what it is to have: first give back, then take what is free.

A partition is given to a member only when no other has it any more, so it never has two owners, whatever the order in
which members are heard of. A member that has something to give back stays in its epoch until it says that it has; from
then on it is in the epoch of its target, and what others still have follows when it is free.

Source: KIP-848 and Apache Kafka's `CurrentAssignmentBuilder`; KIP-1251 for the epochs of the partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.records import STABLE, UNRELEASED, UNREVOKED, Current

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

    from keylane.coordinator.consumer_groups.records import Owned, Target


def reconcile(
    current: Current,
    target: Target,
    target_epoch: int,
    owned: Mapping[uuid.UUID, frozenset[int]] | None,
    is_free: Callable[[uuid.UUID, int], bool],
) -> Current:
    """What the member has next. `owned` is what it says it has (None: it did not say); `is_free(topic, partition)`
    tells whether no other member has a partition."""
    epoch = current.epoch
    if current.state == STABLE and epoch == target_epoch:
        return current
    if current.state == UNREVOKED:
        if _still_has(owned, current.revoking):
            return current
        epoch += 1
    kept: Owned = {}
    revoking: Owned = {}
    for topic, ones in current.assigned.items():
        wanted = target.get(topic, frozenset())
        for one, given in ones.items():
            (kept if one in wanted else revoking).setdefault(topic, {})[one] = given
    if revoking and _still_has(owned, revoking):
        return Current(epoch, current.epoch, UNREVOKED, kept, revoking)
    is_waiting = False
    for topic, wanted in target.items():
        for one in sorted(wanted - kept.get(topic, {}).keys()):
            if is_free(topic, one):
                kept.setdefault(topic, {})[one] = target_epoch
            else:
                is_waiting = True
    return Current(target_epoch, current.epoch, UNRELEASED if is_waiting else STABLE, kept, {})


def _still_has(owned: Mapping[uuid.UUID, frozenset[int]] | None, revoking: Owned) -> bool:
    """A member that does not say what it has still has everything."""
    return owned is None or any(owned.get(topic, frozenset()) & ones.keys() for topic, ones in revoking.items())
