"""Where a client goes: to the brokers that have the records, or to who has the groups (`offsets.servers`).

The idea: a user writes one dict. `offsets.servers` in it names offset servers (docs/offset-servers.md); any other
setting can be given for them alone as `offsets.NAME`. Without it the brokers have both. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from keylane.pipeline import OF_OFFSET_SERVERS, OFFSETS_SERVERS

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVERS = "bootstrap.servers"

V = TypeVar("V")


def for_records(settings: Mapping[str, V]) -> dict[str, V]:
    """These settings for a client of the brokers."""
    return {name: value for name, value in settings.items() if not name.startswith(OF_OFFSET_SERVERS)}


def for_groups(settings: Mapping[str, V]) -> dict[str, V]:
    """These settings for a client of whoever has the groups: members, commits, and questions about them."""
    if not settings.get(OFFSETS_SERVERS):
        return for_records(settings)
    own = {
        name.removeprefix(OF_OFFSET_SERVERS): value
        for name, value in settings.items()
        if name.startswith(OF_OFFSET_SERVERS) and name != OFFSETS_SERVERS
    }
    return for_records(settings) | own | {SERVERS: settings[OFFSETS_SERVERS]}


def are_apart(settings: Mapping[str, object]) -> bool:
    """Whether groups are elsewhere than records."""
    return bool(settings.get(OFFSETS_SERVERS))
