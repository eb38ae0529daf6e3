"""The node: what all handlers share. It owns the data folder, the topics with their logs, and the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from keylane.broker import data_folder
from keylane.broker.backup_points import BackupPoints
from keylane.broker.broker_configs import BrokerConfigs
from keylane.broker.cleaning import Cleaning
from keylane.broker.features import DEAD_LETTERS, SHARE_VERSION, TRANSACTION_VERSION, Features
from keylane.broker.fetch_sessions import FetchSessions
from keylane.broker.group_configs import GroupConfigs
from keylane.broker.leader_epochs import LeaderEpochs
from keylane.broker.offsets_beyond import warn_of_offsets_beyond
from keylane.broker.offsets_topic import AllTopics, OffsetsTopic
from keylane.broker.producer_ids import ProducerIds
from keylane.broker.share_sessions import ShareSessions
from keylane.broker.share_settings import share_settings
from keylane.broker.topics import TopicRegistry
from keylane.broker.upgrade import upgrade
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.journal.segments import last_segment
from keylane.coordinator.transaction_service import Ports
from keylane.errors import DataFolderError
from keylane.storage.filesystem import StorageError
from keylane.storage.sealed import read_sealed, write_sealed
from keylane.telling import logger_of

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from keylane.broker.config import BrokerConfig
    from keylane.broker.sessions import Session
    from keylane.broker.share_sessions import Member
    from keylane.coordinator.journal.journal import FileJournal
    from keylane.storage.filesystem import FileSystem

logger = logger_of("keylane.broker")

LOG_THREADS = 8
"""Threads that write and sync partitions: a disk serves a few syncs at once, and more would only queue there."""
CLEAN_SHUTDOWN_KIND = "clean-shutdown"
HOUSEKEEPING_INTERVAL_S = 600
OFFSETS_CHECK_WAIT_S = 0.05
"""How long a start waits for it: with some 10,000 groups it is done by then, before anybody writes; else it goes on."""


class Node:
    """One broker, without its socket. Made by `Node.open`, closed by `close`."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: data_folder.DataFolder,
        config: BrokerConfig,
        clock: Callable[[], int],
        on_load_failure: Callable[[DataFolderError], None] | None = None,
    ) -> None:
        self.clock = clock
        """Milliseconds since the epoch."""
        self.cluster_id = folder.cluster_id
        self.node_id = folder.node_id
        self.host = ""
        """What clients are told to connect to; set when the server listens."""
        self.port = 0
        self.executor = ThreadPoolExecutor(LOG_THREADS, thread_name_prefix="keylane-log")
        self._leader_epochs = LeaderEpochs(filesystem, f"{folder.path}/{data_folder.LEADER_EPOCH}", clock)
        self.leader_epoch = 0
        """Of this start."""
        self.topics = TopicRegistry(
            filesystem, folder.path, config, self.executor, clock, epoch_of_topic=self._leader_epochs.of_topic
        )
        self._cleaning = Cleaning(
            self.topics,
            filesystem,
            self.executor,
            clock,
            retention_ms=lambda: self.config.log_retention_check_interval_ms,
            compaction_ms=lambda: self.config.log_cleaner_backoff_ms,
        )
        self.producer_ids = ProducerIds(filesystem, f"{folder.path}/{data_folder.PRODUCER_IDS}", self.executor)
        self.broker_configs = BrokerConfigs(
            filesystem, f"{folder.path}/{data_folder.BROKER_CONFIGS}", self.executor, config
        )
        self.group_configs = GroupConfigs(
            filesystem, f"{folder.path}/{data_folder.GROUP_CONFIGS}", self.executor, config
        )
        self.features = Features(filesystem, f"{folder.path}/{data_folder.FEATURES}", self.executor)
        self._all_topics = AllTopics(self.topics, lambda: self.offsets_topic)
        # One thread of its own: no commit waits for a sync of some topic's log.
        self._journal_executor = ThreadPoolExecutor(1, thread_name_prefix="keylane-journal")
        journal_on_files = on_files(
            filesystem,
            f"{folder.path}/{data_folder.COORDINATOR}",
            self._journal_executor,
            background=self.executor,
            may_sync_inline=True,
        )
        journals: list[FileJournal] = []

        def make_journal(*parts: Any) -> FileJournal:
            journals.append(journal_on_files(*parts))
            return journals[-1]

        self.coordinator = Coordinator(
            journal=make_journal,
            options=config,
            partition_count=self.topics.partition_count,
            topics=self._all_topics,
            group_configs=self.group_configs.of,
            share_settings=lambda group: share_settings(
                group,
                self.group_configs,
                config,
                can_have_letters=self.features.level(SHARE_VERSION) >= DEAD_LETTERS,
            ),
            clock=clock,
            ports=Ports(
                self.topics.log,
                self.producer_ids.new_id,
                self.topics.producers,
                self.producer_ids.start_above,
                lambda: self.features.level(TRANSACTION_VERSION),
            ),
            on_load_failure=on_load_failure,
        )
        self.offsets_topic = OffsetsTopic(
            self.coordinator, config.offsets_topic_num_partitions, self.cluster_id, config.owned_offsets_partitions
        )
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            lambda: secrets.randbelow(2**31 - 1) + 1,
            self.topic_name,
        )
        self.share_sessions = ShareSessions(config.group_share_max_share_sessions)
        self.backup_points = BackupPoints(
            filesystem, folder.path, self.executor, self.topics, self.coordinator, journals[0]
        )
        self._filesystem = filesystem
        self._folder = folder
        self._housekeeping: asyncio.TimerHandle | None = None
        self._offsets_check: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        filesystem: FileSystem,
        path: str,
        config: BrokerConfig,
        clock: Callable[[], int],
        on_load_failure: Callable[[DataFolderError], None] | None = None,
    ) -> Node:
        """Lock the data folder, recover everything in it, and finish what a crash interrupted.

        Raises `DataFolderError`; nothing stays locked then. `on_load_failure` is told of damage in a large journal
        that is found later.
        """
        folder = data_folder.open_data_folder(filesystem, path, config.node_id)
        node = None
        try:
            if folder.version < data_folder.FORMAT_VERSION:
                upgrade(filesystem, folder)
            for missing in data_folder.missing(filesystem, path):
                raise DataFolderError(
                    f"{missing} is missing, and this broker has made it: restore it from a copy, or let `keylane "
                    "broker repair` go on with what is there"
                )
            node = cls(filesystem, folder, config, clock, on_load_failure)
            await node._load()
        except BaseException:
            if node is not None:
                node.executor.shutdown()
                node._journal_executor.shutdown()
            folder.lock.release()
            raise
        return node

    @property
    def config(self) -> BrokerConfig:
        """The broker's options, as they are now."""
        return self.broker_configs.now

    def topic_name(self, topic_id: uuid.UUID | None) -> str | None:
        """The name of the topic that has this id; None when no topic has it (any more). Source: KIP-516."""
        return self._all_topics.name_of(topic_id)

    def topic_names(self) -> list[str]:
        """Of all topics that clients are told of."""
        return self._all_topics.names()

    def partition_count(self, name: str) -> int | None:
        """The partitions of the topic that has this name now; None when there is none."""
        offsets = self.offsets_topic
        return offsets.partition_count if name == offsets.name else self.topics.partition_count(name)

    @property
    def logs_folder(self) -> str:
        """Where the partitions' folders are."""
        return f"{self._folder.path}/{data_folder.TOPICS}"

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The id of the topic that has this name now; None when there is none."""
        return self.offsets_topic.topic_id if name == self.offsets_topic.name else self.topics.topic_id(name)

    def watch_share_session(self, member: Member, connection: Session) -> None:
        """The member's session ends with this connection."""
        connection.at_close(member, lambda: self.close_share_session(member, connection))

    def close_share_session(self, member: Member, connection: Session | None = None) -> None:
        """The member's session, if it has one (of this connection), is over: others may have what it had."""
        if self.share_sessions.close(member, connection) and self.coordinator.share is not None:
            self.coordinator.share.release(*member)

    async def check_ages(self) -> None:
        """Look now at all that may have become too old, as is done from time to time, and return when it is gone.

        Raises `StorageError`.
        """
        await self.coordinator.check_ages()
        await self._cleaning.remove_expired()
        await self._cleaning.compact()
        self._expire_producers()

    async def close(self) -> None:
        """Make everything durable, leave word of a clean stop, and release the folder."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self._offsets_check is not None:
            self._offsets_check.cancel()
            await asyncio.wait({self._offsets_check})
        await self._cleaning.stop()
        try:
            await self.coordinator.close()
            snapshots = await self.topics.close()
            await asyncio.get_running_loop().run_in_executor(self.executor, self._leave_snapshots, snapshots)
        finally:
            self.executor.shutdown()
            self._journal_executor.shutdown()
            self._folder.lock.release()

    async def _load(self) -> None:
        self.broker_configs.load()
        self.topics.configure(self.config)
        snapshots = self._read_snapshots()
        self.topics.load(snapshots)
        self._leader_epochs.load()
        self.leader_epoch = self._leader_epochs.start(max((log.leader_epoch for log in self.topics.logs()), default=0))
        for log in self.topics.logs():
            log.begin_epoch(self.leader_epoch)
        self._remove_snapshots()
        self.producer_ids.load(self.leader_epoch)
        self.group_configs.load()
        self.features.load()
        self.producer_ids.start_above(max((log.highest_producer_id for log in self.topics.logs()), default=-1))
        self._check_open_transactions()
        await self.coordinator.start()
        if snapshots is None:  # a clean stop leaves nothing to look for
            self._offsets_check = asyncio.get_running_loop().create_task(self._check_offsets())
            await asyncio.wait({self._offsets_check}, timeout=OFFSETS_CHECK_WAIT_S)
        await self.topics.finish_interrupted(self.coordinator.delete_topic_offsets)
        self._keep_house()
        self._cleaning.start()

    def _check_open_transactions(self) -> None:
        """Raise `DataFolderError` when the coordinator's files are gone, and with them whom open transactions belong
        to: nobody could end them, and readers of committed records would wait for ever."""
        coordinator = f"{self._folder.path}/{data_folder.COORDINATOR}"
        if last_segment(self._filesystem, coordinator):
            return
        for log in self.topics.logs():
            if log.stable_offset < log.high_watermark:
                raise DataFolderError(
                    f"{coordinator} holds no journal, and {log.folder} has an open transaction from offset "
                    f"{log.stable_offset} on, which nobody else can end: restore the coordinator's folder from a copy"
                )

    async def _check_offsets(self) -> None:
        with contextlib.suppress(DataFolderError, StorageError):  # told of by who loads them
            await warn_of_offsets_beyond(self.coordinator, self.topics, self._folder.path)

    def _keep_house(self) -> None:
        self._expire_producers()
        self._housekeeping = asyncio.get_running_loop().call_later(HOUSEKEEPING_INTERVAL_S, self._keep_house)

    def _expire_producers(self) -> None:
        oldest = self.clock() - self.config.producer_id_expiration_ms
        for log in self.topics.logs():
            log.expire_producers(oldest)

    def _read_snapshots(self) -> dict[str, Any] | None:
        """What a clean stop left."""
        path = f"{self._folder.path}/{data_folder.CLEAN_SHUTDOWN}"
        if not self._filesystem.exists(path):
            return None
        try:
            snapshots: dict[str, Any] = read_sealed(self._filesystem, path, CLEAN_SHUTDOWN_KIND)
        except DataFolderError as error:
            logger.warning("%s; the logs are read instead", error)
            return None
        return snapshots

    def _remove_snapshots(self) -> None:
        """Before anything changes that they speak of, and not before the logs are as they say: a folder that is refused
        now is refused again."""
        path = f"{self._folder.path}/{data_folder.CLEAN_SHUTDOWN}"
        if self._filesystem.exists(path):
            self._filesystem.remove(path)
            self._filesystem.sync_dir(self._folder.path)

    def _leave_snapshots(self, snapshots: dict[str, Any]) -> None:
        path = f"{self._folder.path}/{data_folder.CLEAN_SHUTDOWN}"
        try:
            write_sealed(self._filesystem, path, CLEAN_SHUTDOWN_KIND, snapshots)
        except OSError as error:
            logger.warning("%s: %s; the next start reads the logs", path, error)
