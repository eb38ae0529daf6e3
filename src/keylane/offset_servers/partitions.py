"""The offsets partitions on this server: each has a warm table that follows the log, and a coordinator that is led here
or not.

The idea: the group of the log's servers says what is led here (`lead`, `give_up`); the log says whether that is still
so. While the group says nothing, the log alone does (`keep`). A coordinator lives from an empty table to the end of one
leadership; then another one takes its place and reads the log anew. One that was deposed while the group still has its
partition here never leads again by itself: this server leaves the group and joins anew, and is given what nobody else
has.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.replicated.follower import Follower
from keylane.coordinator.replicated.journal import DeposedError, Host, LogJournal, Refused
from keylane.coordinator.replicated.topic_names import TopicNames
from keylane.errors import DataFolderError
from keylane.flow.workers import Meter
from keylane.kafka.fenced_log import FencedLog, steady_s
from keylane.offset_servers.naming import Naming
from keylane.storage.filesystem import now_ms
from keylane.storage.shared_sync import Round
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from keylane.broker.config import BrokerConfig
    from keylane.coordinator.consumer_groups.protocol import Topics
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.coordinator.replicated.journal import PartitionLog
    from keylane.offset_servers.known_configs import KnownConfigs
    from keylane.offset_servers.topic import LogTopic
    from keylane.offset_servers.topic_ids import TopicIds

logger = logger_of("keylane.offsets")

LOOK_S = 3.0
"""How often followers read what is new."""
AGAIN_S = 1.0
"""Before a table is read anew, and the group is asked anew, when the log has refused this server."""
ALL_PARTITIONS = 2**31 - 1
"""Of any topic: whether it is there is for its brokers to say, and offsets of one that is not go by their age."""


class Appends:
    """What became of all batches that were sent to the log. The event loop's thread writes, any may read."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.refused = 0
        self.deposed = 0
        """Leaderships that the log has ended."""

    def note(self, answer: int | Refused, took_ns: int) -> None:
        if isinstance(answer, Refused):
            self.refused += 1
        else:
            self.meter.add(took_ns)

    def note_deposed(self) -> None:
        self.deposed += 1

    def metered(self, log: FencedLog) -> PartitionLog:
        """This log, with its appends counted here."""
        return _MeteredLog(log, self)


class _MeteredLog:
    """A `PartitionLog`."""

    def __init__(self, log: FencedLog, appends: Appends) -> None:
        self._log = log
        self._appends = appends
        self.init, self.read, self.close = log.init, log.read, log.close

    def append(self, batch: bytes, told: Callable[[int | Refused], None]) -> None:
        began_ns = time.monotonic_ns()

        def tell(answer: int | Refused) -> None:
            self._appends.note(answer, time.monotonic_ns() - began_ns)
            told(answer)

        self._log.append(batch, tell)


class Shared(NamedTuple):
    """What all partitions of a server have in common."""

    log: Mapping[str, object]
    """librdkafka's settings for the log's cluster."""
    topic: LogTopic
    config: BrokerConfig
    server: str
    """Its name in the log."""
    topics: Topics
    """For groups of KIP-848."""
    configs: KnownConfigs
    """Of them."""
    ids: TopicIds
    appends: Appends


def steady_ms() -> int:
    return int(steady_s() * 1000)


def _ask_anybody(_topic: str) -> int:
    return ALL_PARTITIONS


