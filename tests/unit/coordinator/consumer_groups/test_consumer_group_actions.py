"""A consumer group whose records could not be made durable is what is durable, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keylane.broker.config import BrokerConfig
from keylane.coordinator.consumer_group_actions import ConsumerGroupActions
from keylane.coordinator.consumer_groups.protocol import GroupSettings, HeartbeatRequest
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.coordinator.formats import GroupValue, MemberValue, encode_group_key, encode_group_value
from keylane.coordinator.group_actions import GroupActions
from keylane.coordinator.groups.registry import GroupRegistry
from keylane.coordinator.groups.states import State
from keylane.coordinator.journal.image import Image
from keylane.storage.filesystem import NoRoomError, StorageError
from keylane.storage.shared_sync import Round
from keylane.wire import codes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Coroutine

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


def actions_of(groups: ConsumerGroups, classic: GroupRegistry, journal: Any, image: Image) -> ConsumerGroupActions:
    options: Any = SimpleNamespace(offsets_topic_num_partitions=1)
    classic_actions = GroupActions(classic, journal, options, lambda: 1, lambda: 1)
    return ConsumerGroupActions(groups, classic, classic_actions, FakeTopics(), journal, image, options, lambda: 1)


SUBSCRIPTION = b"\0\0" + b"\0\0\0\0" + b"\xff" * 4
CLASSIC = GroupValue(
    "consumer", 3, "range", "c1", 1, (MemberValue("c1", None, "c", "/h", 9_000, 9_000, SUBSCRIPTION, b""),)
)


def run(test: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()  # `asyncio.run` would wait for what a failed check leaves without an answer
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()


async def begin(answer: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(answer)
    await asyncio.sleep(0)
    return task


def test_a_group_has_one_protocol_on_the_disk_whatever_fails() -> None:
    """Up and down, each first without room for it: the group is then what it was."""

    async def test() -> None:
        image = Image()
        image.note(0, 0, [(0, encode_group_key("g"), encode_group_value(CLASSIC))], b"")
        journal = FakeJournal(image)
        groups = ConsumerGroups(FakeTopics(), lambda _: GroupSettings(9_000, 100, 0, 9), lambda: "made")
        classic = GroupRegistry(BrokerConfig(), lambda prefix: prefix)
        classic.restore("g", CLASSIC, 1)
        actions = actions_of(groups, classic, journal, image)

        up = await begin(actions.heartbeat(request("m1")))
        assert (list(groups.by_id), list(classic.by_id)) == (["g"], [])
        journal.finish(NoRoomError("full"))
        assert (await up).error == codes.COORDINATOR_NOT_AVAILABLE
        assert (list(groups.by_id), list(classic.by_id)) == ([], ["g"])
        assert classic.heartbeat("g", "c1", None, 3, 1) == codes.NONE

        up = await begin(actions.heartbeat(request("m1")))
        journal.finish()
        assert ((await up).error, (await up).epoch) == (codes.NONE, 4)
        assert [name for name, _ in image.groups()] == []

        leave = request("m1", -1)
        for failure in (NoRoomError("full"), None):
            down = await begin(actions.heartbeat(leave))
            assert (list(groups.by_id), list(classic.by_id)) == ([], []), "nobody is told before it is durable"
            assert actions.is_unsettled("g")
            journal.finish(failure)
            assert not actions.is_unsettled("g")
            if failure is not None:
                assert (await down).error == codes.COORDINATOR_NOT_AVAILABLE
                assert (set(groups.by_id["g"].members), list(classic.by_id)) == ({"c1", "m1"}, [])
        assert (await down).error == codes.NONE
        assert (list(groups.by_id), classic.by_id["g"].state) == ([], State.PREPARING_REBALANCE)
        assert list(image.consumer_groups()) == []
        actions.close()

    run(test())


def test_a_failed_batch_changes_nothing() -> None:
    async def test() -> None:
        image = Image()
        journal = FakeJournal(image)
        groups = ConsumerGroups(FakeTopics(), lambda _: GroupSettings(9_000, 100, 0, 9), lambda: "made")
        actions = actions_of(groups, GroupRegistry(BrokerConfig(), lambda prefix: prefix), journal, image)

        first = await begin(actions.heartbeat(request("m1")))
        assert not first.done(), "the answer waits for the disk"
        journal.finish()
        epoch = (await first).epoch
        durable = groups.by_id["g"].describe()

        second, third = await begin(actions.heartbeat(request("m2"))), await begin(actions.heartbeat(request("m3")))
        same = await begin(actions.heartbeat(request("m1", epoch)))
        assert not same.done(), "it may tell of what is not durable yet"
        journal.finish(NoRoomError("full"))
        assert actions.is_unsettled("g"), "nobody is told of it meanwhile"
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

    run(test())
