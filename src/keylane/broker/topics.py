"""The topics: a durable registry, and the logs of all partitions.

The registry is one small file that is replaced as a whole. A topic that is being made or deleted is in it with that
state, so that a start after a crash knows what to finish: what was being made was never acknowledged and is removed,
what was being deleted is deleted. A topic is served only in state "live".
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.broker import data_folder
from keylane.broker.topic_settings import setting
from keylane.errors import DataFolderError, UsageError
from keylane.storage.filesystem import StorageError
from keylane.storage.log import LogOptions, PartitionLog, create_log, recover_log, restore_log
from keylane.storage.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from concurrent.futures import Executor

    from keylane.broker.config import BrokerConfig
    from keylane.storage.filesystem import FileSystem

logger = logging.getLogger("keylane.broker")

KIND = "topics"
CREATING = "creating"
LIVE = "live"
DELETING = "deleting"

MAX_NAME_LENGTH = 249
"""Kafka's limit: a folder's name of at most 255 with `-` and a partition of five digits."""
MAX_PARTITIONS = 10_000
"""Partitions a topic may have: each has a folder and, in use, an open file."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def check_topic_name(name: str) -> None:
    """Raise `UsageError` for a name that Kafka does not allow."""
    if not name or name in (".", "..") or len(name) > MAX_NAME_LENGTH or not _LEGAL_NAME.fullmatch(name):
        raise UsageError(
            f"topic name {name!r}: give 1 to {MAX_NAME_LENGTH} letters, digits, '.', '_' or '-', but not '.' or '..'"
        )
    if name in INTERNAL_TOPICS:
        raise UsageError(f"topic name {name!r} is reserved for the broker")