class Replica:
    """One offsets partition, from an empty table to the end of one leadership."""

    def __init__(
        self,
        partition: int,
        shared: Shared,
        deposed: Callable[[Replica], None],
        failed: Callable[[DataFolderError], None],
    ) -> None:
        self.partition = partition
        self._deposed = deposed
        self._failed = failed
        self._is_closing = False
        self._leading: asyncio.Task[None] | None = None
        self.is_read = asyncio.Event()
        """The table has had all of the log once, or the log cannot be read now."""
        loop = asyncio.get_running_loop()

        def call(told: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
                loop.call_soon_threadsafe(told)

        topic = shared.topic
        log = FencedLog(shared.log, topic.name, partition, f"{topic.name}-{partition}", call)
        self._journal: LogJournal
        self._image: Image

        def made(image: Image, options: CoordinatorOptions, clock: Callable[[], int]) -> LogJournal:
            host = Host(shared.server, clock, steady_ms, lambda: Round(loop), loop.call_soon, self._alarm)
            follower = Follower(topic.delete_retention_ms, steady_ms())
            self._image = image
            self._journal = LogJournal(
                shared.appends.metered(log),
                partition,
                image,
                follower,
                options,
                host,
                self._is_deposed,
                on_read=self.is_read.set,
            )
            return self._journal

        self.coordinator = Coordinator(
            journal=made,
            options=replace(shared.config, keylane_owned_offsets_partitions=str(partition)),
            partition_count=_ask_anybody,
            topics=shared.topics,
            group_configs=shared.configs.of,
            clock=now_ms,
        )
        end_offsets = self.coordinator.delete_topic_offsets
        self.names = TopicNames(partition, self._image, self._journal, end_offsets, now_ms)

    @property
    def is_led(self) -> bool:
        """Whether it leads, or is about to."""
        return self._leading is not None and not self._is_closing

    @property
    def is_serving(self) -> bool:
        """Whether it leads, and has loaded what was there."""
        return self.is_led and self._journal.is_serving

    @property
    def is_loading(self) -> bool:
        """Whether it is about to lead, and cannot serve yet."""
        return self.is_led and not self._journal.is_serving

    def look(self) -> None:
        """Read what is new, or do what is due."""
        if not self._is_closing:
            self._journal.look()

    def lead(self) -> None:
        """Take the partition over; once."""
        if self._leading is None:
            self._leading = asyncio.get_running_loop().create_task(self._lead())

    async def close(self) -> None:
        """Answer everyone who waits, and lead no more."""
        self._is_closing = True
        await self.coordinator.close()

    async def _lead(self) -> None:
        try:
            await self.coordinator.start()
            await self.coordinator.loaded()
        except DeposedError as error:
            logger.warning("%s", error)  # `_is_deposed` sees to it
        except DataFolderError as error:
            self._failed(error)
        else:
            logger.info("offsets partition %d is led here", self.partition)

    def _is_deposed(self) -> None:
        self.is_read.set()
        if not self._is_closing:
            self._deposed(self)

    def _alarm(self, text: str) -> None:
        logger.critical("offsets partition %d: %s", self.partition, text)


class Partitions:
    """All of the log's topic. Belongs to the event loop's thread."""

    def __init__(self, shared: Shared, rejoin: Callable[[], None], failed: Callable[[DataFolderError], None]) -> None:
        """`rejoin`: ask the group anew who has what. `failed`: a log that this release cannot read."""
        self._shared = shared
        self._rejoin = rejoin
        self._failed = failed
        self._given: set[int] = set()
        """What the group says is led here."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._naming = Naming(shared.ids, failed, self._soon)
        self._replicas = [self._new(partition) for partition in range(shared.topic.partitions)]
        self._timer = asyncio.get_running_loop().call_later(0, self._look)

    def __len__(self) -> int:
        return len(self._replicas)

    def coordinator(self, partition: int) -> Coordinator:
        """The one of this partition; it refuses everything while it is not led here."""
        return self._replicas[partition].coordinator

    def confirm(self, partition: int, group: str) -> Round | None:
        """`Coordinator.confirm`, and that what the group has committed is of the topics that have their names now."""
        return self._naming.confirm(self._replicas[partition], group)

    def expect_commit(self, partition: int, topics: Iterable[str]) -> None:
        """Offsets of these are about to be committed: find out which topics those are."""
        self._naming.expect_commit(self._replicas[partition], topics)

    def led(self) -> list[int]:
        """What is led here, or about to be."""
        return [one.partition for one in self._replicas if one.is_led]

    def loading(self) -> int:
        """How many of those cannot be served yet."""
        return sum(one.is_loading for one in self._replicas)

    def is_led(self, partition: int) -> bool:
        """Whether this one is."""
        return self._replicas[partition].is_led

    async def are_read(self) -> None:
        """Each table has had all of its log once, or its log cannot be read now."""
        await asyncio.gather(*(one.is_read.wait() for one in self._replicas))

    def lead(self, partitions: Iterable[int]) -> None:
        """The group has given these to this server, and no other ones."""
        self._given = set(partitions)
        for partition in self._given:
            self._replicas[partition].lead()
        if kept := [one for one in self.led() if one not in self._given]:
            self._soon(self.give_up(kept))

    def keep(self, partitions: Iterable[int]) -> None:
        """The group may have given these to others, or have no coordinator: they are led until one of the others fences
        this server, or the group has spoken."""
        self._given.difference_update(partitions)

    async def give_up(self, partitions: Iterable[int]) -> None:
        """The group takes these away; returns when everyone who waits for something of them is answered. That can take
        longer than the group waits: what it gives back meanwhile is led then."""
        taken = [self._replicas[partition] for partition in partitions]
        self._given.difference_update(one.partition for one in taken)
        await asyncio.gather(*(self._follow_again(one) for one in taken))
        for one in taken:
            if one.partition in self._given:
                self._replicas[one.partition].lead()

    async def close(self) -> None:
        self._is_closed = True
        self._timer.cancel()
        await asyncio.gather(*(one.close() for one in self._replicas))

    def _new(self, partition: int) -> Replica:
        return Replica(partition, self._shared, self._deposed, self._failed)

    def _look(self) -> None:
        for one in self._replicas:
            one.look()
        self._naming.look(self._replicas)
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _deposed(self, replica: Replica) -> None:
        self._shared.appends.note_deposed()
        self._soon(self._ask_anew(replica))

    def _soon(self, what: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask_anew(self, replica: Replica) -> None:
        await replica.close()
        await asyncio.sleep(AGAIN_S)
        if self._replicas[replica.partition] is not replica:
            return  # the group has taken it away meanwhile
        await self._follow_again(replica)
        if replica.partition in self._given and not self._is_closed:
            logger.warning("offsets partition %d was refused by the log: asking the group anew", replica.partition)
            self._rejoin()

    async def _follow_again(self, replica: Replica) -> None:
        """Another one in its place, if it is there yet."""
        await replica.close()
        if self._replicas[replica.partition] is replica and not self._is_closed:
            self._replicas[replica.partition] = self._new(replica.partition)
            self._replicas[replica.partition].look()
