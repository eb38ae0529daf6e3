"""The coordinator: committed offsets and consumer groups behind one durable journal.

The thin shell around pure parts. `GroupRegistry` decides, `OffsetStore` remembers, the journal makes durable; what is
answered and what is shown to readers is durable first. Here is who may be served at all: nobody before the journal is
loaded, and nobody after `close`.

Thread safety: everything runs in the event loop's thread; only the journal's file work is in the executor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.consumer_group_actions import ConsumerGroupActions
from keylane.coordinator.consumer_groups.protocol import (
    ConsumerGroupDescription,
    GroupSettings,
    HeartbeatAnswer,
    NoTopics,
)
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.coordinator.formats import OFFSETS_TOPIC, known_record_head, partition_for
from keylane.coordinator.group_actions import GroupActions, new_consumer_id, new_member_id
from keylane.coordinator.groups.protocol import JoinAnswer, SyncAnswer
from keylane.coordinator.groups.registry import GroupRegistry, check_commit_without_group
from keylane.coordinator.groups.states import State
from keylane.coordinator.journal.image import Image
from keylane.coordinator.offset_service import (
    CommitRequest,
    CommitResult,
    ConditionalResult,
    FetchedTopic,
    KnownCommit,
    OffsetService,
)
from keylane.coordinator.removals import Expired, Removals
from keylane.coordinator.share_groups.protocol import HeartbeatAnswer as ShareHeartbeatAnswer
from keylane.coordinator.share_groups.protocol import ShareGroupDescription
from keylane.coordinator.share_service import ShareService
from keylane.coordinator.transaction_service import NO_PORTS, TransactionService
from keylane.errors import DataFolderError
from keylane.storage.filesystem import NoRoomError, StorageError
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

    from keylane.coordinator.consumer_groups.protocol import HeartbeatRequest, Topics
    from keylane.coordinator.groups.protocol import GroupDescription, JoinRequest, Leaver, Left, SyncRequest
    from keylane.coordinator.journal.journal import MakeJournal
    from keylane.coordinator.offsets.store import FetchedColumns
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.coordinator.share_groups.protocol import HeartbeatRequest as ShareHeartbeatRequest
    from keylane.coordinator.share_groups.protocol import ShareSettings
    from keylane.coordinator.transaction_service import Ports
    from keylane.coordinator.transactions.transactional_ids import Producer
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.coordinator")

START_WAIT_S = 0.25
"""How long `start` waits for the load, so that a small journal is ready (and a damaged one refused) at once; a longer
load goes on while requests are answered with COORDINATOR_LOAD_IN_PROGRESS."""
CLASSIC_TYPE, CONSUMER_TYPE, SHARE_TYPE = "classic", "consumer", "share"


class ListedGroup(NamedTuple):
    group: str
    protocol_type: str
    state: str
    group_type: str


class DeleteResult(NamedTuple):
    """What became of a request to delete offsets."""

    errors: Sequence[Sequence[int]]
    """For each topic of the request, one code a partition."""
    durable: Round | None
    """Wait for it before answering. None when there was nothing to delete."""


class Coordinator:
    """Made with what it needs of the node; `start` before use, `close` after; else it coordinates nothing."""

    def __init__(
        self,
        *,
        journal: MakeJournal,
        options: CoordinatorOptions,
        partition_count: Callable[[str], int | None],
        clock: Callable[[], int],
        topics: Topics | None = None,
        group_configs: Callable[[str], Mapping[str, int]] | None = None,
        share_settings: Callable[[str], ShareSettings] | None = None,
        ports: Ports | None = None,
        on_load_failure: Callable[[DataFolderError], None] | None = None,
    ) -> None:
        """`journal`: `on_files`, or another one behind the same port; `partition_count(topic)` is None for a topic that
        is not there, and `topics` has what consumer groups of KIP-848 subscribe to; `group_configs(group)` is what is
        set for a group, by option, and `share_settings(group)` what holds for a share group (there are none without
        it); `clock()` is milliseconds since the epoch; `on_load_failure` is told of a damaged
        journal that `start` did not wait for."""
        self._partitions = options.offsets_topic_num_partitions
        self._foreign = frozenset(range(self._partitions)) - options.owned_offsets_partitions
        """Offsets partitions that other nodes coordinate."""
        self._partitions_of_topic = partition_count
        # Timeouts must not follow a clock that someone sets; stored times must mean something after a restart.
        self._loop = asyncio.get_running_loop()
        self._epoch_ms = clock() - int(self._loop.time() * 1000)
        self._on_load_failure = on_load_failure
        self._image = Image()
        self._journal = journal(self._image, options, clock)
        self.must_confirm = self._journal.must_confirm
        """Whether a fetch has to ask `confirm` before it looks."""
        self._offsets = OffsetService(
            self._image.store, self._image.transactional, self._journal, options, self._partition_count, clock
        )
        self._groups = GroupRegistry(options, new_member_id)
        self._group_actions = GroupActions(self._groups, self._journal, options, clock, self._now_ms)
        self._topics = topics or NoTopics()
        self._options = options
        self._group_configs = group_configs
        self._consumer_groups = ConsumerGroups(self._topics, self._settings_of, new_consumer_id)
        self._consumer_actions = ConsumerGroupActions(
            self._consumer_groups,
            self._groups,
            self._group_actions,
            self._topics,
            self._journal,
            self._image,
            options,
            self._now_ms,
        )
        self.share: ShareService | None = None
        """Share groups, where there are any; `check_share` first."""
        if share_settings is not None:
            self.share = ShareService(
                self._topics, share_settings, self._journal, self._image, self._partitions, self._now_ms
            )
        self._removals = Removals(
            self._offsets, self._groups, self._consumer_groups, self._journal, options, clock, self.owns
        )
        self.transactions = TransactionService(self._journal, self._offsets, options, ports or NO_PORTS, clock)
        self._check_interval_s = options.offsets_retention_check_interval_ms / 1000
        self._check_timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None
        self._loading = set(range(self._partitions))
        """Offsets partitions whose groups cannot be served yet."""
        self._load_task: asyncio.Task[None] | None = None
        self._is_closed = False

    # Life

    async def start(self) -> None:
        """Load the journal. Call it when the topics are known. Raises `DataFolderError` for one that is damaged, unless
        the load takes longer than `START_WAIT_S`: then `loaded` raises it."""
        self._load_task = asyncio.get_running_loop().create_task(self._load())
        await asyncio.wait({self._load_task}, timeout=START_WAIT_S)
        if self._load_task.done():
            self._load_task.result()
        else:
            logger.info("loading committed offsets; their groups are served when it is done")
            self._load_task.add_done_callback(self._loaded_late)

    async def loaded(self) -> None:
        """Return when every partition is served. Raises `DataFolderError`."""
        assert self._load_task is not None, "start the coordinator first"
        await asyncio.shield(self._load_task)

    async def close(self) -> None:
        """Answer everyone who waits, and make all that was accepted durable."""
        self._is_closed = True
        if self._load_task is not None and not self._load_task.done():
            self._load_task.cancel()
            await asyncio.wait({self._load_task})
        if self._check_timer is not None:
            self._check_timer.cancel()
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait({self._check})
        self._group_actions.close()
        self._consumer_actions.close()
        if self.share is not None:
            self.share.close()
        await self.transactions.close()
        await self._journal.close()

    async def _load(self) -> None:
        await self._journal.load()
        for group, value in self._image.groups():
            if self.owns(group):
                self._groups.restore(group, value, self._now_ms())
        modern = ((group, record) for group, record in self._image.consumer_groups() if self.owns(group))
        self._consumer_groups.restore(modern, self._now_ms())
        if self.share is not None:
            self.share.restore()
        # A crash between the end of a topic and the end of its offsets leaves offsets that nobody can have committed.
        for topic in self._offsets.store.topics():
            if self._partition_count(topic) is None:
                logger.info("topic %s is gone: its committed offsets end", topic)
                await self._removals.end_topic(topic)
        self.transactions.restore(self._image)
        self._loading.clear()
        self._group_actions.timer.set()
        self._consumer_actions.timer.set()
        self._set_check_timer()

    def _loaded_late(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            logger.info("committed offsets are loaded: %d in all", len(self._offsets.store))
            return
        if isinstance(error, StorageError):
            logger.warning("committed offsets are not loaded: %s", error)
            return
        logger.critical("committed offsets cannot be loaded, and no group is served: %s", error)
        if self._on_load_failure is not None and isinstance(error, DataFolderError):
            self._on_load_failure(error)

    def _refusal(self, group: str) -> int:
        """Why this group is not served here, or NONE."""
        if self._is_closed or self._load_task is None or not self.owns(group):
            return codes.NOT_COORDINATOR
        if self._loading and partition_for(group, self._partitions) in self._loading:
            is_broken = self._load_task.done()
            return codes.COORDINATOR_NOT_AVAILABLE if is_broken else codes.COORDINATOR_LOAD_IN_PROGRESS
        return codes.COORDINATOR_LOAD_IN_PROGRESS if self._consumer_actions.is_unsettled(group) else codes.NONE

    def owns(self, group: str) -> bool:
        """Whether this node coordinates the group's offsets partition."""
        return not self._foreign or partition_for(group, self._partitions) not in self._foreign

    def _now_ms(self) -> int:
        """Milliseconds since the epoch as of the start, and steady from then on."""
        return int(self._loop.time() * 1000) + self._epoch_ms

    def _partition_count(self, topic: str) -> int | None:
        """Of every topic that offsets may be committed for: groups read `__consumer_offsets` too."""
        return self._partitions if topic == OFFSETS_TOPIC else self._partitions_of_topic(topic)

    # Offsets

    def commit(self, request: CommitRequest) -> int | CommitResult:
        """Append one commit: one batch, whole or not at all. An error code, when the whole request is refused."""
        refusal = self._check_commit(request)
        return refusal or self._offsets.commit(partition_for(request.group, self._partitions), request)

    def commit_known(self, known: KnownCommit, offset: int, leader_epoch: int) -> Round | None:
        """The short way for a commit like one before; None when it has to take the long way, which says why."""
        refusal = self._check_commit(known.request)
        return None if refusal else self._offsets.commit_known(known, offset, leader_epoch)

    def know(self, request: CommitRequest) -> KnownCommit | None:
        """For commits like this one, if it is of one partition without metadata."""
        topics = request.topics
        if len(topics) != 1 or len(topics[0].partitions) != 1 or topics[0].metadata or topics[0].partitions[0] < 0:
            return None
        group, topic, partition = request.group, topics[0].topic, topics[0].partitions[0]
        head = known_record_head(group, topic, partition)
        return KnownCommit(request, topic, partition, partition_for(group, self._partitions), head)

    def commit_if(self, request: CommitRequest, expected: Sequence[Sequence[int]]) -> int | ConditionalResult:
        """Append one commit if every partition's offset is the expected one (-1: none), for each topic of the request.
        An error code, when the whole request is refused."""
        refusal = self._check_commit(request)
        return refusal or self._offsets.commit_if(partition_for(request.group, self._partitions), request, expected)

    def _check_commit(self, request: CommitRequest) -> int:
        """Why nothing may be committed, or NONE. A commit counts as its member's heartbeat."""
        name = request.group
        refusal = self._refusal(name)
        if refusal:
            return refusal
        group = self._groups.by_id.get(name)
        if group is not None:
            return group.check_commit(request.member_id, request.instance_id, request.generation, self._now_ms())
        if name in self._consumer_groups.by_id:
            return self._check_consumer_commit(request)
        if self._is_shared(name):
            return codes.GROUP_ID_NOT_FOUND
        error = check_commit_without_group(name, request.generation)
        return codes.UNKNOWN_MEMBER_ID if error == codes.GROUP_ID_NOT_FOUND and name in self._offsets.store else error

    def _check_consumer_commit(self, request: CommitRequest) -> int:
        topics = ((self._topics.get(topic.topic), topic.partitions) for topic in request.topics)
        partitions = ((None if topic is None else topic.topic_id, one) for topic, ones in topics for one in ones)
        group = self._consumer_groups.by_id[request.group]
        return group.check_commit(
            request.member_id, request.generation, partitions, has_epochs=request.has_member_epochs
        )

    def commit_in_transaction(
        self, request: CommitRequest, transactional_id: str, producer: Producer
    ) -> int | CommitResult:
        """The same as a part of a transaction: in effect when that is committed (TxnOffsetCommit, KIP-447)."""
        group = request.group
        partition = partition_for(group, self._partitions)
        error = (
            self._refusal(group)
            or self.transactions.check_write(transactional_id, producer, (OFFSETS_TOPIC, partition))
            or self._check_transactional_commit(request)
        )
        return error or self._offsets.commit(partition, request, producer)

    def confirm(self, group: str) -> Round | None:
        """What a fetch of this group has to wait for before it looks, where other nodes may have taken over; else None.
        Raises `StorageError`."""
        return None if self._refusal(group) else self._journal.confirm()

    def _check_transactional_commit(self, request: CommitRequest) -> int:
        group, member_id, epoch = request.group, request.member_id, request.generation
        if self._is_shared(group):
            return codes.GROUP_ID_NOT_FOUND
        if group in self._consumer_groups.by_id:
            is_anyones = epoch < 0 and not member_id and request.instance_id is None
            return codes.NONE if is_anyones else self._check_consumer_commit(request)
        has_offsets = self._offsets.has(group) or group in self._image.transactional.groups
        return self._groups.check_transactional_commit(
            group, member_id, request.instance_id, epoch, has_offsets=has_offsets
        )

    def groups_with_offsets(self) -> list[str]:
        """Of now."""
        return list(self._offsets.store.groups)

    def committed_offsets(self, group: str) -> Iterator[tuple[str, FetchedColumns]]:
        """All of a group, by topic, for the node itself: whether it may be served is not asked."""
        return self._offsets.store.fetch_all(group)

    def fetch(
        self,
        group: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        *,
        require_stable: bool = False,
        member: tuple[str | None, int] = (None, -1),
    ) -> int | Sequence[FetchedTopic]:
        """What is committed and durable: of these partitions, or (None) of all that the group has; or an error code.
        With `require_stable`, what an open transaction may change is UNSTABLE_OFFSET_COMMIT; `member` is the one that
        asks, with its epoch (KIP-848)."""
        error = self._refusal(group)
        if error == codes.NONE and group in self._consumer_groups.by_id:
            error = self._consumer_groups.by_id[group].check_fetch(*member)
        if error != codes.NONE:
            return error
        return self._offsets.fetch(group, topics, require_stable=require_stable)

    def fetch_known(self, group: str, topic: str, partition: int) -> bytes | None:
        """The short way for one partition without metadata: offset and leader epoch as an answer has them; None when
        there is more to say."""
        if (
            self._refusal(group)
            or group in self._offsets.transactional.groups
            or not 0 <= partition < (self._partition_count(topic) or 0)
        ):
            return None
        return self._offsets.store.plain(group, topic, partition)

    async def delete_topic_offsets(self, topic: str) -> None:
        """End every group's offsets in `topic`, durably. Call it when the topic takes no more commits.

        Raises `StorageError`.
        """
        await self.loaded()
        if self.share is not None:
            self.share.end_topic(topic)
        await self._removals.end_topic(topic)

    def delete_group(self, group: str) -> int | Round:
        """End a group without members, with all its offsets: an error code, or what to wait for before answering."""
        if self.share is not None and self._is_shared(group):
            return self._refusal(group) or self.share.delete(group)
        error = self._refusal(group) or self._check_delete_group(group)
        if error != codes.NONE:
            return error
        try:
            return self._removals.delete_group(group) or codes.NONE
        except StorageError as error:
            return error.code

    def _check_delete_group(self, group: str) -> int:
        if group in self._consumer_groups.by_id:
            return self._consumer_groups.check_delete(group)
        return self._groups.check_delete(group, has_offsets=self._offsets.has(group))

    def delete_offsets(
        self, group: str, topics: Sequence[tuple[str, Sequence[int]]], *, is_begun: bool = False
    ) -> int | DeleteResult:
        """End these offsets of a group: an error code when all is refused. `is_begun`: the group was checked with what
        came before, and may have ended with that."""
        has_offsets = self._offsets.has(group)
        is_modern = group in self._consumer_groups.by_id
        error = self._refusal(group) or (
            codes.NONE if is_modern or is_begun else self._groups.check_delete_offsets(group, has_offsets=has_offsets)
        )
        if error != codes.NONE:
            return error
        errors = [[self._check_delete(group, topic, one) for one in partitions] for topic, partitions in topics]
        wanted = [
            (topic, [one for one, code in zip(partitions, row, strict=True) if code == codes.NONE])
            for (topic, partitions), row in zip(topics, errors, strict=True)
        ]
        try:
            return DeleteResult(errors, self._removals.delete_offsets(group, wanted))
        except StorageError as error:
            return error.code

    def _check_delete(self, group: str, topic: str, partition: int) -> int:
        if not 0 <= partition < (self._partition_count(topic) or 0):
            return codes.UNKNOWN_TOPIC_OR_PARTITION
        found = self._groups.by_id.get(group) or self._consumer_groups.by_id.get(group)
        is_needed = found is not None and found.is_subscribed(topic)
        return codes.GROUP_SUBSCRIBED_TO_TOPIC if is_needed else codes.NONE

    async def expire(self) -> Expired:
        """Remove what is stale now; done by itself every `offsets.retention.check.interval.ms`.

        Raises `StorageError`.
        """
        await self.loaded()
        return await self._removals.expire()

    async def check_ages(self) -> None:
        """Do now what is done from time to time: abort transactions, and remove transactional ids, offsets and groups.

        Raises `StorageError`.
        """
        await self.loaded()
        await self.transactions.check_ages()
        await self._removals.expire()

    @property
    def expired(self) -> Expired:
        """All that expired since the start."""
        return self._removals.expired

    def _set_check_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._check_timer = loop.call_later(self._check_interval_s, self._begin_check)

    def _begin_check(self) -> None:
        self._check = asyncio.get_running_loop().create_task(self._expire_and_go_on())

    async def _expire_and_go_on(self) -> None:
        try:
            gone = await self._removals.expire()
        except NoRoomError:
            gone = Expired(0, 0)  # what was removed before it is counted, and the rest is next time's
        except StorageError:
            return  # the journal has said so; nothing is written until a restart
        if any(gone):
            logger.info("%d committed offsets have expired, and %d groups with them", *gone)
        self._set_check_timer()

    def end_offset(self, partition: int) -> int:
        """The end of this partition of `__consumer_offsets`."""
        return self._journal.end_offset(partition)

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        """Record batches of this partition of `__consumer_offsets`."""
        return await self._journal.read(partition, offset, max_bytes)

    # Groups

    async def join(self, group: str, request: JoinRequest) -> JoinAnswer:
        error = self._refusal(group) or (codes.INCONSISTENT_GROUP_PROTOCOL if self._is_shared(group) else codes.NONE)
        modern = self._consumer_groups.by_id.get(group)
        if error == codes.NONE and modern is not None:
            if not modern.is_empty:
                return await self._consumer_actions.join(group, request)
            error = self._consumer_actions.end(group)  # one without members makes room
        if error != codes.NONE:
            return JoinAnswer(error, request.member_id)
        return await self._group_actions.join(group, request)

    async def sync(self, group: str, request: SyncRequest) -> SyncAnswer:
        error = self._refusal(group)
        if error != codes.NONE:
            return SyncAnswer(error)
        actions: ConsumerGroupActions | GroupActions
        actions = self._consumer_actions if group in self._consumer_groups.by_id else self._group_actions
        return await actions.sync(group, request)

    def heartbeat(self, group: str, member_id: str, instance_id: str | None, generation: int) -> int:
        error = self._refusal(group)
        if error == codes.COORDINATOR_LOAD_IN_PROGRESS:
            return codes.NONE  # whether it is a member is not known yet; it keeps its session, as in Kafka
        if error == codes.NONE and group in self._consumer_groups.by_id:
            return self._consumer_actions.heartbeat_of_classic(group, member_id, instance_id, generation)
        return error or self._groups.heartbeat(group, member_id, instance_id, generation, self._now_ms())

    async def leave(self, group: str, leavers: Sequence[Leaver]) -> tuple[int, Sequence[Left]]:
        """An error code for the whole request, and one for each leaver."""
        error = self._refusal(group) if group else codes.INVALID_GROUP_ID
        if error != codes.NONE:
            return error, ()
        actions: ConsumerGroupActions | GroupActions
        actions = self._consumer_actions if group in self._consumer_groups.by_id else self._group_actions
        return await actions.leave(group, leavers)

    async def consumer_heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        """Of a member of a consumer group of KIP-848; it waits until what it changes is durable."""
        error = self._refusal(request.group) if request.group.strip() else codes.NONE
        if error == codes.NONE and self._is_shared(request.group):
            return HeartbeatAnswer(codes.GROUP_ID_NOT_FOUND, f"Group {request.group} is not a consumer group.")
        return HeartbeatAnswer(error) if error != codes.NONE else await self._consumer_actions.heartbeat(request)

    def describe_consumer_group(self, group: str) -> ConsumerGroupDescription:
        """A consumer group of KIP-848."""
        error = self._refusal(group) if group else codes.NONE
        if error != codes.NONE:
            return ConsumerGroupDescription(group, error)
        if self._is_of_another_type(group, self._consumer_groups.by_id) or self._is_shared(group):
            return ConsumerGroupDescription(group, codes.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.")
        return self._consumer_groups.describe(group)

    def _is_shared(self, group: str) -> bool:
        return self.share is not None and group in self.share.groups.by_id

    def _is_of_another_type(self, group: str, those: Container[str]) -> bool:
        """Whether a group is there that is of none of `those`, and no share group."""
        is_known = group in self._groups.by_id or group in self._consumer_groups.by_id or group in self._offsets.store
        return is_known and group not in those

    def check_share(self, group: str) -> int:
        """Why a share group of this id is not served here, or NONE."""
        return codes.NOT_COORDINATOR if self.share is None else self._refusal(group)

    def check_share_group(self, group: str) -> int:
        """Why this is no share group that is there, or NONE."""
        error = self.check_share(group) if group else codes.INVALID_GROUP_ID
        return error or (codes.NONE if self._is_shared(group) else codes.GROUP_ID_NOT_FOUND)

    def check_empty_share_group(self, group: str) -> int:
        """Why this is no share group that is there and has no members, or NONE."""
        error = self.check_share_group(group)
        return error if error != codes.NONE or self.share is None else self.share.check_empty(group)

    def check_movable_share_group(self, group: str) -> int:
        """Why nobody may say where this share group is, or NONE; one that is not there is begun by that."""
        error = self.check_share(group) if group else codes.INVALID_GROUP_ID
        if error != codes.NONE or self.share is None:
            return error
        if self._is_of_another_type(group, ()):
            return codes.GROUP_ID_NOT_FOUND
        error = self.share.check_empty(group)
        return codes.NONE if error == codes.GROUP_ID_NOT_FOUND else error

    async def share_heartbeat(self, request: ShareHeartbeatRequest) -> ShareHeartbeatAnswer:
        """Of a member of a share group; it waits until what it changes is durable."""
        error = self.check_share(request.group) if request.group else codes.NONE
        if error != codes.NONE or self.share is None:
            return ShareHeartbeatAnswer(error)
        if self._is_of_another_type(request.group, ()):
            return ShareHeartbeatAnswer(codes.GROUP_ID_NOT_FOUND, f"Group {request.group} is not a share group.")
        return await self.share.heartbeat(request)

    def describe_share_group(self, group: str) -> ShareGroupDescription:
        error = self.check_share(group) if group else codes.INVALID_GROUP_ID
        if error != codes.NONE or self.share is None:
            return ShareGroupDescription(group, error)
        if self._is_of_another_type(group, ()):
            return ShareGroupDescription(group, codes.GROUP_ID_NOT_FOUND, f"Group {group} is not a share group.")
        return self.share.describe(group)

    def _settings_of(self, group: str) -> GroupSettings:
        options = self._options
        own = self._group_configs(group) if self._group_configs is not None else {}
        return GroupSettings(
            own.get("consumer.session.timeout.ms", options.group_consumer_session_timeout_ms),
            own.get("consumer.heartbeat.interval.ms", options.group_consumer_heartbeat_interval_ms),
            own.get("consumer.assignment.interval.ms", options.group_consumer_assignment_interval_ms),
            options.group_consumer_max_size,
            options.can_upgrade_groups,
            options.can_downgrade_groups,
            options.group_max_size,
        )

    def describe(self, group: str) -> tuple[int, GroupDescription]:
        """A group of the classic protocol."""
        is_newer = group in self._consumer_groups.by_id or self._is_shared(group)
        has_offsets = group in self._offsets.store and not is_newer
        found = self._groups.describe(group, has_offsets=has_offsets)
        if found.state == State.DEAD.value:
            why = "is not a classic group" if is_newer else "not found"
            found = found._replace(absent=f"Group {group} {why}.")
        return self._refusal(group), found

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> tuple[int, Sequence[ListedGroup]]:
        """All groups, or those in one of these states and of one of these types, in small letters."""
        if self._is_closed:
            return codes.COORDINATOR_NOT_AVAILABLE, ()
        if self._loading:
            return codes.COORDINATOR_LOAD_IN_PROGRESS, ()
        groups, modern = self._groups.by_id, self._consumer_groups.by_id
        listed = [ListedGroup(g.group_id, g.protocol_type, g.state.value, CLASSIC_TYPE) for g in groups.values()]
        listed += (ListedGroup(g.group_id, g.protocol_type, g.state, CONSUMER_TYPE) for g in modern.values())
        if self.share is not None:
            shared = self.share.groups.by_id.values()
            listed += (ListedGroup(g.group_id, g.protocol_type, g.state, SHARE_TYPE) for g in shared)
        known = groups.keys() | modern.keys()
        simple = (group for group in self._offsets.store.groups if group not in known and self.owns(group))
        listed += (ListedGroup(group, "", State.EMPTY.value, CLASSIC_TYPE) for group in simple)
        return codes.NONE, [
            row
            for row in listed
            if (not states or row.state.lower() in states) and (not types or row.group_type in types)
        ]
