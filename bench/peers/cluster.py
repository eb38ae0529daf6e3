"""`ApacheCluster`: a real Apache Kafka of three nodes whose nodes can be killed, frozen, and robbed of their disks.

Who leads, coordinates and controls is asked of the nodes themselves, request by request (kio has the formats), and
never of a client that remembers. A node that is frozen or down is not asked.
"""

from __future__ import annotations

import io
import signal
import socket
import struct
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kio.schema.describe_quorum import v0 as describe_quorum
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator import v4 as find_coordinator
from kio.schema.list_transactions import v1 as list_transactions
from kio.schema.metadata import v12 as metadata
from kio.schema.offset_fetch import v8 as offset_fetch
from kio.serial import entity_reader, entity_writer

from peers import Node, free_ports, listening, new_cluster_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NODES = (1, 2, 3)
"""Kafka's own ids of them."""
WAIT_S = 90.0
"""The longest that is waited for a leader, a coordinator, a controller, or for all replicas to be in sync."""
_ANSWER_S = 5.0
T = TypeVar("T")
_GROUP, _TRANSACTIONAL_ID = 0, 1
"""FindCoordinator's key types."""

_OPTIONS = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Three JVMs share a small machine, and start often."""
_PROPERTIES = {
    "num.partitions": "6",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    # A node is given up 6 s after its last sign of life, in place of 9 s: that is most of a fail-over's time.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(2 * 1024 * 1024),
}


class ApacheCluster:
    """Apache Kafka (KRaft; each node a broker and a controller) on free ports, with replication 3 of which a
    write needs 2.

    A context manager: all data lives in a temporary folder and goes with it. `settings` are Kafka's own server
    properties, of every node. A test says what it kills by what that does: `cluster.kill(cluster.leader("x", 0))`.
    Lookups wait for an answer; where none comes within `WAIT_S` they raise `TimeoutError`. Thread safety: any thread
    may look up; one at a time may kill and start.
    """

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, through: Callable[[int], int] | None = None
    ) -> None:
        """`through` gives a port that leads to another one: whoever begins at `relayed` is told of such ports alone."""
        self._folder = tempfile.TemporaryDirectory(prefix="keylane-kafka-", ignore_cleanup_errors=True)
        ports = free_ports(2 * len(NODES))
        self._controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self._controllers.items())
        self._frozen: set[int] = set()
        self._cluster_id = new_cluster_id()
        self._nodes: dict[int, Node] = {}
        self._relayed: list[int] = []
        for node, port in zip(NODES, ports, strict=False):
            own = {"node.id": str(node), "controller.quorum.voters": voters}
            properties = _PROPERTIES | listening(port, self._controllers[node]) | own | dict(settings or {})
            if through is not None:
                (second,) = free_ports(1)
                self._relayed.append(through(second))
                for name, what in (
                    ("listeners", f"RELAYED://127.0.0.1:{second}"),
                    ("advertised.listeners", f"RELAYED://127.0.0.1:{self._relayed[-1]}"),
                    ("listener.security.protocol.map", "RELAYED:PLAINTEXT"),
                ):
                    properties[name] += f",{what}"
            self._nodes[node] = Node(Path(self._folder.name, f"node-{node}"), properties, port, options=_OPTIONS)

    @property
    def bootstrap(self) -> str:
        """All three, whether they run or not."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes.values())

    @property
    def relayed(self) -> str:
        """All three, by the ports that lead to them."""
        return ",".join(f"127.0.0.1:{port}" for port in self._relayed)

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(NODES)) as pool:
                list(pool.map(lambda node: node.format(self._cluster_id), self._nodes.values()))
            for node in self._nodes.values():
                node.launch()
            for node in self._nodes.values():
                node.wait()
            self.wait_until_in_sync()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.kill()
        self._folder.cleanup()

    def processor_s(self) -> float:
        """Of all nodes, which have to run."""
        return sum(node.processor_s() for node in self._nodes.values())

    # --- what happens to nodes ---

    @property
    def running(self) -> tuple[int, ...]:
        """The nodes that are up and not frozen."""
        return tuple(id_ for id_, node in self._nodes.items() if node.is_running and id_ not in self._frozen)

    def kill(self, node: int, how: signal.Signals = signal.SIGKILL) -> None:
        """End a node, frozen or not; its disk stays."""
        self._frozen.discard(node)
        self._nodes[node].kill(how)

    def start(self, node: int) -> None:
        """Start a node that was killed or wiped; returns when it answers. `wait_until_in_sync` waits for its copies."""
        self._nodes[node].launch()
        self._nodes[node].wait()

    def wipe(self, node: int) -> None:
        """Kill a node and delete its disk; after `start` it copies everything again. Only for one that the others are
        in sync with: what it alone had is lost."""
        self.kill(node)
        self._nodes[node].format(self._cluster_id)

    def freeze(self, node: int) -> None:
        """SIGSTOP: its connections stay, and nothing answers on them."""
        self._nodes[node].freeze()
        self._frozen.add(node)

    def wake(self, node: int) -> None:
        """SIGCONT."""
        self._nodes[node].wake()
        self._frozen.discard(node)

    # --- who is who ---

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads this partition."""
        return self._until(lambda: (self._leaders(topic) or {}).get(partition), f"a leader of {topic}-{partition}")

    def leaders(self, topic: str) -> dict[int, int]:
        """The node that leads each partition of the topic."""
        return self._until(lambda: self._leaders(topic), f"leaders of {topic}")

    def coordinator(self, group: str) -> int:
        """The node that coordinates this group."""
        return self._until(lambda: self._coordinator(_GROUP, group), f"a coordinator of the group {group!r}")

    def transaction_coordinator(self, transactional_id: str) -> int:
        """The node that coordinates this transactional.id."""
        what = f"a coordinator of the transactional.id {transactional_id!r}"
        return self._until(lambda: self._coordinator(_TRANSACTIONAL_ID, transactional_id), what)

    def controller(self) -> int:
        """The active controller: the node that leads the metadata log."""
        return self._until(self._controller, "an active controller")

    def transactional_ids(self) -> list[str]:
        """Those that the nodes that run coordinate."""
        request = list_transactions.ListTransactionsRequest()
        answers = [
            _ask(self._nodes[node].port, request, list_transactions.ListTransactionsResponse) for node in self.running
        ]
        return [str(one.transactional_id) for answer in answers if answer for one in answer.transaction_states]

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, tuple[int, str]] | None:
        """Offset and metadata that the group has committed for each partition; None while its coordinator does not
        answer."""
        node = self._coordinator(_GROUP, group)
        if node is None:
            return None
        v8 = offset_fetch.request
        topics = (v8.OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(range(partitions))),)  # type: ignore[arg-type]
        request = v8.OffsetFetchRequest(groups=(v8.OffsetFetchRequestGroup(group_id=group, topics=topics),))  # type: ignore[arg-type]
        answer = _ask(self._nodes[node].port, request, offset_fetch.OffsetFetchResponse)
        if answer is None or answer.groups[0].error_code is not ErrorCode.none:
            return None
        found = answer.groups[0].topics[0].partitions
        return {one.partition_index: (one.committed_offset, one.metadata) for one in found if one.committed_offset >= 0}

    def wait_until_in_sync(self) -> None:
        """Until all nodes run and each of them says that every partition has a leader and all three replicas in sync.
        Another node may be killed then, and no write is refused."""

        def is_so() -> bool | None:
            answers = [self._metadata(node, None) for node in NODES if node in self.running]
            partitions = [one for answer in answers if answer for topic in answer.topics for one in topic.partitions]
            whole = all(len(one.isr_nodes) == len(NODES) and one.leader_id in NODES for one in partitions)
            alive = all(answer is not None and len(answer.brokers) == len(NODES) for answer in answers)
            return (len(answers) == len(NODES) and alive and whole) or None

        self._until(is_so, "all replicas in sync")

    # --- asking ---

    def _leaders(self, topic: str) -> dict[int, int] | None:
        """Without the partitions that have no leader that runs; None when it has no such partition."""
        for answer in (self._metadata(node, topic) for node in self.running):
            found = {
                int(one.partition_index): int(one.leader_id)
                for one in (answer.topics[0].partitions if answer else ())
                if int(one.leader_id) in self.running
            }
            if found:
                return found
        return None

    def _metadata(self, node: int, topic: str | None) -> Any:
        """What a node knows, of one topic or of all of them."""
        wanted = None if topic is None else (metadata.request.MetadataRequestTopic(topic_id=None, name=topic),)  # type: ignore[arg-type] # kio's names for str
        request = metadata.MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        return _ask(self._nodes[node].port, request, metadata.MetadataResponse)

    def _coordinator(self, key_type: int, key: str) -> int | None:
        request = find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))  # type: ignore[arg-type]
        for node in self.running:
            answer = _ask(self._nodes[node].port, request, find_coordinator.FindCoordinatorResponse)
            for one in answer.coordinators if answer else ():
                if one.error_code is ErrorCode.none and int(one.node_id) in self.running:
                    return int(one.node_id)
        return None

    def _controller(self) -> int | None:
        """Only the active one describes the quorum."""
        v0 = describe_quorum.request
        topic = v0.TopicData(topic_name="__cluster_metadata", partitions=(v0.PartitionData(partition_index=0),))  # type: ignore[arg-type]
        for node in self.running:
            answer = _ask(
                self._controllers[node],
                v0.DescribeQuorumRequest(topics=(topic,)),
                describe_quorum.DescribeQuorumResponse,
            )
            partitions = [one for topic in (answer.topics if answer else ()) for one in topic.partitions]
            if any(one.error_code is ErrorCode.none and one.leader_id == node for one in partitions):
                return node
        return None

    def _until(self, look: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + WAIT_S
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster has not got {what} within {WAIT_S:.0f} s; {self.running} run")
            time.sleep(0.1)
        return found


def _ask(port: int, request: Any, answer: Any) -> Any:
    """One request, of a flexible version, on a connection of its own; None when the node gives no answer."""
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    header = struct.pack(">hhihx", request.__api_key__, request.__version__, 0, -1)  # of nobody, with no tagged fields
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection:
            connection.sendall(struct.pack(">i", len(header) + body.tell()) + header + body.getvalue())
            with connection.makefile("rb") as file:
                (size,) = struct.unpack(">i", file.read(4))
                frame = file.read(size)
    except (OSError, struct.error):  # it is starting, ending, or was killed meanwhile
        return None
    return entity_reader(answer)(frame, 5)[0]  # behind the correlation id and no tagged fields
