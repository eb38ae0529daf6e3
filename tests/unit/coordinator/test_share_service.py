"""The shell of share groups: what waits for the disk, and what becomes of a group of which a batch fails."""

from __future__ import annotations

import asyncio

from keylane.coordinator.share_groups.partition import ACCEPT, NOT_BEGUN, REJECT, RELEASE, RENEW, GivenUp, State
from keylane.coordinator.share_groups.records import Place
from keylane.wire import codes
from kit.filesystem import SimulatedFileSystem
from kit.share_world import GROUP, NONE, PLACE, SETTINGS, TOPIC, TOPIC_ID, ShareWorld


async def begun(filesystem: SimulatedFileSystem) -> ShareWorld:
    world = ShareWorld(filesystem)
    await world.start()
    assert (await world.join()).error == NONE
    assert await world.share.begin(PLACE, 0) == NONE
    return world


def test_a_group_goes_on_after_a_restart() -> None:
    filesystem = SimulatedFileSystem()

    async def first() -> None:
        world = await begun(filesystem)
        assert world.take(4) == [0, 1, 2, 3]
        assert await world.say({0: ACCEPT, 1: RELEASE, 2: ACCEPT}) == NONE
        await world.coordinator.close()

    async def second() -> None:
        world = ShareWorld(filesystem)
        await world.start()
        assert world.share.groups.by_id[GROUP].describe(world.topics).members[0].member_id == "a"
        assert world.partition.start == 1
        state = world.partition.state
        assert [(batch.first, batch.last, batch.delivered) for batch in state.batches] == [(1, 1, 1), (2, 2, 1)]
        assert world.take(2, member="b") == [1, 3]
        assert await world.say({1: ACCEPT}) == codes.INVALID_RECORD_STATE
        await world.coordinator.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_member_that_closes_its_session_gives_back_at_once() -> None:
    async def life() -> None:
        world = await begun(SimulatedFileSystem())
        woken: list[None] = []
        world.share.listen(PLACE, lambda: woken.append(None))
        assert world.take(2) == [0, 1]
        assert world.take(2, 2, member="b") == []
        world.share.release(GROUP, "a")
        assert woken == [None]
        assert world.take(2, 2, member="b") == [0, 1]
        assert [batch.delivered for batch in world.partition.state.batches] == [1]
        await world.coordinator.close()

    asyncio.run(life())


def test_a_group_of_which_a_batch_fails_is_as_it_was_on_the_disk() -> None:
    filesystem = SimulatedFileSystem()

    async def life() -> None:
        world = await begun(filesystem)
        assert world.take(2) == [0, 1]
        assert await world.say({0: ACCEPT}) == NONE
        filesystem.fail_at(filesystem.operations + 1)
        assert await world.say({1: ACCEPT}) != NONE
        assert world.partition.start == 1
        assert world.partition.state == State(1)
        assert await world.say({1: ACCEPT}) == codes.INVALID_RECORD_STATE

    asyncio.run(life())


def test_a_member_that_goes_places_its_group_nowhere() -> None:
    """The topic came while nobody asked: who is left takes the place with its next heartbeat."""

    async def life() -> None:
        world = ShareWorld(SimulatedFileSystem())
        await world.start()
        topic = world.topics.by_name.pop(TOPIC)
        for member in ("a", "b"):
            assert (await world.join(member)).error == NONE
        world.topics.by_name[TOPIC] = topic
        world.topics.version += 1
        assert (await world.leave("a")).error == NONE
        assert world.share.check(PLACE) == codes.UNKNOWN_TOPIC_OR_PARTITION
        assert (await world.join("b")).error == NONE
        assert world.share.check(PLACE) == NONE
        await world.coordinator.close()

    asyncio.run(life())


def test_places_are_set_and_dropped() -> None:
    filesystem = SimulatedFileSystem()

    async def first() -> None:
        world = await begun(filesystem)
        assert world.take(2) == [0, 1]
        assert world.coordinator.check_empty_share_group(GROUP) == codes.NON_EMPTY_GROUP
        assert (await world.leave()).error == NONE
        old = world.partition
        assert await world.share.move(GROUP, {TOPIC_ID: (TOPIC, {0: 40})}) == NONE
        assert world.partition is not old
        assert world.share.state_of(PLACE) == State(40, 1)
        assert world.share.acknowledge(PLACE, "a", ()) == NONE
        assert await world.say({0: ACCEPT}) == codes.INVALID_RECORD_STATE
        await world.coordinator.close()

    async def second() -> None:
        world = ShareWorld(filesystem)
        await world.start()
        assert world.share.state_of(PLACE) == State(40, 1)
        assert await world.share.drop(GROUP, [TOPIC_ID]) == NONE
        assert world.share.check(PLACE) == codes.UNKNOWN_TOPIC_OR_PARTITION
        assert world.share.state_of(PLACE).start == NOT_BEGUN
        outcome = world.share.delete(GROUP)
        assert not isinstance(outcome, int)
        await outcome
        assert world.share.check(PLACE) == codes.GROUP_ID_NOT_FOUND
        await world.coordinator.close()

    async def third() -> None:
        world = ShareWorld(filesystem)
        await world.start()
        assert not world.share.groups.by_id
        assert world.share.state_of(PLACE) == State()
        await world.coordinator.close()

    for one in (first, second, third):
        asyncio.run(one())


def test_a_topic_that_is_deleted_takes_its_places_along() -> None:
    async def life() -> None:
        world = await begun(SimulatedFileSystem())
        assert world.share.check(Place(GROUP, TOPIC_ID, 1)) == NONE
        await world.coordinator.delete_topic_offsets(TOPIC)
        assert world.share.check(PLACE) == codes.UNKNOWN_TOPIC_OR_PARTITION
        assert world.share.state_of(PLACE) == State()
        await world.coordinator.close()

    asyncio.run(life())


