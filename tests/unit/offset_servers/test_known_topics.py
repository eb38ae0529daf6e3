"""The topics of the log's cluster: asked by who needs them, and never taken for gone because nobody answers."""

from __future__ import annotations

import asyncio
import datetime
import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from keylane.offset_servers.freshness import AGAIN_S
from keylane.offset_servers.known_topics import Known, KnownTopics, ask_topics, read_topics
from keylane.wire.versions import encode_response, response_module

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

HEAD = {"throttle_time": datetime.timedelta(0), "brokers": (), "cluster_id": "c", "controller_id": 1}
ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


class Brokers:
    """Answers with what a test says, and counts the questions."""

    def __init__(self) -> None:
        self.found: dict[str, Known] | None = {"flights": Known(ONE, 3)}
        self.asked = 0
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def ask(self) -> Mapping[str, Known]:
        self.asked += 1
        self.is_asked.set()
        assert self.may_answer.wait(20)
        if self.found is None:
            raise OSError("nobody is there")
        return dict(self.found)


def run(check: Callable[[KnownTopics, Brokers], Awaitable[None]]) -> None:
    async def whole() -> None:
        brokers = Brokers()
        await asyncio.wait_for(check(KnownTopics(brokers.ask, "__hidden"), brokers), 20)

    asyncio.run(whole())


def test_what_is_young_enough_is_not_asked_again() -> None:
    async def check(topics: KnownTopics, brokers: Brokers) -> None:
        assert (topics.version, topics.get("flights")) == (0, None)
        await topics.be_fresh(60)
        assert topics.get("flights") == Known(ONE, 3)
        assert topics.name_of(ONE) == "flights"
        assert topics.name_of(OTHER) is None
        assert topics.name_of(None) is None
        await topics.be_fresh(60)
        assert brokers.asked == 1
        await topics.be_fresh(0)
        assert brokers.asked == 2
        assert topics.version == 1, "nothing has changed"

    run(check)


def test_a_topic_that_comes_grows_or_is_made_anew_is_another_version() -> None:
    async def check(topics: KnownTopics, brokers: Brokers) -> None:
        await topics.be_fresh(0)
        for number, found in enumerate(
            (
                {"flights": Known(ONE, 4)},
                {"flights": Known(OTHER, 4)},
                {"flights": Known(OTHER, 4), "n": Known(ONE, 1)},
            ),
            2,
        ):
            brokers.found = found
            await topics.be_fresh(0)
            assert topics.version == number
            assert {name: topics.get(name) for name in topics.names()} == found
        brokers.found = {**found, "__hidden": Known(uuid.UUID(int=3), 50)}
        await topics.be_fresh(0)
        assert topics.version == 4, "the log's own topic is nobody's to read"

    run(check)


def test_nobody_answers_and_what_was_known_stays() -> None:
    async def check(topics: KnownTopics, brokers: Brokers) -> None:
        await topics.be_fresh(0)
        brokers.found = None
        await topics.be_fresh(0)
        assert topics.get("flights") == Known(ONE, 3)
        assert topics.version == 1
        before = brokers.asked
        await topics.be_fresh(0)
        assert brokers.asked == before, f"nobody is asked again within {AGAIN_S} s"

    run(check)


def test_many_wait_for_one_question_and_who_comes_later_for_the_next() -> None:
    async def check(topics: KnownTopics, brokers: Brokers) -> None:
        brokers.may_answer.clear()
        early = [asyncio.ensure_future(topics.be_fresh(0)) for _ in range(5)]
        assert await asyncio.to_thread(brokers.is_asked.wait, 20)
        late = asyncio.ensure_future(topics.be_fresh(0))
        await asyncio.sleep(0)
        brokers.may_answer.set()
        await asyncio.gather(*early, late)
        assert brokers.asked == 2, "what was asked before it came tells nothing of a topic that was made since"

    run(check)


def answer(*topics: tuple[str, uuid.UUID | None, int, int]) -> bytes:
    module = response_module("metadata", 12)
    rows = tuple(
        module.MetadataResponseTopic(
            error_code=ErrorCode(code),
            name=name,
            topic_id=topic_id,
            is_internal=False,
            partitions=tuple(
                module.MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=one,
                    leader_id=1,
                    leader_epoch=0,
                    replica_nodes=(1,),
                    isr_nodes=(1,),
                    offline_replicas=(),
                )
                for one in range(count)
            ),
        )
        for name, topic_id, count, code in topics
    )
    return b"\0" + encode_response(module.MetadataResponse(**HEAD, topics=rows))


def test_an_answer_is_read() -> None:
    assert read_topics(answer(("a", ONE, 2, 0), ("b", OTHER, 0, 0))) == {"a": Known(ONE, 2), "b": Known(OTHER, 0)}


def test_half_an_answer_is_none() -> None:
    """A topic that a broker cannot tell of is not gone."""
    with pytest.raises(OSError, match="does not know all topics yet"):
        read_topics(answer(("a", ONE, 2, 0), ("b", ONE, 0, 3)))
    with pytest.raises(OSError, match="cannot be read"):
        read_topics(answer(("a", ONE, 2, 0))[:-6])
    with pytest.raises(OSError, match="no broker of the log's cluster is known"):
        ask_topics([], None)  # type: ignore[arg-type]
