"""The offsets partitions of one server, while its group says who leads what, and while the group says nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from keylane.broker.config import BrokerConfig
from keylane.broker.process import BrokerProcess
from keylane.coordinator.formats import partition_for
from keylane.coordinator.replicated.journal import DeposedError
from keylane.kafka.admin import Admin
from keylane.offset_servers.known_configs import KnownConfigs
from keylane.offset_servers.known_topics import KnownTopics
from keylane.offset_servers.partitions import Appends, Partitions, Shared
from keylane.offset_servers.topic import TOPIC, prepare
from keylane.offset_servers.topic_ids import TopicIds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keylane.errors import DataFolderError
    from keylane.offset_servers.topic import LogTopic

WAIT_S = 20.0
PARTITIONS = 4
GROUP = next(name for number in range(100) if partition_for(name := f"g{number}", PARTITIONS) == 1)


def no_failure(error: DataFolderError) -> None:
    raise AssertionError(error)


def log_of(broker: BrokerProcess) -> dict[str, object]:
    return {"bootstrap.servers": broker.bootstrap}


def server(name: str, broker: BrokerProcess, topic: LogTopic, asked_anew: list[str]) -> Partitions:
    """`asked_anew` gets the name of each that asks the group anew."""
    config = BrokerConfig(offsets_topic_num_partitions=topic.partitions)
    known = KnownTopics(dict, TOPIC), KnownConfigs(lambda _: {}, config)
    shared = Shared(log_of(broker), topic, config, name, *known, TopicIds(lambda _: {}), Appends())
    return Partitions(shared, lambda: asked_anew.append(name), no_failure)


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_what_the_group_gives_back_while_it_is_given_up_is_led(tmp_path: Path) -> None:
    """Commits that are under way are waited for, for as long as a broker of the log may be away."""

    async def live(broker: BrokerProcess) -> None:
        topic = await asyncio.to_thread(prepare, Admin(log_of(broker)), TOPIC, PARTITIONS, is_replicated=False)
        asked_anew: list[str] = []
        one = server("one", broker, topic, asked_anew)
        one.lead([0, 1])
        await until(lambda: one.led() == [0, 1] and not one.loading())
        broker.pause()
        confirmed = one.coordinator(1).confirm(GROUP)
        assert confirmed is not None
        given_up = asyncio.create_task(one.give_up([1]))
        await asyncio.sleep(0)
        one.lead([0, 1])
        assert not given_up.done(), "it waits for its append"
        broker.resume()
        await given_up
        await until(lambda: one.led() == [0, 1] and not one.loading())
        await one.close()
        assert asked_anew == []

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(live(broker))


def test_what_the_group_says_nothing_of_is_led_until_another_server_takes_it(tmp_path: Path) -> None:
    async def live(broker: BrokerProcess) -> None:
        topic = await asyncio.to_thread(prepare, Admin(log_of(broker)), TOPIC, PARTITIONS, is_replicated=False)
        asked_anew: list[str] = []
        one, other = (server(name, broker, topic, asked_anew) for name in ("one", "other"))
        one.lead([0, 1, 2])
        await until(lambda: one.led() == [0, 1, 2] and not one.loading())
        one.keep([0, 1, 2])
        other.lead([1])
        await until(lambda: other.led() == [1] and not other.loading())
        assert one.led() == [0, 1, 2], "it has not heard of the other one"
        confirmed = one.coordinator(1).confirm(GROUP)
        assert confirmed is not None
        await asyncio.wait([confirmed])
        assert isinstance(confirmed.exception(), DeposedError)
        await until(lambda: one.led() == [0, 2])
        one.lead([2, 3])
        await until(lambda: one.led() == [2, 3] and not one.loading())
        await asyncio.gather(one.close(), other.close())
        assert asked_anew == [], "the group had not said that partition 1 is led here"

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(live(broker))
