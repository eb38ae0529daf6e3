"""What is set for groups in the log's cluster: asked by who needs it, for all groups at once, and bounded here."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.config import BrokerConfig
from keylane.broker.config_resources import GROUP, GROUP_SOURCE
from keylane.offset_servers.known_configs import FORGET_S, KnownConfigs, ask_configs, read_configs
from keylane.wire.versions import encode_response, response_module

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


class Brokers:
    """Has configs of groups, and counts the questions."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, str]] | None = {"g": {SESSION: "50000"}}
        self.asked: list[list[str]] = []

    def ask(self, groups: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        self.asked.append(sorted(groups))
        if self.found is None:
            raise OSError("nobody is there")
        return {group: dict(self.found.get(group, {})) for group in groups}


def run(check: Callable[[KnownConfigs, Brokers], Awaitable[None]]) -> None:
    async def whole() -> None:
        brokers = Brokers()
        await asyncio.wait_for(check(KnownConfigs(brokers.ask, BrokerConfig()), brokers), 2 * FORGET_S)

    asyncio.run(whole())


def test_all_groups_are_asked_for_in_one_question() -> None:
    async def check(configs: KnownConfigs, brokers: Brokers) -> None:
        await configs.be_fresh(("g",), 60)
        assert (configs.of("g"), configs.texts("g")) == ({SESSION: 50_000}, {SESSION: "50000"})
        await configs.be_fresh(("g",), 60)
        await configs.be_fresh(("h",), 60)
        assert brokers.asked == [["g"], ["g", "h"]], "a group that is new is asked for at once"
        assert configs.of("h") == {}
        await configs.be_fresh(("g", "h"), 60)
        assert len(brokers.asked) == 2

    run(check)


def test_nobody_answers_and_what_was_known_stays() -> None:
    async def check(configs: KnownConfigs, brokers: Brokers) -> None:
        await configs.be_fresh(("g",), 0)
        brokers.found = None
        await configs.be_fresh(("g",), 0)
        assert configs.of("g") == {SESSION: 50_000}

    run(check)


def test_what_is_no_longer_set_has_no_effect() -> None:
    async def check(configs: KnownConfigs, brokers: Brokers) -> None:
        await configs.be_fresh(("g",), 0)
        brokers.found = {}
        await configs.be_fresh(("g",), 0)
        assert configs.of("g") == {}

    run(check)


def test_a_group_that_nobody_needs_is_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(configs: KnownConfigs, brokers: Brokers) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await configs.be_fresh(("g",), 0)
        monkeypatch.setattr(loop, "time", lambda: began + FORGET_S + 1)
        await configs.be_fresh(("h",), 0)
        assert brokers.asked == [["g"], ["h"]]
        monkeypatch.undo()

    run(check)


@pytest.mark.parametrize(
    "settings",
    [
        {SESSION: str(BrokerConfig().group_consumer_max_session_timeout_ms + 1)},
        {HEARTBEAT: str(BrokerConfig().group_consumer_min_heartbeat_interval_ms - 1)},
        {"streams.session.timeout.ms": "50000"},
        {SESSION: "soon"},
    ],
)
def test_what_the_servers_options_do_not_allow_has_no_effect(
    settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def check(configs: KnownConfigs, brokers: Brokers) -> None:
        brokers.found = {"g": settings}
        await configs.be_fresh(("g",), 0)
        assert configs.of("g") == {}

    run(check)
    assert "group 'g': what its configs in the log's cluster say has no effect here" in caplog.text


def answer(code: ErrorCode, *configs: tuple[str, str | None, int]) -> bytes:
    module = response_module("describe_configs", 1)
    rows = tuple(
        module.DescribeConfigsResourceResult(
            name=name, value=value, read_only=False, config_source=source, is_sensitive=value is None, synonyms=()
        )
        for name, value, source in configs
    )
    result = module.DescribeConfigsResult(
        error_code=code, error_message="no", resource_type=GROUP, resource_name="g", configs=rows
    )
    return encode_response(module.DescribeConfigsResponse(throttle_time=datetime.timedelta(0), results=(result,)))


def test_an_answer_is_read() -> None:
    """What is the brokers' own is not the group's."""
    rows = ((SESSION, "50000", GROUP_SOURCE), (HEARTBEAT, "5000", 5), ("secret", None, GROUP_SOURCE))
    assert read_configs(answer(ErrorCode.none, *rows)) == {"g": {SESSION: "50000"}}


def test_brokers_that_know_no_configs_of_groups_have_none() -> None:
    assert read_configs(answer(ErrorCode.invalid_request)) == {"g": {}}


def test_a_refusal_is_no_answer() -> None:
    with pytest.raises(OSError, match="error 30 for group 'g': no"):
        read_configs(answer(ErrorCode.group_authorization_failed))
    with pytest.raises(OSError, match="cannot be read"):
        read_configs(b"\0")
    with pytest.raises(OSError, match="no broker of the log's cluster is known"):
        ask_configs((), None, ("g",))  # type: ignore[arg-type] # nobody is there to log in at
