"""The topics: a durable registry, and the logs of all partitions.

The registry is one small file that is replaced as a whole. A topic that is being made or deleted is in it with that
state, so that a start after a crash knows what to finish: what was being made was never acknowledged and is removed,
what was being deleted is deleted. A topic is served only in state "live". A change for which there is no room on the
disk is left in the same way; the next change finishes it first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker.topic_files import CREATING, DELETING, LIVE, Topic, TopicFiles, log_options
from keylane.broker.topic_values import resolve
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.errors import UsageError
from keylane.storage.filesystem import DiskFullError, NoRoomError, StorageError
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from keylane.broker.config import BrokerConfig
    from keylane.storage.filesystem import FileSystem
    from keylane.storage.log import PartitionLog
    from keylane.storage.producers import ProducerDescription

logger = logger_of("keylane.broker")

TopicPartition = tuple[str, int]
NamedTopic = str | uuid.UUID
"""A topic as a request has it: its name, or its id (KIP-516)."""
NamedPartition = tuple[NamedTopic, int]
NO_TOPIC_ID = uuid.UUID(int=0)
"""No topic has this id."""
MAX_NAME_LENGTH = 249
"""Kafka's limit: a folder's name of at most 255 with `-` and a partition of five digits."""
MAX_PARTITIONS = 10_000
"""Partitions a topic may have: each has a folder and, in use, an open file."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})


def check_legal_name(name: str) -> None:
    """Raise `UsageError` for a name that no topic can have."""
    if not name or name in (".", "..") or len(name) > MAX_NAME_LENGTH or not _LEGAL_NAME.fullmatch(name):
        raise UsageError(
            f"topic name {name!r}: give 1 to {MAX_NAME_LENGTH} letters, digits, '.', '_' or '-', but not '.' or '..'"
        )


def check_topic_name(name: str) -> None:
    """Raise `UsageError` for a name that clients may not give a topic."""
    check_legal_name(name)
    if name in INTERNAL_TOPICS:
        raise UsageError(f"topic name {name!r} is reserved for the broker")


def metric_name(topic: str) -> str:
    """How metrics name a topic."""
    return topic.replace(".", "_")


def collision(name: str, other: str) -> str:
    """What is said of a topic that `TopicRegistry.colliding` finds another one for."""
    return f"topic {name!r} collides with {other!r}: they differ only in '.' and '_'"


class NewTopic(NamedTuple):
    """What to make."""

    name: str
    partition_count: int
    settings: dict[str, str]
    """Its own configs."""


