"""The broker's options that are changed while it runs, of this broker or of all; kept in a small state file.

Most of those that can be changed hold for topics without a config of their own. Source: KIP-226.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.broker.config import kafka_name, with_settings
from keylane.broker.topic_settings import HONOURED, INT_MAX, TopicSetting, check_value
from keylane.errors import UsageError
from keylane.storage.sealed import keep_sealed, read_sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from keylane.broker.config import BrokerConfig
    from keylane.storage.filesystem import FileSystem

KIND = "broker-configs"
ALL = ""
"""Who is meant by a resource without a name."""
OF_THE_BROKER = (
    TopicSetting(
        "BOOLEAN",
        "errors_deadletterqueue_auto_create_topics_enable",
        "Whether topics that share groups name for dead letters are made.",
        choices=("false", "true"),
    ),
    TopicSetting(
        "STRING", "errors_deadletterqueue_topic_name_prefix", "How topics for dead letters of share groups are named."
    ),
    TopicSetting(
        "LONG", "log_cleaner_backoff_ms", "How often it is looked for what to compact.", least=1, most=INT_MAX
    ),
    TopicSetting("INT", "max_connections", "A connection above it is closed at once.", least=1, most=INT_MAX),
    TopicSetting("INT", "max_connections_per_ip", "The same of one address.", most=INT_MAX),
    TopicSetting("STRING", "max_connections_per_ip_overrides", "The same for named addresses: ADDRESS:COUNT,…"),
    TopicSetting(
        "INT", "producer_id_expiration_ms", "How long a producer is known without a batch of it.", least=1, most=INT_MAX
    ),
)
CHANGEABLE = {kafka_name(each.option): each for each in (*HONOURED.values(), *OF_THE_BROKER)}
"""By the option's name in Kafka: what it is the default of in topics, or what it is itself."""


class BrokerConfigs:
    """What holds now; in memory, and in the file before a change is answered."""

    def __init__(self, filesystem: FileSystem, path: str, executor: Executor, started: BrokerConfig) -> None:
        self.started = started
        """What the broker was started with."""
        self.now = started
        self.own = str(started.node_id)
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._settings: dict[str, dict[str, str]] = {}
        """By broker, or `ALL`."""
        self._change = asyncio.Lock()

    def load(self) -> None:
        """Read the file, if there is one. Raises `DataFolderError`, and `UsageError` for what does not go with the
        options of this start."""
        if self._filesystem.exists(self._path):
            self._settings = read_sealed(self._filesystem, self._path, KIND)
            self.now = self._with(self._settings)

    def of(self, broker: str) -> Mapping[str, str]:
        return self._settings.get(broker, {})

    def check(self, broker: str, settings: Mapping[str, str]) -> None:
        """Raises `UsageError` for settings that a broker, or all, cannot have."""
        self._with({**self._settings, broker: dict(settings)})

    async def alter(self, broker: str, settings: dict[str, str]) -> None:
        """Give a broker, or all, these settings in place of the ones they have; durable on return.

        Raises `UsageError`, and `StorageError`.
        """
        async with self._change:
            changed = {**self._settings, broker: settings}
            now = self._with(changed)
            await keep_sealed(self._filesystem, self._executor, self._path, KIND, changed)
            self._settings, self.now = changed, now

    def _with(self, settings: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
        """The options of the start, with these; a broker's own win."""
        merged = {**settings.get(ALL, {}), **settings.get(self.own, {})}
        for name, value in merged.items():
            if name not in CHANGEABLE:
                raise UsageError(f"{name} cannot be changed while the broker runs")
            merged[name] = check_value(name, value, CHANGEABLE[name])
        return with_settings(self.started, merged)
