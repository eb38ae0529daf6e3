"""`OffsetServer`: one server: its doors, its partitions, and what it knows of the log's cluster and the other servers.

The servers are a consumer group of the log's cluster. Each is there under its advertised address, so whoever describes
the group knows which servers there are, and who leads what.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from keylane.broker.server import BrokerServer
from keylane.errors import PeerError, UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.link import Link
from keylane.kafka.log_group import SESSION_MS, LogGroup
from keylane.kafka.login import login_of
from keylane.offset_servers.apis import LIST_TRANSACTIONS, has_topic_ids, passed_on, served
from keylane.offset_servers.coordinators import Coordinators
from keylane.offset_servers.forwarding import BEAT_S, Forwarder, Forwarding
from keylane.offset_servers.known_configs import KnownConfigs, ask_configs
from keylane.offset_servers.known_topics import KnownTopics, ask_topics
from keylane.offset_servers.measures import State
from keylane.offset_servers.members import member_name, seen
from keylane.offset_servers.nodes import LAST_PORT, Cluster, Namesakes, all_nodes, in_turn, same_ids
from keylane.offset_servers.partitions import Appends, Partitions, Shared
from keylane.offset_servers.relay import Passed, Relay
from keylane.offset_servers.topic_ids import TopicIds, ask_ids
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from keylane.broker.config import BrokerConfig
    from keylane.broker.node import Node
    from keylane.broker.security import Security
    from keylane.broker.server import Client
    from keylane.broker.server import Relay as RelayPort
    from keylane.kafka.login import Login
    from keylane.offset_servers.apis import Versions
    from keylane.offset_servers.nodes import Address
    from keylane.offset_servers.topic import LogTopic

logger = logger_of("keylane.offsets")

WATCH_S = 1.0
"""How often a server looks who else is there."""
LOOK_MS = 5_000
"""How long one look may take."""
NAMESAKE_S = 2 * SESSION_MS / 1000
"""How long another member may have this server's address: its own earlier life is one until its session ends, which a
coordinator that moves begins anew."""
NAMESAKE_PAUSE_S = 0.2
ANSWER_S = 10.0
GIVE_UP_S = 5.0
"""How long a partition that is to move is waited for: commits that are under way are answered first."""


class Places(NamedTuple):
    """Where a server listens, and what clients are told of that."""

    listen: Address
    advertised: Address

    def listen_for(self, broker: int) -> Address:
        """Where it listens for what is for this broker. Raises `UsageError`."""
        for port in (self.listen[1] + 1 + broker, self.advertised[1] + 1 + broker):
            if port > LAST_PORT:
                raise UsageError(
                    f"broker {broker} of the log's cluster needs port {port} (the server's own + 1 + {broker}), and "
                    f"the last port is {LAST_PORT}: give a lower one to --listen and --advertise"
                )
        return self.listen[0], self.listen[1] + 1 + broker


class OffsetServer:
    """Made and used in the event loop's thread; `start` before use, `stop` after."""

    def __init__(
        self,
        config: BrokerConfig,
        security: Security,
        places: Places,
        topic: LogTopic,
        log: Mapping[str, object],
        servers: Login | None,
        group: str,
        failed: Callable[[Exception], None],
    ) -> None:
        """`log`: librdkafka's settings for the log's cluster; `servers`: how this server logs in at the others, None if
        it forwards nothing to them; `failed` is told why this server cannot go on."""
        self.config = config
        """For the broker's handlers, as `coordinator`, `topics` and `group_configs`."""
        self._security = security
        self._places = places
        self._topic = topic
        self._log = log
        self._login = login_of(log)
        self._group_name = group
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._admin = Admin(log, timeout_ms=LOOK_MS)
        self.cluster = Cluster("", {}, (places.advertised,), {})
        self._passed: dict[int, Passed] = {}
        self._doors: dict[int | None, BrokerServer] = {}
        """By broker of the log's cluster; None: the server's own."""
        self._group = LogGroup(
            log,
            topic.name,
            group=group,
            name=member_name(places.advertised),
            given=self._given,
            taken=self._taken,
            lost=self._lost,
            failed=lambda text: self._call_failed(PeerError(text)),
        )
        host, port = places.advertised
        self.topics = KnownTopics(lambda: ask_topics(self._brokers(None), self._login), topic.name)
        self.group_configs = KnownConfigs(lambda groups: ask_configs(self._brokers(None), self._login, groups), config)
        self._appends = Appends()
        ids = TopicIds(self._ids_of)
        shared = Shared(log, topic, config, f"{host}:{port}", self.topics, self.group_configs, ids, self._appends)
        self._partitions = Partitions(shared, self._group.rejoin, failed)
        self.coordinator = Coordinators(self._partitions, self.topics, self.group_configs)
        # The handlers of groups and offsets ask a node for these alone, and for its config.
        self._node = cast("Node", self)
        self.forwarding = Forwarding(self, self._node, servers)
        self._moved = asyncio.Event()
        """The group has said who leads what since somebody looked."""
        self._joining: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._trouble: str | None = None
        """Why who is there could not be asked last."""

    def leader_of(self, group: str) -> Address | None:
        """The server that coordinates a group; None while nobody is known to."""
        partition = self.partition_of(group)
        return self._places.advertised if self.leads(partition) else self.other_leader(partition)

    def partition_of(self, group: str) -> int:
        """The offsets partition of a group."""
        return self.coordinator.partition_of(group)

    def leads(self, partition: int) -> bool:
        """Whether this server does, or is about to."""
        return self._partitions.is_led(partition)

    def other_leader(self, partition: int) -> Address | None:
        """The other server that leads it; None while none is known."""
        found = self.cluster.leaders.get(partition)
        return None if found == self._places.advertised else found

    async def start(self) -> None:
        """Listen, and join the others as soon as the log is read. Raises `UsageError` and `PeerError`."""
        self._beat()
        await self._see_the_others()
        offered = await asyncio.to_thread(self._offered, list(self.cluster.brokers.values()))
        self._passed = passed_on(offered, self._places.advertised, lambda: self.cluster.servers, self._topic.name)
        others = [one for one in self.cluster.servers if one != self._places.advertised]
        twins = same_ids(all_nodes((self._places.advertised, *others), self.cluster.brokers))
        if twins is not None:
            raise UsageError(
                f"clients cannot tell {twins[0].host}:{twins[0].port} from {twins[1].host}:{twins[1].port}, whose ids "
                f"are both {twins[0].node_id}: give another port to --advertise"
            )
        if has_topic_ids(self._passed):
            await self.topics.be_fresh(0.0)
        await self._open(None)
        for broker in self.cluster.brokers:
            await self._open(broker)
        self._joining = self._loop.create_task(self._join())
        self._watching = self._loop.create_task(self._watch())

    async def _see_the_others(self) -> None:
        """Learn who is there, and wait until no other member has this server's address. Raises `UsageError` when
        another server has it, and `PeerError`."""
        namesakes = Namesakes(NAMESAKE_S)
        while True:
            self.cluster = await asyncio.to_thread(self._look)
            if not self.cluster.namesakes:
                return
            if namesakes.stay(is_there=True, now=self._loop.time()):
                raise self._same_address()
            await asyncio.sleep(NAMESAKE_PAUSE_S)

    def _same_address(self) -> UsageError:
        host, port = self._places.advertised
        return UsageError(
            f"another offset server of the group {self._group_name!r} has the address {host}:{port} already: give each "
            "server an --advertise of its own, at which clients reach it alone"
        )

    async def _join(self) -> None:
        """A member is given partitions at once: groups would wait for one that had not read them."""
        await self._partitions.are_read()
        self._group.start()

    def _beat(self) -> None:
        self.forwarding.beat()
        self._beating = self._loop.call_later(BEAT_S, self._beat)

    async def stop(self) -> None:
        """Hand over what is led here, answer what is under way, and end."""
        for one in (self._joining, self._watching, self._beating):
            if one is not None:
                one.cancel()
        await asyncio.to_thread(self._group.close)
        await asyncio.gather(*(door.stop() for door in self._doors.values()))
        await self._partitions.close()

    async def state(self) -> State:
        """For who collects metrics."""
        led, loading = self._partitions.led(), self._partitions.loading()
        known = {*self.cluster.leaders, *led}
        return State(
            self.forwarding.counts,
            self._appends.meter.histogram(),
            self._appends.refused,
            self._appends.deposed,
            len(led) - loading,
            loading,
            len(self._partitions),
            len(self._partitions) - len(known),
            len(self.cluster.servers),
            sum(len(door.connections) for door in self._doors.values()),
            self._trouble,
        )

    # --- doors ---

    async def _open(self, broker: int | None) -> None:
        """Listen on the own port, or for a broker of the log's cluster. Raises `PeerError`."""
        host, port = self._places.listen if broker is None else self._places.listen_for(broker)
        apis = served(self, self._passed, is_pair=broker is not None)
        passed = {key: one for key, one in self._passed.items() if broker is not None or key != LIST_TRANSACTIONS}

        def relays(client: Client) -> Sequence[RelayPort]:
            relay = Relay(passed, lambda: self._brokers(broker), self._login, client.close)
            return relay, Forwarder(self.forwarding, client)

        door = BrokerServer(self._node, apis, self._security, relays)
        try:
            await door.start(host, port)
        except OSError as error:
            what = "--listen" if broker is None else f"--listen + 1 + {broker}, for the log's broker {broker}"
            raise PeerError(f"cannot listen on {host}:{port} ({what}): {error.strerror or error}") from error
        self._doors[broker] = door

    def _brokers(self, broker: int | None) -> list[Address]:
        """Who answers what a door passes on: that broker, or any."""
        brokers = self.cluster.brokers
        if broker is not None:
            return [brokers[broker]] if broker in brokers else []
        return in_turn(self._places.advertised, [brokers[one] for one in sorted(brokers)])

    def _ids_of(self, topics: Collection[str]) -> Mapping[str, UUID]:
        """In a thread. Raises `OSError`."""
        return ask_ids(self._brokers(None), self._login, topics) if has_topic_ids(self._passed) else {}

    # --- the others ---

    async def _watch(self) -> None:
        namesakes = Namesakes(NAMESAKE_S)
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), WATCH_S)
            self._moved.clear()
            try:
                self.cluster = await asyncio.to_thread(self._look)
            except PeerError as error:
                trouble = f"the log's cluster does not say who is there: {error}"
                if self._trouble is None:
                    logger.warning("%s", trouble)
                self._trouble = trouble
                namesakes.unknown()
                continue
            self._trouble = None
            self.forwarding.see(self.cluster.servers)
            is_second = len(self.cluster.namesakes) > 1 and self._group.member_id != min(self.cluster.namesakes)
            if namesakes.stay(
                is_there=is_second, now=self._loop.time()
            ):  # both have started at once: the other one stays
                self._failed(self._same_address())
                return
            for broker in self.cluster.brokers.keys() - self._doors.keys():
                try:
                    await self._open(broker)
                except (PeerError, UsageError) as error:
                    self._failed(error)
                    return

    def _look(self) -> Cluster:
        """In a thread. Raises `PeerError`."""
        cluster_id, brokers = self._admin.cluster(self._topic.name)
        found = self._admin.describe_group(self._group_name)
        return seen(self.cluster, cluster_id, brokers, found, self._places.advertised)

    def _offered(self, brokers: Sequence[Address]) -> Versions:
        """What all of these offer, in a thread. Raises `PeerError`."""
        found: list[Versions] = []
        for address in brokers:
            try:
                link = Link(address, self._login, ANSWER_S)
                try:
                    found.append(link.offered())
                finally:
                    link.close()
            except OSError as error:
                logger.warning("broker %s:%d of the log's cluster: %s", *address, error)
        if not found:
            raise PeerError("no broker of the log's cluster says which versions it takes")
        keys = set.intersection(*(set(one) for one in found))
        return {key: (max(one[key][0] for one in found), min(one[key][1] for one in found)) for key in keys}

    # --- the group, in its thread ---

    def _given(self, partitions: Sequence[int]) -> None:
        self._loop.call_soon_threadsafe(self._partitions.lead, partitions)
        self._loop.call_soon_threadsafe(self._moved.set)

    def _lost(self, partitions: Sequence[int]) -> None:
        logger.warning("this server has lost its place in the servers' group: it leads on until another one takes over")
        self._loop.call_soon_threadsafe(self._partitions.keep, partitions)

    def _taken(self, partitions: Sequence[int]) -> None:
        done = asyncio.run_coroutine_threadsafe(self._partitions.give_up(partitions), self._loop)
        try:
            done.result(GIVE_UP_S)
        except FutureTimeoutError:
            logger.warning("offsets partitions %s move before all commits of theirs are answered", list(partitions))

    def _call_failed(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._failed, error)
