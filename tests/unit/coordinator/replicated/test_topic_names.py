"""Names in committed offsets, and the topics that they stand for: what ends when another topic has the name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from keylane.coordinator.formats import RecordFormatError, TopicCommit
from keylane.coordinator.journal.image import Image
from keylane.coordinator.replicated.topic_names import (
    MOST_IDS,
    RECORDS_A_BATCH,
    TopicNames,
    decode_ids,
    encode_ids,
    key_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keylane.coordinator.formats import Records

PARTITION, NOW_MS = 3, 1_700_000_000_000
ONE, OTHER, THIRD = (UUID(int=number) for number in (1, 2, 3))


class Log:
    """A journal whose records are in the table at once, and what ends offsets there."""

    def __init__(self) -> None:
        self.image = Image()
        self.appended: list[int] = []
        """Records, by batch."""
        self.ended: list[str] = []
        end = self._end
        self.names = TopicNames(PARTITION, self.image, self, end, lambda: NOW_MS)  # type: ignore[arg-type]

    def append(self, partition: int, records: Records, done: Callable[[None, int], None]) -> asyncio.Future[None]:
        self.appended.append(records.record_count)
        rows = [(offset, *pair) for offset, pair in enumerate(records.pairs)]
        self.image.note(partition, records.timestamp_ms, rows, b"")
        done(None, 0)
        over = asyncio.get_running_loop().create_future()
        over.set_result(None)
        return over

    def commit(self, group: str, topic: str) -> None:
        self.image.store.apply(group, [TopicCommit(topic, [0], [10], [0], None)], 0, NOW_MS)

    async def _end(self, topic: str) -> None:
        self.ended.append(topic)
        await asyncio.sleep(0)
        for group, partitions in list(self.image.store.entries_of(topic)):
            for one in partitions:
                self.image.store.remove(group, topic, one)


def run(check: Callable[[Log], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(check(Log()), 20)

    asyncio.run(whole())


def test_another_topic_of_the_name_ends_what_was_committed(caplog: pytest.LogCaptureFixture) -> None:
    async def check(log: Log) -> None:
        log.commit("g", "flights")
        log.commit("h", "flights")
        log.commit("g", "hotels")
        await log.names.learn({"flights": ONE, "hotels": THIRD})
        assert log.ended == [], "what was committed before there were records is of these topics"
        assert log.names.agree_with({"flights": ONE, "hotels": THIRD})
        assert not log.names.agree_with({"flights": OTHER, "hotels": THIRD})
        await log.names.learn({"flights": OTHER, "hotels": THIRD})
        assert (log.ended, log.names.of_commits(), log.names.of_commits("h")) == (["flights"], {"hotels"}, set())
        assert "'flights' was made anew" in caplog.text
        assert "what 2 groups had committed" in caplog.text
        assert log.appended == [2, 1], "and nothing is written where nothing is new"
        log.commit("g", "flights")
        await log.names.learn({"flights": ONE})
        assert log.ended == ["flights"], "a broker that is behind tells an earlier id"

    run(check)


def test_who_learns_it_at_the_same_time_ends_it_once() -> None:
    """Else a commit that came in between would end with those before it."""

    async def check(log: Log) -> None:
        await log.names.learn({"flights": ONE})
        await asyncio.gather(*(log.names.learn({"flights": OTHER}) for _ in range(3)))
        assert log.ended == ["flights"]

    run(check)


def test_names_that_nobody_has_are_forgotten() -> None:
    async def check(log: Log) -> None:
        log.commit("g", "committed")
        await log.names.learn({"committed": ONE, "there": OTHER, "gone": THIRD})
        assert log.names.all() == {"committed", "there", "gone"}
        await log.names.forget(["there"])
        assert [log.names.has(one) for one in ("committed", "there", "gone")] == [True, True, False]

    run(check)


def test_many_names_go_in_batches_and_few_ids_are_kept() -> None:
    async def check(log: Log) -> None:
        await log.names.learn({f"t{number}": ONE for number in range(RECORDS_A_BATCH + 1)})
        assert log.appended == [RECORDS_A_BATCH, 1]
        for number in range(2 * MOST_IDS):
            await log.names.learn({"flights": UUID(int=number)})
        kept = log.image.kept[PARTITION, key_of("flights")]
        assert decode_ids(kept.value) == [UUID(int=number) for number in range(2 * MOST_IDS - 1, MOST_IDS - 1, -1)]

    run(check)


@pytest.mark.parametrize("value", [b"", b"\0\1" + bytes(16), encode_ids([ONE]) + b"x"])
def test_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(RecordFormatError, match="cannot read"):
        decode_ids(value)
