"""The APIs of an offset server: those of groups and offsets are the embedded broker's, and a server that does not
lead the group forwards them; those that tell of nodes are answered here; the others are passed on to a broker of the
log's cluster.

What is passed on is listed, with versions whose answers name no broker: Produce from 10 and Fetch from 16 on tell
addresses (KIP-951), Fetch from 11 on a preferred replica (KIP-392). What is not listed is not offered, offsets in a
producer's transaction (AddOffsetsToTxn, TxnOffsetCommit) among it: its end is marked by Kafka's coordinator, in its own
store.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from keylane.broker.config_resources import GROUP
from keylane.broker.dispatch import Api, decode_request, load_apis
from keylane.broker.handlers import (
    api_versions,
    describe_cluster,
    describe_configs,
    find_coordinator,
    list_groups,
    list_transactions,
)
from keylane.offset_servers import between, group_requests, known_topics
from keylane.offset_servers.nodes import all_nodes, controller_id, node_at, pair, told_metadata, told_partitions
from keylane.offset_servers.relay import Passed
from keylane.wire import codes
from keylane.wire.own_apis import BEGIN_FORWARDING, REQUEST_COUNTS, VERSION
from keylane.wire.versions import RequestSchema, encode_response, read_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from keylane.broker.dispatch import Begin, RequestHeader
    from keylane.broker.handlers.find_coordinator import Found
    from keylane.broker.node import Node
    from keylane.offset_servers.forwarding import Forwarding
    from keylane.offset_servers.known_configs import KnownConfigs
    from keylane.offset_servers.nodes import Address, Cluster
    from keylane.wire.versions import Entity

HERE = ("sasl_authenticate", "sasl_handshake")
"""Served by the embedded broker's handlers, besides those of `group_requests`."""
WITH_TOPIC_IDS = ("consumer_group_describe", "consumer_group_heartbeat")
"""Offered where the log's brokers tell topics' ids."""
DESCRIBE_CONFIGS, DESCRIBE_TOPIC_PARTITIONS = 32, 75
API_VERSIONS, DESCRIBE_CLUSTER, FIND_COORDINATOR, LIST_GROUPS, METADATA = 18, 60, 10, 16, 3
LIST_TRANSACTIONS = 66
PASSED_ON = {
    0: ("produce", 9),
    1: ("fetch", 10),
    2: ("list_offsets", 10),
    19: ("create_topics", 7),
    20: ("delete_topics", 6),
    21: ("delete_records", 2),
    22: ("init_producer_id", 5),
    23: ("offset_for_leader_epoch", 4),
    24: ("add_partitions_to_txn", 3),
    26: ("end_txn", 4),
    29: ("describe_acls", 3),
    30: ("create_acls", 3),
    31: ("delete_acls", 3),
    32: ("describe_configs", 4),
    33: ("alter_configs", 2),
    37: ("create_partitions", 3),
    44: ("incremental_alter_configs", 1),
    61: ("describe_producers", 0),
    65: ("describe_transactions", 0),
    66: ("list_transactions", 2),
    75: ("describe_topic_partitions", 0),
}
"""By key: its name, and the newest version of which answers name no broker, or name it where it can be rewritten."""
NEWEST_METADATA = 12

Versions = dict[int, tuple[int, int]]
"""By API key: the oldest and the newest."""


class Guide(Protocol):
    """Who is there."""

    @property
    def cluster(self) -> Cluster: ...
    def leader_of(self, group: str) -> Address | None:
        """The server that coordinates a group; None while nobody is known to."""
        ...

    @property
    def forwarding(self) -> Forwarding: ...
    @property
    def group_configs(self) -> KnownConfigs: ...