@dataclass(slots=True)
class Topic:
    """A topic and its logs. `state` is what the registry file says."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    settings: dict[str, str] = field(default_factory=dict)
    """Topic configs that differ from the broker's."""
    state: str = LIVE
    logs: list[PartitionLog] = field(default_factory=list)
    max_message_bytes: int = 0
    """The largest batch it takes; set when it is admitted."""


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
    ) -> None:
        self._filesystem = filesystem
        self._path = f"{folder}/{data_folder.REGISTRY}"
        self._logs_folder = f"{folder}/{data_folder.TOPICS}"
        self._config = config
        self._executor = executor
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._pending: dict[str, Topic] = {}
        """Topics being made or deleted: in the file, but not served."""
        self._names: dict[uuid.UUID, str] = {}
        self._change = asyncio.Lock()
        self._failure: StorageError | None = None

    def exists(self, name: str) -> bool:
        return name in self._topics

    def partition_count(self, name: str) -> int | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.partition_count

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

    def logs(self) -> Iterable[PartitionLog]:
        return (log for topic in self._topics.values() for log in topic.logs)

    def colliding(self, name: str) -> str | None:
        """A topic whose name differs only in '.' and '_', which metric names cannot tell apart; Kafka refuses it."""
        if "." not in name and "_" not in name:
            return None
        plain = name.replace(".", "_")
        others = (*self._topics, *self._pending)
        return next((other for other in others if other != name and other.replace(".", "_") == plain), None)

    def load(self, snapshots: Mapping[str, Any] | None, *, is_new: bool) -> None:
        """Read the registry and recover every log; `snapshots` are those of a clean shutdown. Blocks.

        Raises `DataFolderError` for damage.
        """
        if not self._filesystem.exists(self._path):
            if not is_new and self._filesystem.listdir(self._logs_folder):
                raise DataFolderError(
                    f"{self._path} is missing, and {self._logs_folder} holds partitions: restore it from a copy"
                )
            self._write([])
            return
        known = set()
        for entry in read_sealed(self._filesystem, self._path, KIND):
            topic = Topic(entry["name"], uuid.UUID(entry["id"]), entry["partitions"], entry["settings"], entry["state"])
            if topic.state == LIVE:
                topic.logs = [
                    self._open_log(topic, partition, (snapshots or {}).get(f"{topic.name}-{partition}"))
                    for partition in range(topic.partition_count)
                ]
                self._admit(topic)
            else:
                self._pending[topic.name] = topic
            known |= {f"{topic.name}-{partition}" for partition in range(topic.partition_count)}
        for name in set(self._filesystem.listdir(self._logs_folder)) - known:
            logger.warning("%s/%s is not in the topic registry and is left alone", self._logs_folder, name)

    async def finish_interrupted(self, forget_offsets: Callable[[str], Awaitable[None]]) -> None:
        """After `load`: remove what a crash left half made or half deleted."""
        for topic in list(self._pending.values()):
            if topic.state == DELETING:
                await forget_offsets(topic.name)
            await self._in_executor(self._remove_folders, topic)
            del self._pending[topic.name]
            await self._in_executor(self._write, self._entries())

    async def create(self, name: str, partition_count: int, settings: dict[str, str] | None = None) -> Topic:
        """Make a topic; durable on return. The caller has checked name and counts.

        Raises `FileExistsError` when it exists by now, and `StorageError`.
        """
        async with self._change:
            if name in self._topics or name in self._pending:
                raise FileExistsError(f"topic {name!r} already exists")
            topic = Topic(name, uuid.uuid4(), partition_count, settings or {}, CREATING)
            await self._in_executor(self._check_no_leftovers, topic)
            self._pending[name] = topic
            await self._in_executor(self._write, self._entries())
            topic.logs = await self._in_executor(self._create_logs, topic)
            topic.state = LIVE
            await self._in_executor(self._write, self._entries())
            del self._pending[name]
            self._admit(topic)
            return topic

    async def delete(self, name: str, forget_offsets: Callable[[str], Awaitable[None]]) -> None:
        """Delete a topic, its logs and its offsets in every group; durable on return.

        Raises `KeyError` when it does not exist (any more), and `StorageError`.
        """
        async with self._change:
            self._check_failure()
            topic = self._topics.pop(name)
            del self._names[topic.topic_id]
            topic.state = DELETING
            self._pending[name] = topic
            await self._in_executor(self._write, self._entries())
            for log in topic.logs:
                await log.close()
            await forget_offsets(name)
            await self._in_executor(self._remove_folders, topic)
            del self._pending[name]
            await self._in_executor(self._write, self._entries())

    async def close(self) -> dict[str, Any]:
        """Close all logs; the snapshots, for a clean start, of those that have not failed."""
        async with self._change:
            snapshots = {}
            for topic in self._topics.values():
                for partition, log in enumerate(topic.logs):
                    await log.close()
                    if log.failure is None:
                        snapshots[f"{topic.name}-{partition}"] = log.snapshot()
            return snapshots

    def _admit(self, topic: Topic) -> None:
        topic.max_message_bytes = setting(topic.settings, "max.message.bytes", self._config)
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name

    async def _in_executor(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run a change of files. After an error the state on disk is unknown, so no more changes are taken."""
        self._check_failure()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, functools.partial(work, *arguments))
        except OSError as error:
            self._failure = StorageError(
                f"{self._path}: {error}; topics are neither made nor deleted any more: free or mend the disk, then "
                "restart the broker"
            )
            raise self._failure from error

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _entries(self) -> list[dict[str, Any]]:
        return [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "partitions": topic.partition_count,
                "settings": topic.settings,
                "state": topic.state,
            }
            for topic in (*self._topics.values(), *self._pending.values())
        ]

    def _write(self, entries: list[dict[str, Any]]) -> None:
        write_sealed(self._filesystem, self._path, KIND, entries)

    def _folder(self, topic: Topic, partition: int) -> str:
        return f"{self._logs_folder}/{topic.name}-{partition}"

    def _options(self, topic: Topic) -> LogOptions:
        return LogOptions(
            setting(topic.settings, "segment.bytes", self._config),
            setting(topic.settings, "index.interval.bytes", self._config),
        )

    def _open_log(self, topic: Topic, partition: int, snapshot: dict[str, Any] | None) -> PartitionLog:
        folder = self._folder(topic, partition)
        options = self._options(topic)
        if snapshot is not None:
            log = restore_log(self._filesystem, folder, options, self._executor, snapshot)
            if log is not None:
                return log
        return recover_log(self._filesystem, folder, options, self._executor, self._clock())

    def _check_no_leftovers(self, topic: Topic) -> None:
        for partition in range(topic.partition_count):
            folder = self._folder(topic, partition)
            if self._filesystem.exists(folder):
                raise StorageError(f"{folder} exists, and the topic registry does not know it: move it elsewhere")

    def _create_logs(self, topic: Topic) -> list[PartitionLog]:
        options = self._options(topic)
        logs = [
            create_log(self._filesystem, self._folder(topic, partition), options, self._executor)
            for partition in range(topic.partition_count)
        ]
        self._filesystem.sync_dir(self._logs_folder)
        return logs

    def _remove_folders(self, topic: Topic) -> None:
        for partition in range(topic.partition_count):
            folder = self._folder(topic, partition)
            if self._filesystem.exists(folder):
                self._filesystem.remove_tree(folder)
        self._filesystem.sync_dir(self._logs_folder)
