"""What members of a share group said holds after any crash, and nothing else does: no record is lost, none that was
acknowledged comes back, and each that was rejected has its dead letter.

One life joins, reads and acknowledges, in journal segments so small that snapshots are written meanwhile; it is ended
at each operation on the disk. Each of the disks that this may leave is started from."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING

import pytest

from keylane.coordinator.share_groups.partition import ACCEPT, REJECT, RELEASE
from keylane.errors import PeerError
from keylane.storage import shared_sync
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem, all_different
from kit.share_world import GROUP, NONE, PLACE, SETTINGS, ShareWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.coordinator.share_groups.partition import GivenUp
    from keylane.coordinator.share_groups.records import Place
    from kit.filesystem import Names

END = 30
WITH_LETTERS = SETTINGS._replace(limits=SETTINGS.limits._replace(has_letters=True))


@pytest.fixture(autouse=True)
def syncs_on_the_spot_never_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: one life's operations are in the same order as the next one's."""
    monkeypatch.setattr(shared_sync, "INLINE_LIMIT_S", math.inf)


class Life:
    """What was said, and what of it was acknowledged."""

    def __init__(self) -> None:
        self.is_member = False
        self.has_begun = False
        self.said: set[int] = set()
        """Done, or on its way to it."""
        self.acknowledged: set[int] = set()
        self.rejected: set[int] = set()
        """Acknowledged ones that have a letter, or are to have one."""
        self.written: set[int] = set()
        """Those whose letters were written, in this life or a later one."""

    async def write(self, _place: Place, given_up: GivenUp) -> int:
        await asyncio.sleep(0)
        self.written |= {*range(given_up.first, given_up.last + 1)}
        return given_up.last

    def world(self, filesystem: SimulatedFileSystem) -> ShareWorld:
        world = ShareWorld(filesystem, WITH_LETTERS)
        world.share.write_letters = self.write
        return world

    async def run(self, world: ShareWorld) -> None:
        await world.start()
        self.is_member = (await world.join()).error == NONE
        self.has_begun = await world.share.begin(PLACE, 0) == NONE
        for turn in range(9 if self.has_begun else 0):
            kinds = dict(zip(world.take(3, END), (ACCEPT, RELEASE, REJECT)[turn % 3 :] * 2, strict=False))
            done = {offset for offset, kind in kinds.items() if kind != RELEASE}
            self.said |= done
            if await world.say(kinds) == NONE:
                self.acknowledged |= done
                self.rejected |= {offset for offset, kind in kinds.items() if kind == REJECT}
        await world.coordinator.close()


def disks(filesystem: SimulatedFileSystem) -> Iterator[SimulatedFileSystem]:
    both: tuple[Names, Names] = ("lost", "kept")
    for names in both:
        yield filesystem.after_crash(names=names)
        unsynced = filesystem.unsynced_bytes()
        for size in {1, unsynced // 2, unsynced - 1} - {0, -1}:
            yield filesystem.after_crash(names=names, content="torn", torn_bytes=size)


async def live_until(operation: int | None, *, fail: bool = False) -> tuple[SimulatedFileSystem, Life]:
    filesystem, life = SimulatedFileSystem(), Life()
    if operation is not None:
        (filesystem.fail_at if fail else filesystem.crash_at)(operation)
    with contextlib.suppress(SimulatedCrashError, PeerError):
        await life.run(life.world(filesystem))
    return filesystem, life


async def check(disk: SimulatedFileSystem, life: Life) -> None:
    world = life.world(disk)
    await world.start()
    assert not life.is_member or "a" in world.share.groups.by_id[GROUP].members
    if life.has_begun:
        assert world.partition  # it is read, and its letters are begun
        for _ in range(50):
            await asyncio.sleep(0)
        assert not world.partition.given_up
        assert life.rejected <= life.written, "a record was given up without a letter"
        done = world.done(END)
        assert life.acknowledged <= done, "what was acknowledged comes back"
        # A release at the limit of deliveries ends a record too, but none is given out so often here.
        assert done <= life.said | life.acknowledged, "a record is lost"
        left = set(world.take(END, END)) | done
        assert left == set(range(max(left) + 1))
    await world.coordinator.close()


def test_a_crash_at_every_operation() -> None:
    async def all_of_it() -> int:
        whole, life = await live_until(None)
        assert len(life.acknowledged) > 10
        count = 0
        for operation in range(1, whole.operations + 1):
            crashed, life = await live_until(operation)
            for disk in all_different(disks(crashed)):
                await check(disk, life)
                count += 1
        return count

    assert asyncio.run(all_of_it()) > 100


def test_an_error_at_every_operation() -> None:
    """Also then nobody is told what a crash would take back."""

    async def all_of_it() -> None:
        whole, _ = await live_until(None)
        for operation in range(1, whole.operations + 1):
            failed, life = await live_until(operation, fail=True)
            for disk in (failed.after_crash(), failed.after_crash(names="kept", content="kept")):
                await check(disk, life)

    asyncio.run(all_of_it())
