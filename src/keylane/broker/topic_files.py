"""The files behind the topics: the registry file, and a folder of segments for each partition. Everything blocks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.broker import data_folder
from keylane.broker.topic_values import TopicValues, resolve
from keylane.storage.facts import FACTS_FILE
from keylane.storage.filesystem import TEMPORARY_SUFFIX, DiskFullError, StorageError
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import make_log, recover_log, restore_log, sync_logs
from keylane.storage.sealed import read_sealed, write_sealed
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from keylane.broker.config import BrokerConfig
    from keylane.storage.filesystem import FileSystem

logger = logger_of("keylane.broker")

_OF_AN_EMPTY_LOG = {FACTS_FILE, FACTS_FILE + TEMPORARY_SUFFIX}
"""What is in its folder beside its segment."""
KIND = data_folder.REGISTRY_KIND
CREATING = "creating"
LIVE = "live"
DELETING = "deleting"


@dataclass(slots=True)
class Topic:
    """A topic and its logs. `state` is what the registry file says."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    settings: dict[str, str]
    """Topic configs that it was given."""
    values: TopicValues
    """What holds for it."""
    state: str = LIVE
    logs: list[PartitionLog] = field(default_factory=list)

    @property
    def log_names(self) -> list[str]:
        """`flights-0`, …: the names of its partitions' folders, and of their snapshots."""
        return [f"{self.name}-{partition}" for partition in range(self.partition_count)]

    def entry(self) -> dict[str, Any]:
        """The topic as the registry file holds it."""
        return {
            "name": self.name,
            "id": str(self.topic_id),
            "partitions": self.partition_count,
            "settings": self.settings,
            "state": self.state,
        }


class TopicFiles:
    """Makes, opens and removes them."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        config: BrokerConfig,
        executor: Executor,
        clock: Callable[[], int],
        epoch_of_topic: Callable[[bool], int],
    ) -> None:
        self.registry_path = f"{folder}/{data_folder.REGISTRY}"
        self._filesystem = filesystem
        self._logs_folder = f"{folder}/{data_folder.TOPICS}"
        self.config = config
        """The broker's options, as they are now."""
        self._executor = executor
        self._clock = clock
        self._epoch_of_topic = epoch_of_topic
        self._removed: set[str] = set()
        """Names of topics that were removed since the start."""

    def configure(self, config: BrokerConfig) -> None:
        """These are the broker's options from now on."""
        self.config = config

    def load(self, snapshots: Mapping[str, Any]) -> list[Topic]:
        """All topics of the registry file, the live ones with their logs. Raises `DataFolderError` for damage."""
        topics = [
            Topic(
                entry["name"],
                uuid.UUID(entry["id"]),
                entry["partitions"],
                entry["settings"],
                resolve(entry["settings"], self.config),
                entry["state"],
            )
            for entry in read_sealed(self._filesystem, self.registry_path, KIND)
        ]
        for topic in topics:
            if topic.state == LIVE:
                topic.logs = [self._open_log(topic, name, snapshots.get(name)) for name in topic.log_names]
        known = {name for topic in topics for name in topic.log_names}
        grown = {topic.name for topic in topics if topic.state == LIVE}
        for name in set(self._filesystem.listdir(self._logs_folder)) - known:
            if name.rpartition("-")[0] in grown and self._remove_unfinished(name):
                continue
            logger.warning("%s/%s is not in the topic registry and is left alone", self._logs_folder, name)
        return topics

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Replace the registry file, durably."""
        write_sealed(self._filesystem, self.registry_path, KIND, entries)

    def check_no_leftovers(self, names: list[str]) -> None:
        """Raise `StorageError` when a folder that new partitions need is there."""
        for name in names:
            if self._filesystem.exists(f"{self._logs_folder}/{name}"):
                raise StorageError(
                    f"{self._logs_folder}/{name} exists, and the topic registry does not know it: move it elsewhere"
                )

    def leftovers(self, topics: Sequence[Topic]) -> dict[str, StorageError]:
        """New topics that a folder is in the way of, by name."""
        found = {}
        for topic in topics:
            try:
                self.check_no_leftovers(topic.log_names)
            except StorageError as error:
                found[topic.name] = error
        return found

    def _remove_unfinished(self, name: str) -> bool:
        """Remove an empty log, which is what a crash leaves of a partition that was being added; False for others."""
        folder = f"{self._logs_folder}/{name}"
        for name_in_it in set(self._filesystem.listdir(folder)) - _OF_AN_EMPTY_LOG:
            file = self._filesystem.open_append(f"{folder}/{name_in_it}")
            size = file.size
            file.close()
            if size:
                return False
        self._filesystem.remove_tree(folder)
        self._filesystem.sync_dir(self._logs_folder)
        return True

    def add_logs(self, topic: Topic, partition_count: int) -> list[PartitionLog]:
        """The empty logs of a topic's new partitions, durably."""
        names = [f"{topic.name}-{partition}" for partition in range(topic.partition_count, partition_count)]
        self.check_no_leftovers(names)
        (logs,) = self._make([(topic, names)])
        return logs

    def create_logs(self, topics: Sequence[Topic]) -> list[list[PartitionLog]]:
        """The empty logs of new topics, durably."""
        return self._make([(topic, topic.log_names) for topic in topics])

    def _make(self, new: Sequence[tuple[Topic, list[str]]]) -> list[list[PartitionLog]]:
        folders = [f"{self._logs_folder}/{name}" for _, names in new for name in names]
        try:
            made = [self._make_logs(topic, names) for topic, names in new]
            sync_logs(self._filesystem, folders)
        except DiskFullError:
            self.remove_folders(folders)
            raise
        self._filesystem.sync_dir(self._logs_folder)
        return made

    def _make_logs(self, topic: Topic, names: list[str]) -> list[PartitionLog]:
        options = log_options(topic.values)
        epoch = self._epoch_of_topic(topic.name in self._removed)
        folders = [f"{self._logs_folder}/{name}" for name in names]
        return [make_log(self._filesystem, folder, options, self._executor, epoch) for folder in folders]

    def remove_logs(self, topic: Topic) -> None:
        """Remove what there is of the topic's folders, durably."""
        self._removed.add(topic.name)
        self.remove_folders([f"{self._logs_folder}/{name}" for name in topic.log_names])

    def remove_folders(self, folders: Iterable[str]) -> None:
        """Remove those of these folders that there are, durably."""
        for folder in folders:
            if self._filesystem.exists(folder):
                self._filesystem.remove_tree(folder)
        self._filesystem.sync_dir(self._logs_folder)

    def _open_log(self, topic: Topic, name: str, snapshot: dict[str, Any] | None) -> PartitionLog:
        folder = f"{self._logs_folder}/{name}"
        options = log_options(topic.values)
        if snapshot is not None:
            log = restore_log(self._filesystem, folder, options, self._executor, snapshot)
            if log is not None:
                return log
        return recover_log(self._filesystem, folder, options, self._executor, self._clock())


def log_options(values: TopicValues) -> LogOptions:
    """What of a topic's settings its logs have to know."""
    return LogOptions(values.segment_bytes, values.index_interval_bytes, values.segment_ms)
