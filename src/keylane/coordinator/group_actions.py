"""The groups' shell: performs what the pure `GroupRegistry` decides, and owns the one timer that calls it.

Waiting requests are futures, and serve as the tokens of the group protocol.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING
from uuid import uuid4

from keylane.coordinator.deadline_timer import DeadlineTimer
from keylane.coordinator.formats import encode_group_key, encode_group_value, encode_records, partition_for
from keylane.coordinator.groups.protocol import Answer, JoinAnswer, SyncAnswer
from keylane.coordinator.journal.journal import BatchTooLargeError
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.coordinator.formats import GroupValue
    from keylane.coordinator.groups.protocol import Action, JoinRequest, Leaver, Left, Persist, SyncRequest
    from keylane.coordinator.groups.registry import GroupRegistry
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.coordinator")

MAX_ID_PREFIX = 255
"""Characters of a client id that go into the member ids made from it."""


def new_member_id(prefix: str) -> str:
    return f"{prefix[:MAX_ID_PREFIX]}-{uuid4()}"


def new_consumer_id() -> str:
    """Of a member of KIP-848 that has none: 22 characters, as Kafka's."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


class GroupActions:
    """Time and events in, answers and records out."""

    def __init__(
        self,
        groups: GroupRegistry,
        journal: Journal,
        options: CoordinatorOptions,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`clock` gives records their time; `now_ms` is steady, and that of the groups."""
        self._groups = groups
        self._journal = journal
        self._partitions = options.offsets_topic_num_partitions
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._now_ms = now_ms
        self.timer = DeadlineTimer(lambda: groups.next_deadline_ms, now_ms, self._tick)

    async def join(self, group: str, request: JoinRequest) -> JoinAnswer:
        """Waits for the group's next generation, if need be."""
        token: asyncio.Future[JoinAnswer] = self._loop.create_future()
        self._perform(self._groups.join(group, request, token, self._now_ms()))
        return await token

    async def sync(self, group: str, request: SyncRequest) -> SyncAnswer:
        """Waits for the leader's assignment, if need be."""
        token: asyncio.Future[SyncAnswer] = self._loop.create_future()
        self._perform(self._groups.sync(group, request, token, self._now_ms()))
        return await token

    async def leave(self, group: str, leavers: Sequence[Leaver]) -> tuple[int, Sequence[Left]]:
        """Waits until the group that it leaves empty, if it does, is durably so."""
        results, actions = self._groups.leave(group, leavers, self._now_ms())
        durable = self._perform(actions)
        if durable is not None:
            try:
                await durable
            except StorageError:
                return codes.COORDINATOR_NOT_AVAILABLE, ()
        return codes.NONE, results

    def give_way(self, group: str) -> None:
        """A consumer group of KIP-848 has taken the group's place."""
        self._perform(self._groups.give_way(group, self._now_ms()))

    def adopt(self, group: str, value: GroupValue, *, is_rebalancing: bool) -> None:
        """A consumer group of KIP-848 has become this one, and that is durable."""
        self._perform(self._groups.adopt(group, value, self._now_ms(), is_rebalancing=is_rebalancing))

    def close(self) -> None:
        """Answer everyone who waits."""
        self._perform(self._groups.unload(self._now_ms()))
        self.timer.close()

    def _perform(self, actions: Sequence[Action]) -> Round | None:
        """Do what the groups decided; what becomes durable by it, if anything."""
        durable = None
        for action in actions:
            if isinstance(action, Answer):
                token = action.token
                assert isinstance(token, asyncio.Future)
                if not token.done():  # the client may have gone meanwhile
                    token.set_result(action.response)
            else:
                durable = self._persist(action) or durable
        self.timer.set()
        return durable

    def _persist(self, action: Persist) -> Round | None:
        group, ticket, value = action
        records = encode_records([(encode_group_key(group), encode_group_value(value))], self._clock())
        try:
            return self._journal.append(
                partition_for(group, self._partitions),
                records,
                lambda failure, _offset: self._stored(
                    group, ticket, codes.NONE if failure is None else codes.COORDINATOR_NOT_AVAILABLE
                ),
            )
        except BatchTooLargeError as error:
            logger.warning("the members and assignments of group %s are too large to keep: %s", group, error)
            code = codes.UNKNOWN_SERVER_ERROR
        except StorageError:
            code = codes.COORDINATOR_NOT_AVAILABLE
        self._loop.call_soon(self._stored, group, ticket, code)
        return None

    def _stored(self, group: str, ticket: int, error: int) -> None:
        self._perform(self._groups.stored(group, ticket, error, self._now_ms()))

    def _tick(self) -> None:
        self._perform(self._groups.tick(self._now_ms()))