def test_records_are_renewed_only_where_their_group_may() -> None:
    async def life() -> None:
        world = ShareWorld(SimulatedFileSystem(), SETTINGS._replace(can_renew=False))
        await world.start()
        await world.join()
        assert await world.share.begin(PLACE, 0) == NONE
        assert world.take(1) == [0]
        assert await world.say({0: RENEW}) == codes.INVALID_REQUEST
        assert await world.say({0: ACCEPT}) == NONE
        await world.coordinator.close()

    asyncio.run(life())


def test_nobody_is_answered_before_its_group_is_durable() -> None:
    """A heartbeat that changes nothing waits for the one before it."""

    async def life() -> None:
        world = ShareWorld(SimulatedFileSystem())
        await world.start()
        joining = asyncio.ensure_future(world.join("a"))
        again = asyncio.ensure_future(world.join("a"))
        await asyncio.sleep(0)
        assert not joining.done()
        assert not again.done()
        assert (await joining).error == (await again).error == NONE
        await world.coordinator.close()

    asyncio.run(life())


def test_a_group_has_a_limit_of_members() -> None:
    async def life() -> None:
        world = ShareWorld(SimulatedFileSystem())
        await world.start()
        for name in "abc":
            assert (await world.join(name)).error == NONE
        refused = await world.join("d")
        assert refused.error == codes.GROUP_MAX_SIZE_REACHED
        assert refused.message == "The share group has reached its maximum capacity of 3 members."
        await world.coordinator.close()

    asyncio.run(life())


class Letters:
    """Writes the letters of one record at a time, once it may."""

    def __init__(self) -> None:
        self.written: list[GivenUp] = []
        self.may_write = asyncio.Event()

    async def write(self, place: Place, given_up: GivenUp) -> int:
        assert place == PLACE
        await self.may_write.wait()
        self.written.append(given_up._replace(last=given_up.first))
        return given_up.first


async def with_letters(filesystem: SimulatedFileSystem, letters: Letters) -> ShareWorld:
    limits = SETTINGS.limits._replace(deliveries=2, has_letters=True)
    world = ShareWorld(filesystem, SETTINGS._replace(limits=limits))
    world.share.write_letters = letters.write
    await world.start()
    assert (await world.join()).error == NONE
    return world


async def quiet() -> None:
    """All that can go on without anything new has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_records_that_are_given_up_are_archived_when_their_letters_are_written() -> None:
    async def life() -> None:
        letters = Letters()
        world = await with_letters(SimulatedFileSystem(), letters)
        assert await world.share.begin(PLACE, 0) == NONE
        assert world.take(3) == [0, 1, 2]
        assert await world.say({0: REJECT, 1: REJECT, 2: ACCEPT}) == NONE
        await quiet()
        assert world.partition.start == 0
        assert world.take(2) == [3, 4]
        letters.may_write.set()
        await quiet()
        assert letters.written == [GivenUp(0, 0, 1, is_rejected=True), GivenUp(1, 1, 1, is_rejected=True)]
        assert world.partition.start == 3
        world.share.release(GROUP, "a")
        assert world.take(2) == [3, 4]
        world.share.release(GROUP, "a")
        await quiet()
        assert letters.written[2:] == [GivenUp(3, 3, 2, is_rejected=False), GivenUp(4, 4, 2, is_rejected=False)]
        await world.coordinator.close()

    asyncio.run(life())


def test_letters_that_a_stop_left_are_written_when_the_partition_is_read_again() -> None:
    filesystem = SimulatedFileSystem()

    async def first() -> None:
        world = await with_letters(filesystem, Letters())
        assert await world.share.begin(PLACE, 0) == NONE
        assert world.take(2) == [0, 1]
        assert await world.say({0: REJECT, 1: ACCEPT}) == NONE
        await quiet()
        await world.coordinator.close()

    async def second() -> None:
        letters = Letters()
        letters.may_write.set()
        world = await with_letters(filesystem, letters)
        assert world.partition.start == 0
        await quiet()
        assert letters.written == [GivenUp(0, 0, 1, is_rejected=False)]
        assert world.partition.start == 2
        await world.coordinator.close()

    asyncio.run(first())
    asyncio.run(second())


def test_letters_are_written_again_where_it_is_not_durable_that_they_were() -> None:
    filesystem = SimulatedFileSystem()

    async def life() -> None:
        letters = Letters()
        world = await with_letters(filesystem, letters)
        assert await world.share.begin(PLACE, 0) == NONE
        assert world.take(1) == [0]
        assert await world.say({0: REJECT}) == NONE
        filesystem.fail_at(filesystem.operations + 1)
        letters.may_write.set()
        await quiet()
        assert letters.written == [GivenUp(0, 0, 1, is_rejected=True)]
        assert world.partition.start == 0
        assert [one.first for one in world.partition.given_up] == [0]

    asyncio.run(life())


def test_letters_of_places_that_are_dropped_meanwhile_change_nothing() -> None:
    async def life() -> None:
        letters = Letters()
        world = await with_letters(SimulatedFileSystem(), letters)
        assert await world.share.begin(PLACE, 0) == NONE
        assert world.take(1) == [0]
        assert await world.say({0: REJECT}) == NONE
        await quiet()
        assert await world.share.drop(GROUP, [TOPIC_ID]) == NONE
        letters.may_write.set()
        await quiet()
        assert world.share.state_of(PLACE) == State()
        await world.coordinator.close()

    asyncio.run(life())
