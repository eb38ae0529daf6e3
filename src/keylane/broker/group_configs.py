"""The configs of groups: what is set for one group in place of the broker's options, kept in a small state file.

Source: Apache Kafka's `GroupConfig`; of its configs those of consumer groups (KIP-848) are here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import UsageError
from keylane.storage.filesystem import DiskFullError, NoRoomError, StorageError
from keylane.storage.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from keylane.broker.config import BrokerConfig
    from keylane.storage.filesystem import FileSystem

KIND = "group-configs"


class GroupConfig(NamedTuple):
    """A config that a group may have."""

    option: str
    """The broker's, a field of `BrokerConfig`, that holds for groups without the config."""
    least: str
    """The options that say what it may be."""
    most: str
    about: str


GROUP_CONFIGS = {
    "consumer.session.timeout.ms": GroupConfig(
        "group_consumer_session_timeout_ms",
        "group_consumer_min_session_timeout_ms",
        "group_consumer_max_session_timeout_ms",
        "How long a member may be silent before it is taken for gone.",
    ),
    "consumer.heartbeat.interval.ms": GroupConfig(
        "group_consumer_heartbeat_interval_ms",
        "group_consumer_min_heartbeat_interval_ms",
        "group_consumer_max_heartbeat_interval_ms",
        "How often members are asked to send a heartbeat.",
    ),
    "consumer.assignment.interval.ms": GroupConfig(
        "group_consumer_assignment_interval_ms",
        "group_consumer_min_assignment_interval_ms",
        "group_consumer_max_assignment_interval_ms",
        "The least time between two computations of a group's assignment.",
    ),
}


def checked(settings: Mapping[str, str], config: BrokerConfig) -> dict[str, int]:
    """The configs as numbers. Raises `UsageError` for one that is not known, or not allowed."""
    found = {}
    for name, text in settings.items():
        if name not in GROUP_CONFIGS:
            raise UsageError(f"Unknown group config name: {name}")
        about = GROUP_CONFIGS[name]
        try:
            found[name] = int(text)
        except ValueError:
            raise UsageError(f"Invalid value {text} for configuration {name}: Not a number of type INT") from None
        for option, is_wrong, how in (
            (about.least, found[name] < getattr(config, about.least), "greater"),
            (about.most, found[name] > getattr(config, about.most), "less"),
        ):
            if is_wrong:
                raise UsageError(f"{name} must be {how} than or equal to {option.replace('_', '.')}")
    session = found.get("consumer.session.timeout.ms", config.group_consumer_session_timeout_ms)
    if session <= found.get("consumer.heartbeat.interval.ms", config.group_consumer_heartbeat_interval_ms):
        raise UsageError("consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms")
    return found


class GroupConfigs:
    """Of every group that has any; in memory, and in the file before a change is answered."""

    def __init__(self, filesystem: FileSystem, path: str, executor: Executor, config: BrokerConfig) -> None:
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._config = config
        self._settings: dict[str, dict[str, str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._change = asyncio.Lock()

    def load(self) -> None:
        """Read the file, if there is one. Raises `DataFolderError`."""
        if self._filesystem.exists(self._path):
            self._settings = read_sealed(self._filesystem, self._path, KIND)
            self._numbers = {
                group: {name: int(text) for name, text in settings.items()}
                for group, settings in self._settings.items()
            }

    def of(self, group: str) -> Mapping[str, int]:
        return self._numbers.get(group, {})

    def groups(self) -> list[str]:
        """Those that have configs of their own, in order."""
        return sorted(self._settings)

    def texts(self, group: str) -> dict[str, str]:
        return dict(self._settings.get(group, {}))

    async def alter(self, group: str, settings: dict[str, str]) -> None:
        """Give a group these configs in place of the ones it has; durable on return.

        Raises `UsageError`, and `StorageError`.
        """
        async with self._change:
            numbers = checked(settings, self._config)
            changed = {**self._settings, group: settings}
            if not settings:
                del changed[group]
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._executor, write_sealed, self._filesystem, self._path, KIND, changed)
            except DiskFullError as error:
                raise NoRoomError(f"{error.filename}: {error.strerror}; nothing was changed: make room") from error
            except OSError as error:
                raise StorageError(f"{self._path}: {error}; restart the broker when the disk is mended") from error
            self._settings = changed
            self._numbers[group] = numbers
