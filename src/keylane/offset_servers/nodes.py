"""The nodes that clients are told of, purely: offset servers, and a pair of each of them with each broker of the log.

The idea: a client that learns the address of the log's broker finds Apache Kafka's own coordinator there, and commits
to it without an error. So it is told addresses of offset servers only. A server listens on its own port, where it is a
coordinator, and, for broker b of the log's cluster, on its own port + 1 + b, where it passes on what is for b. A node's
id is a hash of its address: an id that stood for another address before keeps librdkafka on the dead one.

Which server's pair is told for a partition follows from their names (rendezvous hashing), whoever is asked: clients ask
several, and would go to and fro.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.versions import entity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.wire.versions import Entity

Address = tuple[str, int]
"""Host and port."""

ID_BITS = 30
"""Java and kafka-python give a coordinator's connection the id 2^31 - 1 - id: that is never another node's."""
LAST_PORT = 65_535
NO_NODE = -1
NAMING_NODES = ("replica_nodes", "isr_nodes", "offline_replicas", "eligible_leader_replicas", "last_known_elr")
"""Fields of a partition that have brokers' ids, beside its leader's; not all answers have all of them."""


class Cluster(NamedTuple):
    """What a server knows of the log's cluster and of the other servers."""

    cluster_id: str
    brokers: Mapping[int, Address]
    """Of the log's cluster, those that are alive, by their ids there."""
    servers: tuple[Address, ...]
    """As they are advertised."""
    leaders: Mapping[int, Address]
    """By offsets partition: the server that leads it, or is about to."""
    namesakes: tuple[str, ...] = ()
    """Ids of the servers' group's members that have this server's own address: itself, what is left of its earlier life
    for a session, and any other server that was given the same address."""


class Namesakes:
    """Whether another member stays that has this server's address: what is left of the server's own earlier life ends
    with a session, which begins anew while the group's coordinator cannot be asked."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._since: float | None = None
        """Since when one was there at each look."""

    def unknown(self) -> None:
        """Nobody said who is there."""
        self._since = None

    def stay(self, *, is_there: bool, now: float) -> bool:
        """Whether one was there at each look for so long."""
        if not is_there:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now >= self._since + self._for_s


class Node(NamedTuple):
    """What clients are told of a node."""

    node_id: int
    host: str
    port: int


def node_at(address: Address) -> Node:
    """The node of an address."""
    digest = hashlib.sha256(f"{address[0]}:{address[1]}".encode()).digest()
    return Node(int.from_bytes(digest[:4], "big") >> (32 - ID_BITS), *address)


def pair(server: Address, broker: int) -> Address:
    """Where a server passes on what is for this broker."""
    return server[0], server[1] + 1 + broker


def all_nodes(servers: Iterable[Address], brokers: Iterable[int]) -> list[Node]:
    """Every server and every pair."""
    ids = sorted(brokers)
    return [node_at(one) for server in servers for one in (server, *(pair(server, broker) for broker in ids))]


def same_ids(nodes: Iterable[Node]) -> tuple[Node, Node] | None:
    """Two nodes of one id: there is one pair of them in 10^5 clusters of a hundred nodes."""
    known: dict[int, Node] = {}
    for node in nodes:
        other = known.setdefault(node.node_id, node)
        if other != node:
            return other, node
    return None


def server_for(servers: Sequence[Address], what: str) -> Address:
    """The one of these servers for something named so, the same as long as that one is there."""
    return max(servers, key=lambda one: hashlib.sha256(f"{one[0]}:{one[1]} {what}".encode()).digest())


def controller_id(cluster: Cluster) -> int:
    """Of the pair that is told as the controller: any broker passes on what is for that one."""
    return _told_id(min(cluster.brokers, default=NO_NODE), server_for(cluster.servers, "controller"))


def in_turn(server: Address, brokers: Sequence[Address]) -> list[Address]:
    """All of these, for each server from another one on."""
    first = node_at(server).node_id % max(len(brokers), 1)
    return [*brokers[first:], *brokers[:first]]


def told_metadata(answer: Entity, servers: Sequence[Address], hidden: frozenset[str]) -> Entity:
    """A broker's answer to Metadata, with our nodes for its own, and without the hidden topics."""
    brokers = [one.node_id for one in answer.brokers]
    told = all_nodes(servers, brokers) if brokers else []
    nodes = tuple(entity(type(answer.brokers[0]), **node._asdict(), rack=None) for node in told)
    topics = tuple(_told_topic(one, servers) for one in answer.topics if one.name not in hidden)
    changes: dict[str, object] = {"brokers": nodes, "topics": topics}
    if hasattr(answer, "controller_id"):
        changes["controller_id"] = _told_id(answer.controller_id, server_for(servers, "controller"))
    return dataclasses.replace(answer, **changes)


def told_partitions(answer: Entity, servers: Sequence[Address], hidden: frozenset[str]) -> Entity:
    """A broker's answer to DescribeTopicPartitions, in the same way."""
    topics = tuple(_told_topic(one, servers) for one in answer.topics if one.name not in hidden)
    return dataclasses.replace(answer, topics=topics)


def _told_topic(topic: Entity, servers: Sequence[Address]) -> Entity:
    partitions = tuple(_told_partition(topic.name, one, servers) for one in topic.partitions)
    return dataclasses.replace(topic, partitions=partitions)


def _told_partition(topic: str | None, partition: Entity, servers: Sequence[Address]) -> Entity:
    server = server_for(servers, f"{topic}-{partition.partition_index}")
    changes: dict[str, object] = {
        name: tuple(_told_id(one, server) for one in getattr(partition, name))
        for name in NAMING_NODES
        if getattr(partition, name, None)
    }
    return dataclasses.replace(partition, leader_id=_told_id(partition.leader_id, server), **changes)


def _told_id(broker: int, server: Address) -> int:
    return NO_NODE if broker < 0 else node_at(pair(server, broker)).node_id
