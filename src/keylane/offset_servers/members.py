"""The servers as members of their group, purely: their names there, and what its description says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.offset_servers.nodes import Cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.kafka.group_descriptions import GroupDescription
    from keylane.offset_servers.nodes import Address

GROUP = "keylane-offset-servers"
PREFIX = "keylane-offsets/"
STABLE = "stable"


def member_name(address: Address) -> str:
    """What a server calls itself (`client.id`)."""
    return f"{PREFIX}{address[0]}:{address[1]}"


def server_of(client_id: str) -> Address | None:
    """The server of this name; None for a member that is none."""
    host, _, port = client_id.removeprefix(PREFIX).rpartition(":")
    return (host, int(port)) if client_id.startswith(PREFIX) and host and port.isdigit() else None


def leaders_of(found: GroupDescription) -> dict[int, Address]:
    """By offsets partition."""
    servers = [(server_of(one.client_id), one.assignment) for one in found.members]
    return {partition: server for server, rows in servers if server is not None for _, partition in rows}


def seen(
    before: Cluster, cluster_id: str, brokers: Mapping[int, Address], found: GroupDescription, own: Address
) -> Cluster:
    """What is known now. While partitions move nobody is told to have them, so what was known before holds."""
    servers = {server for one in found.members if (server := server_of(one.client_id)) is not None}
    leaders = leaders_of(found) if found.state == STABLE else before.leaders
    known = servers | {own}
    return Cluster(
        cluster_id,
        dict(brokers),
        tuple(sorted(known)),
        {partition: server for partition, server in leaders.items() if server in known},
        tuple(one.member_id for one in found.members if server_of(one.client_id) == own),
    )