def served(server: Guide, passed: Mapping[int, Passed], *, is_pair: bool) -> dict[int, Api]:
    """What is answered in this process, on a server's own port or on that of a pair."""
    known = load_apis()
    found = {key: api for key, api in known.items() if api.name in HERE} | group_requests.of_leaders()
    if not has_topic_ids(passed):
        found = {key: api for key, api in found.items() if api.name not in WITH_TOPIC_IDS}
    offered = {key: (api.first, api.last) for key, api in passed.items()}

    async def versions(request: Entity, header: RequestHeader, _node: object) -> Entity:
        return api_versions.answer(request, header, rows)

    async def coordinators(request: Entity, header: RequestHeader, _node: object) -> Entity:
        return await find_coordinator.answer(request, header, lambda key, key_type: _coordinator(key, key_type, server))

    async def cluster(request: Entity, header: RequestHeader, _node: object) -> Entity:
        known = server.cluster
        nodes = all_nodes(known.servers, known.brokers)
        return describe_cluster.answer(request, header, nodes, controller_id(known), known.cluster_id)

    async def no_groups(_request: object, header: RequestHeader, _node: object) -> Entity:
        """Of a pair: whoever wants all groups asks each node."""
        return list_groups.answer(header.api_version, codes.NONE, ())

    async def no_transactions(_request: object, header: RequestHeader, _node: object) -> Entity:
        """Of a server itself: whoever wants all transactions asks each node, and the pairs pass it on."""
        return list_transactions.answer(header.api_version, ())

    own: dict[int, Callable[[Entity, RequestHeader, object], Awaitable[Entity]]] = {
        API_VERSIONS: versions,
        FIND_COORDINATOR: coordinators,
        DESCRIBE_CLUSTER: cluster,
    }
    found[LIST_GROUPS] = known[LIST_GROUPS]
    if DESCRIBE_CONFIGS in passed:  # of groups; what else is described is passed on, in these versions
        first, last = passed[DESCRIBE_CONFIGS].first, passed[DESCRIBE_CONFIGS].last
        ours = known[DESCRIBE_CONFIGS]

        async def configs(request: Entity, header: RequestHeader, node: Node) -> Entity:
            await server.group_configs.be_fresh([one.resource_name for one in request.resources], 0.0)
            return await describe_configs.handle(request, header, node)

        found[DESCRIBE_CONFIGS] = ours._replace(
            min_version=max(first, ours.min_version), max_version=min(last, ours.max_version), handle=configs
        )
    if is_pair:
        own[LIST_GROUPS] = no_groups
    elif LIST_TRANSACTIONS in passed:
        own[LIST_TRANSACTIONS] = no_transactions
    found |= {key: known[key]._replace(handle=handle) for key, handle in own.items()}
    found |= _between(server)
    offered |= {key: (api.min_version, api.max_version) for key, api in found.items()}
    rows = tuple(sorted((key, *range_) for key, range_ in offered.items()))
    return found


def _between(server: Guide) -> dict[int, Api]:
    """What other servers ask, and `keylane offsets status`."""

    def forward(host: str, header: RequestHeader, _node: object) -> bytes:
        return between.encode_error(server.forwarding.accept(header.session, host))

    def counts(_request: object, _header: RequestHeader, _node: object) -> bytes:
        return between.encode_counts(server.forwarding.counts)

    def read_nothing(_buffer: bytes, _position: int) -> tuple[None, int]:
        return None, 0

    return {
        BEGIN_FORWARDING: _own_api("begin_forwarding", BEGIN_FORWARDING, between.read_host, forward),
        REQUEST_COUNTS: _own_api("request_counts", REQUEST_COUNTS, read_nothing, counts),
    }


def _own_api(name: str, key: int, read: Callable[[bytes, int], tuple[Entity, int]], begin: Begin) -> Api:
    def read_all(frame: bytes, position: int, max_items: int = 0) -> tuple[Entity, int]:  # noqa: ARG001 - no arrays
        return read(frame, position)

    schema = RequestSchema(read_all, is_flexible=False, has_flexible_response_header=False)
    return Api(
        name,
        key,
        VERSION,
        VERSION,
        lacks="nothing",
        handle=None,
        begin=begin,
        schema=lambda _: schema,
        has_large_answers=False,
        may_poll=False,
        short_way=None,
    )


def _coordinator(group: str, key_type: int, server: Guide) -> Found:
    if key_type != find_coordinator.GROUP:
        return find_coordinator.Found(codes.INVALID_REQUEST, f"key type {key_type}: groups (0) have a coordinator here")
    address = server.leader_of(group)
    if address is None:
        return find_coordinator.Found(
            codes.COORDINATOR_NOT_AVAILABLE, f"group {group!r}: no server leads its offsets partition at the moment"
        )
    return find_coordinator.Found(codes.NONE, None, *node_at(address))


