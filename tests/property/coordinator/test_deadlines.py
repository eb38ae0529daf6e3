"""Deadlines in a heap beside one look at all of them: what is due at each moment is the same."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from hypothesis import example, given
from hypothesis import strategies as st

from keylane.coordinator.deadlines import Deadlines
from keylane.coordinator.journal.image import Image
from keylane.coordinator.share_groups.partition import ACCEPT, RELEASE, RENEW, Acknowledgement, Limits
from keylane.coordinator.share_groups.protocol import HeartbeatRequest
from keylane.coordinator.share_groups.records import Place
from keylane.coordinator.share_service import Read, ShareService
from keylane.storage.shared_sync import Round
from kit.share_world import NONE, SETTINGS, TOPIC, TOPIC_ID, Topic, Topics

if TYPE_CHECKING:
    from keylane.coordinator.formats import Records

KEYS = "abcd"


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(1, 30), st.integers(0, 9)), max_size=60))
def test_what_is_due_is_what_a_scan_finds(steps: list[tuple[str, int | None, int]]) -> None:
    """A step gives a key a deadline some time ahead (nearer or farther than before), or ends it, and lets time pass."""
    deadlines: Deadlines[str] = Deadlines()
    truth: dict[str, int] = {}
    now_ms = 0
    for key, ahead_ms, passes_ms in steps:
        if ahead_ms is None:
            truth.pop(key, None)
            deadlines.forget(key)
        else:
            truth[key] = now_ms + ahead_ms
            deadlines.note(key, truth[key])
        for _ in range(passes_ms):
            now_ms += 1
            scanned = sorted(key for key, due_ms in truth.items() if due_ms <= now_ms)
            found = []
            for one in deadlines.due(now_ms):
                if one in truth and truth[one] <= now_ms:
                    found.append(one)
                    del truth[one]
                deadlines.note(one, truth.get(one))
            assert sorted(found) == scanned
        first_ms = min(truth.values(), default=None)
        assert first_ms is None or (deadlines.next_ms is not None and deadlines.next_ms <= first_ms)


LIMITS = Limits(lock_ms=7, deliveries=5, in_flight=40)
LONGER = LIMITS._replace(lock_ms=19)
GROUPS = ("g", "h")
PLACES = [Place(group, TOPIC_ID, partition) for group in GROUPS for partition in range(3)]


class Journal:
    """All is durable at once."""

    def append(self, _partition: int, _records: Records, done: Any) -> Round:
        durable = Round(asyncio.get_running_loop())
        asyncio.get_running_loop().call_soon(done, None, 0)
        durable.set_result(None)
        return durable


@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES), st.sampled_from(["take", "take", ACCEPT, RELEASE, RENEW]), st.integers(0, 8),
            st.sampled_from([LIMITS, LONGER]),
        ),
        max_size=40,
    )
)  # fmt: skip
@example([(PLACES[0], "take", 0, LONGER), (PLACES[0], RENEW, 8, LIMITS)])  # for a shorter time
def test_the_deadline_of_share_groups_is_that_of_a_scan(
    steps: list[tuple[Place, str | int, int, Limits]],
) -> None:
    """Of members and of what they have: nothing is late, also where the time that a group has is set anew."""

    async def life() -> None:
        now_ms = 0
        settings = SETTINGS._replace(session_timeout_ms=33, limits=LIMITS)
        topics = Topics()
        topics.by_name[TOPIC] = Topic(TOPIC_ID, 3)
        journal: Any = Journal()
        share = ShareService(topics, lambda _: settings, journal, Image(), 2, lambda: now_ms)

        def scanned() -> int | None:
            partitions = [partition.next_deadline_ms for partition in share._partitions.values()]
            groups = [group.next_deadline_ms for group in share.groups.by_id.values()]
            return min((one for one in (*partitions, *groups) if one is not None), default=None)

        for group in GROUPS:
            joined = await share.heartbeat(HeartbeatRequest(group, str(uuid.UUID(int=1)), 0, "c", "/h", None, (TOPIC,)))
            assert joined.error == NONE
        for place in PLACES:
            assert await share.begin(place, 0) == NONE
        for place, what, passes_ms, limits in steps:
            settings = settings._replace(limits=limits)
            partition = share.partition(place)
            assert partition is not None
            at = partition.next_offset
            if what == "take":
                read = Read(at, at + 2, [(at, at), (at + 1, at + 1)])
                share.acquire(place, partition, "a", read, 2, is_strict=True)
            else:
                share.acknowledge(place, "a", [Acknowledgement(partition.start, partition.start, (int(what),))])
            await asyncio.sleep(0)
            for _ in range(passes_ms):
                now_ms += 1
                told = share._next_deadline_ms()
                if told is not None and told <= now_ms:
                    share._tick()
                first_ms = scanned()
                assert first_ms is None or first_ms > now_ms, "somebody has had something for too long"
                told = share._next_deadline_ms()
                assert first_ms is None or (told is not None and now_ms < told <= first_ms)
        share.close()

    asyncio.run(life())
