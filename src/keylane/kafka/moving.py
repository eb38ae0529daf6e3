"""`move`: a group's commits go from its brokers to offset servers, or back: offset, metadata and leader epoch alike.

The idea: the target gets them where it has none, which is held against what is there; then the source's are deleted.
In between both have the same, so that a run that was cut off anywhere is made up for by another one: what the target
has already is only deleted at the source. A group with members at either place is refused.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.errors import PeerError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.faults import NOT_ALLOWED
from keylane.kafka.offset_server_check import check_offset_servers
from keylane.kafka.places import SERVERS, are_apart, for_groups, for_records
from keylane.kafka.questions import RefusedError
from keylane.kafka.replacing import replace
from keylane.pipeline import OFFSETS_SERVERS
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.kafka.group_descriptions import Partition
    from keylane.kafka.redriving import Settings
    from keylane.kafka.replacing import Offsets

logger = logger_of("keylane.kafka")


@dataclass(frozen=True, slots=True)
class Place:
    """Who has a group: the brokers, or the offset servers."""

    name: str
    """As messages have it."""
    admin: Admin
    kafka: Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """What a move has to do."""

    copies: Offsets
    """What the target has to get."""
    is_there: Offsets
    """What an earlier move has copied; the source still has it."""


def places_of(admin: Admin, kafka: Settings) -> tuple[Place, Place]:
    """The brokers and the offset servers, as these settings of `admin` have them. Raises `UsageError` where there are
    no offset servers: with one broker for both, all would be there, and be deleted."""
    if not are_apart(kafka):
        raise UsageError("between the brokers and which offset servers? give --offsets-servers HOST:PORT")
    if not check_offset_servers(kafka, Admin(for_groups(kafka)), admin.at_brokers):
        raise UsageError("whether there are offset servers cannot be asked with this login: nothing was changed")
    brokers, servers = for_records(kafka), for_groups(kafka)
    return (
        Place(f"the brokers ({brokers[SERVERS]})", admin.at_brokers, brokers),
        Place(f"the offset servers ({servers[SERVERS]})", admin, kafka),
    )


def planned(group: str, source: Offsets, target: Offsets) -> Plan:
    """What to do where these are committed. Raises `UsageError` where the target has something else."""
    others = {name: target[name] for name, one in source.items() if name in target and target[name] != one}
    if others:
        said = ", ".join(f"{_named(name)}: {source[name].offset} and {one.offset}" for name, one in others.items())
        raise UsageError(
            f"group {group!r} has other commits where they should go ({said}): nothing was changed; look at both with "
            "`keylane groups offsets`, and delete the ones that are out of date with `keylane groups delete --topic`"
        )
    return Plan(
        {name: one for name, one in source.items() if name not in target},
        {name: one for name, one in source.items() if name in target},
    )


def move(group: str, source: Place, target: Place, plan: Plan) -> None:
    """Do it. Raises `PeerError` when somebody else commits meanwhile, or the target refuses a commit; nothing is
    deleted at the source then."""
    if plan.copies:
        replace(target.admin, target.kafka, group, dict.fromkeys(plan.copies), plan.copies)
    both = {**plan.copies, **plan.is_there}
    _check_unchanged(group, source, both)
    source.admin.delete_offsets(group, both)


def _check_unchanged(group: str, source: Place, expected: Offsets) -> None:
    committed = source.admin.committed_offsets(group, {topic for topic, _ in expected})
    others = [_named(name) for name, one in expected.items() if committed.get(name) != one]
    if others or source.admin.describe_group(group).members:
        why = f"has other commits by now ({', '.join(others)})" if others else "has members by now"
        raise PeerError(
            f"group {group!r} {why} at {source.name}, and was copied before: stop what commits there, and decide which "
            "is right"
        )


def check_no_commits_at_brokers(
    admin: Admin, group: str, kafka: Settings, names: Iterable[Partition], way_out: str
) -> None:
    """Raises `UsageError` when the group, which has none of these partitions at the offset servers, has committed
    offsets of one at the brokers, whom `admin` asks."""
    wanted = set(names)
    try:
        found = admin.committed_offsets(group, {topic for topic, _ in wanted})
    except RefusedError as error:
        if error.code not in NOT_ALLOWED:
            raise
        logger.warning("whether group %r has commits at the brokers is not known: %s", group, error)
        return
    left = {name: one for name, one in found.items() if name in wanted}
    if not left:
        return
    shown = [f"{_named(name)} at {one.offset}" for name, one in list(left.items())[:SHOWN]]
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    move_command = (
        f"keylane offsets move {shlex.quote(group)} --bootstrap {kafka[SERVERS]} "
        f"--offsets-servers {kafka[OFFSETS_SERVERS]} --execute"
    )
    raise UsageError(
        f"group {group!r} has commits at the brokers and none at kafka[{OFFSETS_SERVERS!r}]={kafka[OFFSETS_SERVERS]!r} "
        f"({', '.join(shown)}{more}): take them over with `{move_command}`, or begin anew with {way_out}"
    )


SHOWN = 3
"""Partitions that a message names."""


def _named(name: Partition) -> str:
    return f"{name[0]}-{name[1]}"
