"""`Naming`: committed offsets are of the topics that have their names now, or they end.

The idea: topics come and go in the log's cluster, and the servers are not told. So who fetches offsets waits until a
broker has said which topics those are (`topic_ids`), who commits to a name for the first time has that written down,
and what is led here is looked at now and then, since a topic may be made anew while members of its groups run.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from keylane.coordinator.replicated.journal import end_round
from keylane.errors import DataFolderError
from keylane.storage.filesystem import StorageError
from keylane.storage.shared_sync import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
    from uuid import UUID

    from keylane.coordinator.coordinator import Coordinator
    from keylane.coordinator.replicated.topic_names import TopicNames
    from keylane.offset_servers.topic_ids import TopicIds

FAILURES = (StorageError, DataFolderError)
"""The partition is not led here any more, and whoever leads it sees to it; or its log holds what this release cannot
read, and the server ends."""


class Replica(Protocol):
    """An offsets partition on this server."""

    @property
    def partition(self) -> int: ...
    @property
    def coordinator(self) -> Coordinator: ...
    @property
    def names(self) -> TopicNames: ...
    @property
    def is_serving(self) -> bool:
        """Whether it leads, and has loaded what was there."""
        ...


class Naming:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        ids: TopicIds,
        failed: Callable[[DataFolderError], None],
        soon: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`failed`: a log that this release cannot read. `soon` begins a task."""
        self._ids = ids
        self._failed = failed
        self._soon = soon
        self._sought: set[tuple[int, str]] = set()
        """Partitions of commits, and their topics, that were asked for since the last look."""
        self._look: asyncio.Task[None] | None = None

    def confirm(self, replica: Replica, group: str) -> Round | None:
        """`Coordinator.confirm`, and that what the group has committed is of the topics that have their names now."""
        confirmed = replica.coordinator.confirm(group)
        topics = replica.names.of_commits(group)
        if confirmed is None or not topics:
            return confirmed
        ids = self._ids.recent(topics)
        if ids is not None and replica.names.agree_with(ids):
            return confirmed
        both = Round(asyncio.get_running_loop())
        self._soon(self._confirm(replica, topics, confirmed, both))
        return both

    async def _confirm(self, replica: Replica, topics: Collection[str], confirmed: Round, both: Round) -> None:
        failure: Exception | None = None
        try:
            await self._learn(replica, topics)
            await confirmed
        except FAILURES as error:
            failure = error
        end_round(both, failure)

    def expect_commit(self, replica: Replica, topics: Iterable[str]) -> None:
        """Offsets of these are about to be committed: find out which topics those are."""
        unknown = {topic for topic in topics if not replica.names.has(topic)}
        unknown -= {topic for partition, topic in self._sought if partition == replica.partition}
        if unknown and replica.is_serving:
            self._sought.update((replica.partition, topic) for topic in unknown)
            self._soon(self._try(self._learn(replica, unknown)))

    def look(self, replicas: Iterable[Replica]) -> None:
        """At all of them that are led here."""
        if self._look is None or self._look.done():
            self._sought.clear()
            self._look = self._soon(self._look_at([one for one in replicas if one.is_serving]))

    async def _look_at(self, replicas: Iterable[Replica]) -> None:
        names = {one: one.names.all() for one in replicas}
        topics = set().union(*names.values())
        ids = await self._ids.of(topics) if topics else None
        if ids is not None:
            for replica, known in names.items():
                await self._try(self._take(replica, known, ids))
                await self._try(replica.names.forget(ids))

    async def _try(self, step: Coroutine[None, None, None]) -> None:
        with suppress(*FAILURES):
            await step

    async def _learn(self, replica: Replica, topics: Collection[str]) -> None:
        """Raises those of `FAILURES`."""
        ids = await self._ids.of(topics)
        if ids is not None:
            await self._take(replica, topics, ids)

    async def _take(self, replica: Replica, topics: Collection[str], ids: Mapping[str, UUID]) -> None:
        """Raises those of `FAILURES`."""
        try:
            await replica.names.learn({topic: ids[topic] for topic in topics if topic in ids})
        except DataFolderError as error:
            self._failed(error)
            raise