class TopicRegistry:
    """All topics of the node.

    Thread safety: state belongs to the event loop's thread; files are made and removed in the executor, one change of
    the registry at a time.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        config: BrokerConfig,
        executor: Executor,
        clock: Callable[[], int],
        *,
        epoch_of_topic: Callable[[bool], int],
    ) -> None:
        """`epoch_of_topic`: gives the leader epoch of new partitions; see `LeaderEpochs.of_topic`."""
        self._files = TopicFiles(filesystem, folder, config, executor, clock, epoch_of_topic)
        self._executor = executor
        self._topics: dict[str, Topic] = {}
        self._partition_counts: dict[str, int] = {}
        self.partition_count: Callable[[str], int | None] = self._partition_counts.get
        """Of a topic; None when it is not there."""
        self._pending: dict[str, Topic] = {}
        """Topics being made or deleted: in the file, but not served."""
        self._by_metric_name: dict[str, str] = {}
        """Names of all topics, the pending ones too."""
        self._names: dict[uuid.UUID, str] = {}
        self.version = 0
        """Another one after each change of what topics and partitions there are."""
        self._forget_offsets: Callable[[str], Awaitable[None]] | None = None
        """Ends a topic's offsets in every group."""
        self._change = asyncio.Lock()
        self._failure: StorageError | None = None

    def configure(self, config: BrokerConfig) -> None:
        """These are the broker's options from now on. Before `load`."""
        self._files.configure(config)

    async def reconfigure(self, config: BrokerConfig) -> None:
        """The same while topics are served; in effect on return."""
        async with self._change:
            self.configure(config)
            for topic in list(self._topics.values()):
                self._resolve(topic, topic.settings)

    def _resolve(self, topic: Topic, settings: dict[str, str]) -> None:
        altered = dataclasses.replace(topic, settings=settings, values=resolve(settings, self._files.config))
        for log in altered.logs:
            log.options = log_options(altered.values)
        self._admit(altered)

    def exists(self, name: str) -> bool:
        return name in self._topics

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.topic_id

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        return None if topic_id is None else self._names.get(topic_id)

    def names(self) -> list[str]:
        return sorted(self._topics)

    def log(self, name: str, partition: int) -> PartitionLog | None:
        """The log of a partition, or None when there is none."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= partition < topic.partition_count:
            return None
        return topic.logs[partition]

    def topics(self) -> list[Topic]:
        return list(self._topics.values())

    def logs(self) -> Iterable[PartitionLog]:
        return (log for topic in self._topics.values() for log in topic.logs)

    @asynccontextmanager
    async def holding_files(self) -> AsyncIterator[None]:
        """Until this ends no topic is made, changed or removed, and no segment is removed or replaced."""
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._change)
            for log in self.logs():
                await held.enter_async_context(log.trimming())
            yield

    def producers(self) -> Iterable[tuple[TopicPartition, ProducerDescription]]:
        """Every idempotent or transactional producer that a log remembers, with its partition."""
        for topic in self._topics.values():
            for partition, log in enumerate(topic.logs):
                for producer in log.producers():
                    yield (topic.name, partition), producer

    def colliding(self, name: str) -> str | None:
        """A topic whose name differs only in '.' and '_', which metric names cannot tell apart; Kafka refuses it."""
        other = self._by_metric_name.get(metric_name(name))
        return None if other == name else other

    def load(self, snapshots: Mapping[str, Any] | None) -> None:
        """Read the registry and recover every log; `snapshots` are those of a clean shutdown. Blocks.

        Raises `DataFolderError` for damage.
        """
        for topic in self._files.load(snapshots or {}):
            self._by_metric_name[metric_name(topic.name)] = topic.name
            if topic.state == LIVE:
                self._admit(topic)
            else:
                self._pending[topic.name] = topic

    async def finish_interrupted(self, forget_offsets: Callable[[str], Awaitable[None]]) -> None:
        """After `load`: remove what a crash left half made or half deleted."""
        self._forget_offsets = forget_offsets
        await self._finish_interrupted()

    async def _finish_interrupted(self) -> None:
        """Raises `StorageError`; what is not finished then is finished another time."""
        for topic in list(self._pending.values()):
            assert self._forget_offsets is not None, "call finish_interrupted first"
            await self._remove(topic, self._forget_offsets)

    async def _remove(self, topic: Topic, forget_offsets: Callable[[str], Awaitable[None]]) -> None:
        """Files first: they make room for what the end of the offsets has to write."""
        await self._in_executor(self._files.remove_logs, topic)
        if topic.state == DELETING:
            await forget_offsets(topic.name)
        del self._pending[topic.name]
        try:
            await self._write()
        except NoRoomError:
            self._pending[topic.name] = topic
            raise
        del self._by_metric_name[metric_name(topic.name)]

    async def create(self, name: str, partition_count: int, settings: dict[str, str] | None = None) -> Topic:
        """Make a topic; durable on return. The caller has checked name and count.

        Raises `FileExistsError` when it exists by now, and `StorageError`.
        """
        made = (await self.create_all([NewTopic(name, partition_count, settings or {})]))[name]
        if isinstance(made, Exception):
            raise made
        return made

    async def create_all(self, wanted: Sequence[NewTopic]) -> dict[str, Topic | FileExistsError | StorageError]:
        """Make topics of different names; durable on return. One that exists by now, or whose folder does, has an error
        in its place.

        Raises `StorageError` where none was made.
        """
        async with self._change:
            await self._finish_interrupted()
            found: dict[str, Topic | FileExistsError | StorageError] = {}
            topics = []
            for name, partition_count, settings in wanted:
                values = resolve(settings, self._files.config)
                topics.append(Topic(name, uuid.uuid4(), partition_count, settings, values, CREATING))
                if name in self._topics:
                    found[name] = FileExistsError(f"topic {name!r} already exists")
            topics = [topic for topic in topics if topic.name not in found]
            found |= await self._in_executor(self._files.leftovers, topics)
            topics = [topic for topic in topics if topic.name not in found]
            if not topics:
                return found
            self._pending |= {topic.name: topic for topic in topics}
            self._by_metric_name |= {metric_name(topic.name): topic.name for topic in topics}
            await self._write()
            made = await self._in_executor(self._files.create_logs, topics)
            await self._write(*(dataclasses.replace(topic, state=LIVE) for topic in topics))
            for topic, logs in zip(topics, made, strict=True):
                topic.state, topic.logs = LIVE, logs
                del self._pending[topic.name]
                self._admit(topic)
                found[topic.name] = topic
            return found

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Give a topic more partitions, so that it has this many; durable on return.

        Raises `KeyError` when it does not exist (any more), `ValueError` when it has as many, and `StorageError`.
        """
        async with self._change:
            self._check_failure()
            topic = self._topics[name]
            if partition_count <= topic.partition_count:
                raise ValueError(f"topic {name!r} has {topic.partition_count} partitions")
            logs = await self._in_executor(self._files.add_logs, topic, partition_count)
            grown = dataclasses.replace(topic, partition_count=partition_count, logs=[*topic.logs, *logs])
            try:
                await self._write(grown)  # what a crash leaves before this is removed by the next start
            except NoRoomError:
                await self._in_executor(self._files.remove_folders, [log.folder for log in logs])
                raise
            self._admit(grown)

    async def alter(self, name: str, settings: dict[str, str]) -> None:
        """Give a topic these settings in place of the ones it has; durable, and in effect, on return.

        Raises `KeyError` when it does not exist (any more), and `StorageError`.
        """
        async with self._change:
            self._check_failure()
            topic = self._topics[name]
            await self._write(dataclasses.replace(topic, settings=settings))
            self._resolve(topic, settings)

    async def delete(self, name: str, forget_offsets: Callable[[str], Awaitable[None]]) -> None:
        """Delete a topic, its logs and its offsets in every group; durable on return.

        Raises `KeyError` when it does not exist (any more), and `StorageError`.
        """
        async with self._change:
            self._check_failure()
            topic = self._topics[name]
            await self._write(dataclasses.replace(topic, state=DELETING))
            del self._topics[name], self._partition_counts[name]
            del self._names[topic.topic_id]
            self.version += 1
            topic.state = DELETING
            self._pending[name] = topic
            for log in topic.logs:
                await log.close()
            try:
                await self._remove(topic, forget_offsets)
            except NoRoomError as error:
                logger.warning("topic %s is deleted; what is left of it goes when there is room: %s", name, error)

    async def close(self) -> dict[str, Any]:
        """Close all logs; the snapshots, for a clean start, of those that have not failed."""
        async with self._change:
            snapshots = {}
            for topic in self._topics.values():
                for name, log in zip(topic.log_names, topic.logs, strict=True):
                    await log.close()
                    if log.failure is None:
                        snapshots[name] = log.snapshot()
            return snapshots

    def _admit(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._partition_counts[topic.name] = topic.partition_count
        self._names[topic.topic_id] = topic.name
        self.version += 1

    async def _in_executor(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run a change of files. After an error the state on disk is unknown, so no more changes are taken; but where
        there was no room for it, it is known to be as before."""
        self._check_failure()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, functools.partial(work, *arguments))
        except DiskFullError as error:
            raise NoRoomError(f"{error.filename}: {error.strerror}; nothing was changed: make room") from error
        except OSError as error:
            self._failure = StorageError(
                f"{self._files.registry_path}: {error}; topics are neither made nor deleted any more: "
                "free or mend the disk, then restart the broker"
            )
            raise self._failure from error

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _write(self, *changed: Topic) -> None:
        """Replace the registry file; with `changed` in place of the topics of these names."""
        topics = {topic.name: topic for topic in (*self._topics.values(), *self._pending.values(), *changed)}
        entries = [topic.entry() for topic in topics.values()]
        await self._in_executor(self._files.write, entries)
