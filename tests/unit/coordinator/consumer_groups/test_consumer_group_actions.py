"""A consumer group whose records could not be made durable is what is durable, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keylane.coordinator.consumer_group_actions import ConsumerGroupActions
from keylane.coordinator.consumer_groups.protocol import GroupSettings, HeartbeatRequest
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.coordinator.journal.image import Image
from keylane.storage.filesystem import NoRoomError, StorageError
from keylane.storage.shared_sync import Round
from keylane.wire import codes

if TYPE_CHECKING:
    import uuid

    from keylane.coordinator.formats import Records


class FakeTopics:
    version = 0

    def get(self, name: str) -> None: ...
    def names(self) -> list[str]:
        return []

    def name_of(self, topic_id: uuid.UUID | None) -> None: ...


class FakeJournal:
    """Batches wait until the test says what became of them."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self.waiting: list[tuple[Round, int, Records, Any]] = []

    def append(self, partition: int, records: Records, done: Any) -> Round:
        durable = Round(asyncio.get_running_loop())
        self.waiting.append((durable, partition, records, done))
        return durable

    def finish(self, failure: StorageError | None = None) -> None:
        durable, partition, records, done = self.waiting.pop(0)
        if failure is None:
            self._image.note(partition, 0, [(0, *pair) for pair in records.pairs], b"")
            done(None, 0)
            durable.set_result(None)
        else:
            done(failure, 0)
            durable.set_exception(failure)


def request(member_id: str, epoch: int = 0) -> HeartbeatRequest:
    said: dict[str, Any] = {"rebalance_timeout_ms": 1, "topics": ("t",), "owned": {}} if epoch == 0 else {}
    return HeartbeatRequest("g", member_id, epoch, "c", "/h", **said)


def test_a_failed_batch_changes_nothing() -> None:
    async def run() -> None:
        image = Image()
        journal = FakeJournal(image)
        groups = ConsumerGroups(FakeTopics(), lambda _: GroupSettings(9_000, 100, 0, 9), lambda: "made")
        classic, options = SimpleNamespace(by_id={}), SimpleNamespace(offsets_topic_num_partitions=1)
        actions = ConsumerGroupActions(groups, classic, journal, image, options, lambda: 1)  # type: ignore[arg-type]

        async def begin(asked: HeartbeatRequest) -> asyncio.Task[Any]:
            task = asyncio.create_task(actions.heartbeat(asked))
            await asyncio.sleep(0)
            return task

        first = await begin(request("m1"))
        assert not first.done(), "the answer waits for the disk"
        journal.finish()
        epoch = (await first).epoch
        durable = groups.by_id["g"].describe()

        second, third = await begin(request("m2")), await begin(request("m3"))
        same = await begin(request("m1", epoch))
        assert not same.done(), "it may tell of what is not durable yet"
        journal.finish(NoRoomError("full"))
        assert (await begin(request("m1", epoch))).result().error == codes.COORDINATOR_LOAD_IN_PROGRESS
        journal.finish(NoRoomError("full"))
        for _ in range(len(journal.waiting)):
            journal.finish(NoRoomError("full"))
        assert not journal.waiting, "what it tried to write is not written again"
        answers = [await task for task in (second, third, same)]
        assert {answer.error for answer in answers} == {codes.COORDINATOR_NOT_AVAILABLE}
        assert groups.by_id["g"].describe() == durable
        again = await actions.heartbeat(request("m1", epoch))
        assert (again.error, again.epoch) == (codes.NONE, epoch)
        actions.close()

    loop = (
        asyncio.new_event_loop()
    )  # `asyncio.run` would wait for heartbeats that a failed check leaves without an answer
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