def passed_on(
    offered: Versions, own: Address, servers: Callable[[], tuple[Address, ...]], hidden: str
) -> dict[int, Passed]:
    """What is passed on to brokers that offer these versions; `own` is this server's advertised address."""
    known = {
        key: Passed(name, offered[key][0], min(last, offered[key][1]))
        for key, (name, last) in PASSED_ON.items()
        if key in offered and offered[key][0] <= last
    }
    metadata = Passed("metadata", offered[METADATA][0], min(NEWEST_METADATA, offered[METADATA][1]))
    names = frozenset({hidden})
    if DESCRIBE_CONFIGS in known:
        known[DESCRIBE_CONFIGS] = known[DESCRIBE_CONFIGS]._replace(applies=_is_not_of_groups)
    known[METADATA] = metadata._replace(
        rewrite=lambda version, frame: _rewritten(
            "metadata", version, frame, lambda answer: told_metadata(answer, servers(), names)
        )
    )
    if DESCRIBE_TOPIC_PARTITIONS in known:
        known[DESCRIBE_TOPIC_PARTITIONS] = known[DESCRIBE_TOPIC_PARTITIONS]._replace(
            rewrite=lambda version, frame: _rewritten(
                "describe_topic_partitions", version, frame, lambda answer: told_partitions(answer, servers(), names)
            )
        )
    if LIST_TRANSACTIONS in known:
        known[LIST_TRANSACTIONS] = known[LIST_TRANSACTIONS]._replace(
            rewrite=lambda version, frame: _rewritten(
                "list_transactions", version, frame, lambda answer: _without_servers_own(answer, hidden)
            )
        )
    ours = load_apis()[FIND_COORDINATOR]
    coordinator = Passed("find_coordinator", ours.min_version, min(ours.max_version, offered[FIND_COORDINATOR][1]))
    known[FIND_COORDINATOR] = coordinator._replace(
        rewrite=lambda version, frame: _rewritten(
            "find_coordinator", version, frame, lambda answer: _told_coordinators(answer, own)
        ),
        applies=_is_of_transactions,
    )
    return known


def _without_servers_own(answer: Entity, hidden: str) -> Entity:
    """Without the ids by which servers write their log."""
    rows = (one for one in answer.transaction_states if not one.transactional_id.startswith(f"{hidden}-"))
    return dataclasses.replace(answer, transaction_states=tuple(rows))


def has_topic_ids(passed: Mapping[int, Passed]) -> bool:
    """Whether the log's brokers tell topics' ids."""
    return METADATA in passed and passed[METADATA].last >= known_topics.VERSION


def _is_not_of_groups(frame: bytes) -> bool:
    """A request for groups alone is answered here: they are this server's, with its options and what is set for them in
    the log's cluster."""
    resources = decode_request(frame, "", load_apis()).request.resources
    return not resources or any(one.resource_type != GROUP for one in resources)


def _is_of_transactions(frame: bytes) -> bool:
    call = decode_request(frame, "", load_apis())
    return getattr(call.request, "key_type", find_coordinator.GROUP) == find_coordinator.TRANSACTION


def _told_coordinators(answer: Entity, own: Address) -> Entity:
    """A transactional id's coordinator is the pair of this server with that broker."""
    if hasattr(answer, "coordinators"):
        return dataclasses.replace(answer, coordinators=tuple(_told_node(one, own) for one in answer.coordinators))
    return _told_node(answer, own)


def _told_node(found: Entity, own: Address) -> Entity:
    if found.node_id < 0:
        return found
    node = node_at(pair(own, found.node_id))
    return dataclasses.replace(found, node_id=node.node_id, host=node.host, port=node.port)


def _rewritten(api: str, version: int, frame: bytes, change: Callable[[Entity], Entity]) -> bytes:
    """An answer's frame with another body."""
    answer, start = read_response(api, version, frame)
    return frame[:start] + encode_response(change(answer))
