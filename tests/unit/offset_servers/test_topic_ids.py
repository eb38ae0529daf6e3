"""The ids of topics in the log's cluster: of one answer that was asked for after the call, for all who wait."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from uuid import UUID

from keylane.offset_servers import topic_ids
from keylane.offset_servers.topic_ids import TopicIds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    import pytest

ONE, OTHER = UUID(int=1), UUID(int=2)


class Brokers:
    """Answers with what a test says, when it says so."""

    def __init__(self) -> None:
        self.found: dict[str, UUID] | None = {"flights": ONE, "hotels": OTHER}
        self.asked: list[list[str]] = []
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def ask(self, names: Collection[str]) -> dict[str, UUID]:
        self.asked.append(sorted(names))
        self.is_asked.set()
        assert self.may_answer.wait(20)
        if self.found is None:
            raise OSError("nobody is there")
        return {name: topic_id for name, topic_id in self.found.items() if name in names}


def run(check: Callable[[TopicIds, Brokers], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        brokers = Brokers()
        await asyncio.wait_for(check(TopicIds(brokers.ask), brokers), 20)

    asyncio.run(whole())


def test_who_comes_while_a_broker_is_asked_waits_for_the_next_answer() -> None:
    async def check(ids: TopicIds, brokers: Brokers) -> None:
        brokers.may_answer.clear()
        first = asyncio.create_task(ids.of({"flights"}))
        assert await asyncio.to_thread(brokers.is_asked.wait, 20)
        later = [asyncio.create_task(ids.of({name})) for name in ("flights", "hotels", "trains")]
        await asyncio.sleep(0)
        brokers.may_answer.set()
        assert await first == {"flights": ONE}
        assert await asyncio.gather(*later) == [brokers.found] * 3
        assert brokers.asked == [["flights"], ["flights", "hotels", "trains"]]

    run(check)


def test_an_answer_of_just_now_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_ids, "RECENT_S", 60)

    async def check(ids: TopicIds, brokers: Brokers) -> None:
        assert ids.recent({"flights"}) is None
        assert await ids.of({"flights", "gone"}) == await ids.of({"flights"}) == {"flights": ONE}
        assert await ids.of({"gone"}) == ids.recent({"gone"}) == {}
        assert await ids.of({"hotels", "flights"}) == ids.recent({"hotels", "flights"}) == brokers.found
        assert brokers.asked == [["flights", "gone"], ["flights", "hotels"]]
        monkeypatch.setattr(topic_ids, "RECENT_S", -1)
        assert ids.recent({"flights"}) is None
        await ids.of({"hotels"})
        assert brokers.asked[2:] == [["hotels"]]

    run(check)


def test_nobody_answers_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def check(ids: TopicIds, brokers: Brokers) -> None:
        brokers.found = None
        assert [await ids.of({"flights"}) for _ in range(3)] == [None] * 3
        assert caplog.text.count("cannot be asked: nobody is there") == 1
        brokers.found = {"flights": ONE}
        assert await ids.of({"flights"}) == brokers.found

    run(check)
