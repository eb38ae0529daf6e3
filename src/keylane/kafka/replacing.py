"""`replace`: other offsets and metadata for a group without members, and nobody's commit overwritten unseen.

The idea: what is to be replaced was read before, and is held against what is there. A broker with conditional commits
(keylane's) does that for offsets itself, all or nothing; what it does not hold against anything, metadata, is read just
before and just after, and on any other broker offsets are too. A coordinator refuses a commit from outside while the
group has members, so that only who is no member either can come between.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from keylane.errors import PeerError, UsageError
from keylane.kafka.conditional import Change, ConditionalCommits, ConditionalCommitUnsupportedError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.group_descriptions import Partition
    from keylane.kafka.redriving import Settings

    Offsets = Mapping[Partition, CommittedOffset]
    """By partition, what is to be committed."""
    Expected = Mapping[Partition, CommittedOffset | None]
    """By partition, what is committed; None: nothing."""


def replace(admin: Admin, kafka: Settings, group: str, before: Expected, after: Offsets) -> bool:
    """Commit `after` where `before` is committed, of the same partitions; returns whether the broker held the offsets
    against `before` itself. `kafka` are the client settings of `admin`.

    Raises `PeerError` when something else is committed before or afterwards, or the coordinator refuses the commit, as
    it does for a group with members; `BrokerUnavailableError`.
    """
    _check(admin, group, before, "nothing was changed: look again, and decide anew")
    is_conditional = _replaced_if(kafka, group, before, after)
    if not is_conditional:
        admin.commit_offsets(
            group,
            {name: one.offset for name, one in after.items()},
            {name: one.metadata for name, one in after.items()},
            {name: one.leader_epoch for name, one in after.items()},
        )
    _check(admin, group, after, "look at what is committed, and decide anew")
    return is_conditional


def _check(admin: Admin, group: str, expected: Expected, what_now: str) -> None:
    committed = admin.committed_offsets(group, {topic for topic, _ in expected})
    other = [f"{topic}-{number}" for (topic, number), one in expected.items() if committed.get((topic, number)) != one]
    if other:
        raise PeerError(
            f"somebody else has committed for the group {group!r} meanwhile ({', '.join(other)}): {what_now}"
        )


def _replaced_if(kafka: Settings, group: str, before: Expected, after: Offsets) -> bool:
    """Whether the broker has conditional commits, and took this one. An answer that was lost is told by what is
    committed then."""
    changes = {
        name: Change(None if (was := before[name]) is None else was.offset, one.offset, one.metadata, one.leader_epoch)
        for name, one in after.items()
    }
    try:
        commits = ConditionalCommits(kafka, group)
    except UsageError:  # a login that keylane's broker does not have
        return False
    with commits, suppress(OutcomeUnknownError):
        try:
            commits.commit(changes)
        except ConditionalCommitUnsupportedError:
            return False
    return True
